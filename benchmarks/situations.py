"""Where does the recommended method help, and what is each of its parts worth?

    python benchmarks/situations.py run --minutes 10   # runs what is missing in docs/results/situations.jsonl
    python benchmarks/situations.py page               # writes the tables of docs/results/recommended.md from that file

A line of the file is one run: a method in a situation, with one seed. Clients have 120 synthetic people together, and
300 others tell how good the shared model is. Every client is asked 20 times, or all faces are gone through 20 times in
one place, so that rows differ in method and not in work. Settings are those of the demo, which were chosen with seeds
100 and 101. In some situations training goes on from a model of public people, with half the rate and with class
embeddings that begin as means. Clients without labels do what `personae run FACES --unlabelled` proposes.
"""

import argparse
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.selection import Everybody, Occasion, Selection
from personae.errors import PersonaeError
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.result import RunResult
from personae.experiment.run import conduct
from personae.files import write_text
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport
from personae.selection.passes import Passes

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "situations.jsonl", DOCS / "results" / "recommended.md"
BEGIN, END = "<!-- tables of benchmarks/situations.py -->", "<!-- end of tables -->"
SEEDS = range(3)
VISITS, PEOPLE = 20, 120
TAR = "tar@1e-02"
FIGURES = {"heldout": "new people", "private": "the clients' people"}  # by benchmark: on whose images, which nobody saw
FALLING = {"lr": 0.1, "schedule": "linear", "span": "stage", "warmup": 0.05}
CONSTANT = {"lr": 0.05}  # the mean of the falling one
START = {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15}


@dataclass(frozen=True)
class Method:
    label: str
    cohort: dict[str, Any] | None  # none: everybody in every round
    margin: float = 0.35
    rate: tuple[tuple[str, Any], ...] = tuple(FALLING.items())
    algorithm: str = "fedpe"
    more: tuple[tuple[str, Any], ...] = ()


PASSES = {"name": "passes", "clients": 2}
METHODS = {
    "fedpe": Method("FedPE", None, 0.2, tuple(CONSTANT.items())),
    "recommended": Method("recommended", PASSES),
    "pooled": Method("pooled", None, algorithm="central"),
    "everybody": Method("without small cohorts: everybody in every round", None),
    "constant": Method("without a falling rate: 0.05 throughout", PASSES, rate=tuple(CONSTANT.items())),
    "narrow": Method("without the wide margin: 0.2", PASSES, 0.2),
    "draws": Method("without passes: two clients are drawn in each round", {"name": "count", "clients": 2}),
    "one": Method("one client in a round", {"name": "passes", "clients": 1}),
    "fedface": Method(
        "FedFace, which sends class embeddings", None, 0.2, algorithm="fedface", more=(("strength", 0.25),)
    ),
    "unsupervised": Method("clusters, then unsupervised FedFR", None, 0.2, algorithm="unsupervised"),
}
COMPARED = ("fedpe", "recommended", "pooled")
PARTS = tuple(METHODS)[:8]


@dataclass(frozen=True)
class Situation:
    label: str
    methods: tuple[str, ...] = COMPARED
    clients: int = 10
    by: str = "equal"
    answers: float = 1.0  # how often a client that is asked to train answers
    available: int = 0  # how many clients there are at a time; all if it is 0
    people: int = PEOPLE
    start: bool = False  # whether training goes on from a model of public people
    unlabelled: bool = False


SITUATIONS = {
    "usual": Situation("10 clients with 12 people each", PARTS),
    "two clients": Situation("2 clients with 60 people each", (*COMPARED, "one"), clients=2),
    "stretches": Situation(
        "12 clients with 10 people each, a quarter of them there at a time", clients=12, available=3
    ),
    "unbalanced": Situation("10 clients of log-normal sizes", by="lognormal-identities"),
    "public": Situation("10 clients with 12 people each, from a start", (*COMPARED, "everybody"), start=True),
    "unlabelled": Situation(
        "10 clients with 12 people each and no labels, from a start", ("unsupervised",), start=True, unlabelled=True
    ),
    "few clients": Situation("3 clients with 40 people each", clients=3),
    "one person": Situation(
        "60 clients with one person each, from a start", (*COMPARED, "fedface"), clients=60, people=60, start=True
    ),
    "dropping": Situation("10 clients, a fifth of all answers is lost", COMPARED[:2], answers=0.8),
    "a quarter": Situation("10 clients, three quarters of all answers are lost", COMPARED[:2], answers=0.25),
    "few people": Situation("40 clients with 3 people each", clients=40),
}
Job = tuple[str, str, int]  # situation, method, seed
Lines = dict[Job, dict[str, Any]]


def jobs() -> Iterator[Job]:
    """What matters most comes first."""
    yield from (("usual", method, seed) for seed in SEEDS for method in COMPARED)
    for name, situation in SITUATIONS.items():
        yield from ((name, method, seed) for seed in SEEDS for method in situation.methods if name != "usual")
    yield from (("usual", method, seed) for seed in SEEDS for method in PARTS)


