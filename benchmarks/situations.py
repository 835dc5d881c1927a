"""Where does the recommended method help, and what is each of its parts worth?

    python benchmarks/situations.py run --minutes 10   # runs what is missing in docs/results/situations.jsonl
    python benchmarks/situations.py page               # writes the tables of docs/results/recommended.md from that file

A line of the file is one run: a method in a situation, with one seed. Clients have 120 synthetic people together, and
300 others tell how good the shared model is. Every client is asked 20 times, or all faces are gone through 20 times in
one place, so that rows differ in method and not in work. Settings are those of the demo, which were chosen with seeds
100 and 101.
"""

import argparse
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch

from personae.errors import PersonaeError
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.result import RunResult
from personae.experiment.run import conduct
from personae.files import write_text
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "situations.jsonl", DOCS / "results" / "recommended.md"
BEGIN, END = "<!-- tables of benchmarks/situations.py -->", "<!-- end of tables -->"
SEEDS = range(3)
VISITS, PEOPLE = 20, 120
TAR = "tar@1e-02"
FALLING = {"lr": 0.1, "schedule": "linear", "span": "stage", "warmup": 0.05}
CONSTANT = {"lr": 0.05}  # the mean of the falling one


@dataclass(frozen=True)
class Method:
    label: str
    cohort: dict[str, Any] | None  # none: everybody in every round
    margin: float = 0.35
    rate: tuple[tuple[str, Any], ...] = tuple(FALLING.items())
    algorithm: str = "fedpe"


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
}


@dataclass(frozen=True)
class Situation:
    label: str
    clients: int = 10
    by: str = "equal"
    answers: float = 1.0  # how often a client that is asked to train answers


SITUATIONS = {
    "usual": Situation("10 clients with 12 people each"),
    "few clients": Situation("3 clients with 40 people each", clients=3),
    "few people": Situation("40 clients with 3 people each", clients=40),
    "unbalanced": Situation("10 clients of log-normal sizes", by="lognormal-identities"),
    "dropping": Situation("10 clients, a fifth of all answers is lost", answers=0.8),
    "a quarter": Situation("10 clients, three quarters of all answers are lost", answers=0.25),
}
Job = tuple[str, str, int]  # situation, method, seed


def jobs() -> Iterator[Job]:
    """What matters most comes first."""
    for seed in SEEDS:
        yield from (("usual", method, seed) for method in ("fedpe", "recommended", "pooled"))
    for seed in SEEDS:
        for situation, about in SITUATIONS.items():
            methods = ("fedpe", "recommended", "pooled") if about.answers == 1 else ("fedpe", "recommended")
            yield from ((situation, method, seed) for method in methods)
        yield from (("usual", method, seed) for method in METHODS)


def plan_of(job: Job) -> dict[str, Any]:
    situation, method, seed = SITUATIONS[job[0]], METHODS[job[1]], job[2]
    cohort = method.cohort or {"name": "all"}
    sizes = {"mu": 2.0, "sigma": 1.0} if situation.by != "equal" else {}
    stage = {
        "name": "train",
        "rounds": VISITS * ceil(situation.clients / cohort["clients"]) if method.cohort else VISITS,
        "quorum": 0.01,
        "patience": 15,  # rounds that nobody answers change nothing
        "selection": cohort,
        "algorithm": {
            "name": method.algorithm,
            "head_init": "random",
            "margin": {"kind": "cosface", "scale": 24.0, "margin": method.margin},
            "training": {"batch_size": 64 if method.algorithm == "central" else 32, "epochs": 1, **dict(method.rate)},
        },
    }
    return {
        "name": "situations",
        "seed": seed,
        "network": {"name": "small", "embedding": 64, "height": 32, "width": 32},
        "data": {
            "private": {"source": "synthetic", "identities": PEOPLE, "images": 30},
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
            figures = [each for each in RunResult(out).figures if each.client is None and each.metric.endswith(TAR)]
            line["tar"] = figures[-1].value
        except PersonaeError as error:
            line["error"] = str(error)
    return {**line, "seconds": round(time.monotonic() - began, 1)}


def known(results: Path) -> dict[Job, dict[str, Any]]:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found: dict[Job, dict[str, Any]] = {(line["job"][0], line["job"][1], line["job"][2]): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    there = known(results)
    for job in dict.fromkeys(jobs()):
        if job in there:
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
    write_text(PAGE, f"{before}{BEGIN}\n\n{by_situation(there)}\n{by_part(there)}\n{END}{after}")


def by_situation(there: dict[Job, dict[str, Any]]) -> str:
    rows = ["| situation | FedPE | recommended | pooled | of the way |", "|---|---|---|---|---|"]
    for name, situation in SITUATIONS.items():
        pooled = name if situation.answers == 1 else "usual"  # in one place no answer is lost
        where = {"fedpe": name, "recommended": name, "pooled": pooled}
        way = share_of_the_way(*(mean(there, place, method) for method, place in where.items()))
        cells = [cell(there, place, method) for method, place in where.items()]
        rows.append(f"| {situation.label} | {' | '.join(cells)} | {way} |")
    return "\n".join(rows) + "\n"


def share_of_the_way(fedpe: float | None, recommended: float | None, pooled: float | None) -> str:
    if fedpe is None or recommended is None or pooled is None:
        return "–"
    return f"{(recommended - fedpe) / (pooled - fedpe):.0%}" if pooled > fedpe else "pooled is not ahead"


def by_part(there: dict[Job, dict[str, Any]]) -> str:
    rows = ["| 10 clients with 12 people each | TAR @ 1% | against recommended |", "|---|---|---|"]
    for name, method in METHODS.items():
        both = [
            100 * (there["usual", name, seed]["tar"] - there["usual", "recommended", seed]["tar"])
            for seed in SEEDS
            if all("tar" in there.get(("usual", each, seed), {}) for each in (name, "recommended"))
        ]
        against = (
            "" if name == "recommended" else f"{statistics.mean(both):+.1f} ({spread(both, '+')})" if both else "–"
        )
        rows.append(f"| {method.label} | {cell(there, 'usual', name)} | {against} |")
    return "\n".join(rows) + "\n"


def rates(there: dict[Job, dict[str, Any]], situation: str, method: str) -> list[float]:
    lines = [there.get((situation, method, seed), {}) for seed in SEEDS]
    return [100 * line["tar"] for line in lines if "tar" in line]


def mean(there: dict[Job, dict[str, Any]], situation: str, method: str) -> float | None:
    found = rates(there, situation, method)
    return statistics.mean(found) if found else None


def cell(there: dict[Job, dict[str, Any]], situation: str, method: str) -> str:
    """`31.2 (30.4, 31.9, 31.3)`: the mean and each seed."""
    found = rates(there, situation, method)
    return f"{statistics.mean(found):.1f} ({spread(found)})" if found else "not run"


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