@dataclass(frozen=True, kw_only=True)
class InStretches(Selection):
    """A few clients are there for some passes, then others: everybody comes once before anybody comes again."""

    name: ClassVar[str] = "stretches"
    available: int
    clients: int = 0  # of those that are there, how many are asked in a round; 0 for all
    passes: int = 5  # of a stretch

    def count(self, eligible: int, round_: int, rounds: int) -> int:
        return self._among.count(min(eligible, self.available), round_, rounds)

    def select(self, occasion: Occasion) -> list[ClientInfo]:
        stretch = (occasion.round - 1) // (self.passes * ceil(self.available / (self.clients or self.available)))
        there = Passes(clients=self.available).select(replace(occasion, round=stretch + 1))
        return self._among.select(replace(occasion, clients=there))

    @property
    def _among(self) -> Selection:
        return Passes(clients=self.clients) if self.clients else Everybody()


def plan_of(job: Job) -> dict[str, Any]:
    situation, method, seed = SITUATIONS[job[0]], METHODS[job[1]], job[2]
    there = situation.available or situation.clients
    cohort = method.cohort or {"name": "all"}
    rounds = VISITS * ceil(there / cohort["clients"]) if method.cohort else VISITS
    if situation.available and method.algorithm != "central":
        rounds *= situation.clients // situation.available
        asked = {"clients": cohort["clients"]} if method.cohort else {}
        cohort = {"name": "situations:InStretches", "available": situation.available, **asked}
    sizes = {"mu": 2.0, "sigma": 1.0} if situation.by != "equal" else {}
    rate = dict(method.rate)
    if situation.start:
        rate["lr"] /= 2
    margin = {"kind": "cosface", "scale": 24.0, "margin": method.margin}
    stage = {
        "name": "train",
        "rounds": rounds,
        "quorum": 0.01,
        "patience": 15,  # rounds that nobody answers change nothing
        "selection": cohort,
        "algorithm": {
            "name": method.algorithm,
            "head_init": "mean" if situation.start else "random",
            "margin": margin,
            "training": {"batch_size": 64 if method.algorithm == "central" else 32, "epochs": 1, **rate},
            **dict(method.more),
        },
    }
    plan: dict[str, Any] = {
        "name": "situations",
        "seed": seed,
        "network": {"name": "small", "embedding": 64, "height": 32, "width": 32},
        "data": {
            "private": {"source": "synthetic", "identities": situation.people, "images": 30},
            "heldout": {"source": "synthetic", "first": 1000, "identities": 300, "images": 8},
        },
        "partition": {
            "by": situation.by,
            "clients": situation.clients,
            **sizes,
            "train": 0.6,
            "val": 0.0,
            "test": 0.4,
        },
        "evaluation": {"fars": [1e-2]},
        "stages": [stage],
    }
    if situation.start:
        plan["data"]["public"] = {"source": "synthetic", "first": 2000, "identities": PEOPLE, "images": 18}
        plan["stages"] = [
            {
                "name": "start",
                "rounds": 16,
                "algorithm": {"name": "pretrain", "margin": {**margin, "margin": 0.2}, "training": START},
            },
            stage,
        ]
    if situation.unlabelled:
        plan["data"]["private"]["unlabelled"] = True
        training = {"lr": 0.01, "batch_size": 32, "iterations": 20}
        algorithm = {"name": method.algorithm, "strength": 0.0, "margin": margin, "training": training}
        stage |= {"rounds": 6, "patience": 0, "algorithm": algorithm}
        plan["stages"].insert(1, {"name": "cluster", "algorithm": {"name": "cluster"}})
    return plan


def settings_of(job: Job) -> str:
    content = [plan_of(job), SITUATIONS[job[0]].answers]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@dataclass
class Unreliable:
    """Clients that were asked to train and may not answer, drawn anew for each client and round."""

    inside: Transport
    answers: float
    seed: int

    def __post_init__(self) -> None:
        self.problems = self.inside.problems

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        lost: set[str] = set()

        def noted() -> Iterator[Request]:
            for request in requests:
                draw = random.Random(f"{self.seed} {request.stage} {request.round} {request.client.name}").random()
                if request.task == TRAIN and draw >= self.answers:
                    lost.add(request.client.name)
                yield request

        for answer in self.inside.exchange(noted()):
            is_lost = answer.client.name in lost
            yield Failure(answer.client, "no answer") if is_lost else answer

    def settle(self) -> None:
        self.inside.settle()

    def close(self) -> None:
        self.inside.close()


def unreliable(federation: Federation, workers: int, device: str, notify: Any, *, job: Job) -> Transport:
    inside = local_transport(federation, workers, device, notify)
    return Unreliable(inside, SITUATIONS[job[0]].answers, job[2])


def tried(job: Job) -> dict[str, Any]:
    began = time.monotonic()
    line: dict[str, Any] = {"job": job, "settings": settings_of(job)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            conduct(
                parse_experiment(plan_of(job), "situations"), out, Execution(), connect=partial(unreliable, job=job)
            )
            for each in RunResult(out).figures:  # the last one of a stage counts
                who, _, metric = each.metric.rpartition("/")
                if each.client is None and who in FIGURES and metric == TAR:
                    line[who if each.stage == "train" else f"{who} start"] = each.value
        except PersonaeError as error:
            line["error"] = str(error)
    return {**line, "seconds": round(time.monotonic() - began, 1)}


def known(results: Path) -> Lines:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found: Lines = {(line["job"][0], line["job"][1], line["job"][2]): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    there = known(results)
    for job in dict.fromkeys(jobs()):
        if {"error", "heldout"} & there.get(job, {}).keys():
            continue
        if time.monotonic() > deadline:
            break
        line = json.dumps(tried(job))
        with results.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


# ------------------------------------------------------------------------------------------------ the page


def page(results: Path) -> None:
    text, there = PAGE.read_text(), known(results)
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    tables = [by_situation(there, who) for who in FIGURES]
    tables += [by_method(there, situation) for situation in ("usual", "two clients")]
    tables += [from_start(there, name) for name, situation in SITUATIONS.items() if situation.start]
    whole = "\n".join(tables)
    write_text(PAGE, f"{before}{BEGIN}\n\n{whole}\n{END}{after}")


def by_situation(there: Lines, who: str) -> str:
    rows = [f"| TAR @ 1%, {FIGURES[who]} | FedPE | recommended | pooled | of the way |", "|---|---|---|---|---|"]
    for name, situation in SITUATIONS.items():
        if "recommended" not in situation.methods:
            continue
        pooled = name if situation.answers == 1 else "usual"  # in one place no answer is lost
        where = {"fedpe": name, "recommended": name, "pooled": pooled}
        found = [rates(there, place, method, who) for method, place in where.items()]
        complete = all(len(each) == len(SEEDS) for each in found)
        way = share_of_the_way(*map(statistics.mean, found)) if complete else "–"
        rows.append(f"| {situation.label} | {' | '.join(map(cell, found))} | {way} |")
    return "\n".join(rows) + "\n"


def share_of_the_way(fedpe: float, recommended: float, pooled: float) -> str:
    return f"{(recommended - fedpe) / (pooled - fedpe):.0%}" if pooled > fedpe else "pooled is not ahead"


def by_method(there: Lines, situation: str) -> str:
    """Every method of a situation, and how far it is from the recommended one."""
    about = SITUATIONS[situation]
    rows = [f"| {about.label} | {headings('recommended')} |", "|---|---|---|---|---|"]
    for name in about.methods:
        cells = []
        for who in FIGURES:
            pairs = [[there.get((situation, each, seed), {}) for each in (name, "recommended")] for seed in SEEDS]
            gains = [100 * (one[who] - other[who]) for one, other in pairs if who in one and who in other]
            cells += [cell(rates(there, situation, name, who)), "" if name == "recommended" else gained(gains)]
        rows.append(f"| {METHODS[name].label} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def from_start(there: Lines, situation: str) -> str:
    """Every method of a situation against what it began with."""
    about = SITUATIONS[situation]
    rows = [f"| {about.label} | {headings('the start')} |", "|---|---|---|---|---|"]
    none = {"heldout": "not run", "private": "–" if about.unlabelled else "not run"}  # people whom nobody names
    begun = (cell(rates(there, situation, about.methods[0], f"{who} start"), none[who]) for who in FIGURES)
    rows.append(f"| the start | {' |  | '.join(begun)} |  |")
    for name in about.methods:
        cells = []
        for who in FIGURES:
            found = [there.get((situation, name, seed), {}) for seed in SEEDS]
            gains = [100 * (line[who] - line[f"{who} start"]) for line in found if who in line]
            cells += [cell(rates(there, situation, name, who), none[who]), gained(gains)]
        rows.append(f"| {METHODS[name].label} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def headings(compared: str) -> str:
    return " | ".join(f"{people} | against {compared}" for people in FIGURES.values())


def gained(points: list[float]) -> str:
    return f"{statistics.mean(points):+.1f} ({spread(points, '+')})" if points else "–"


def rates(there: Lines, situation: str, method: str, figure: str) -> list[float]:
    lines = [there.get((situation, method, seed), {}) for seed in SEEDS]
    return [100 * line[figure] for line in lines if figure in line]


def cell(found: list[float], none: str = "not run") -> str:
    """`31.2 (30.4, 31.9, 31.3)`: the mean and each seed."""
    return f"{statistics.mean(found):.1f} ({spread(found)})" if found else none


def spread(values: list[float], sign: str = "") -> str:
    return ", ".join(f"{value:{sign}.1f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.minutes)
    else:
        page(options.results)


if __name__ == "__main__":
    main()
