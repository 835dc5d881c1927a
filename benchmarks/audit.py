"""Attacks on the privacy of six systems, with and without defences: the tables of docs/results/privacy.md.

    python benchmarks/audit.py run --minutes 10    # runs what is missing in docs/results/privacy.jsonl, one by one
    python benchmarks/audit.py page                # writes the tables of docs/results/privacy.md from that file

A line of the file is one run with all attacks on it. A run that was measured with other settings than the present ones
counts as missing. What matters most comes first. Everything is as in the recipe `demo-all`: ten clients with twelve
synthetic people each. Every seed has people of its own.
"""

import argparse
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from personae.errors import PersonaeError
from personae.experiment.auditing import attacks_called, audit_run
from personae.experiment.config import Experiment, load_experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.files import write_text
from personae.privacy.audit import Finding
from personae.privacy.audit.finding import AUC, share_interval
from personae.report.records import read_run

DOCS = Path(__file__).parent.parent / "docs" / "results"
RESULTS, PAGE = DOCS / "privacy.jsonl", DOCS / "privacy.md"
BEGIN, END = "<!-- {} of benchmarks/audit.py -->", "<!-- end of {} -->"

RECIPE, START = "demo-all", "start"
BASE = ("data.heldout.identities=60", "threads=1", "evaluation.pairs_per_fold=30")
ELSEWHERE = 10_000  # people of another seed begin so much later
TAR = "heldout/tar@1e-02"
SYSTEMS = {
    "fedpe": "FedPE",
    "fedgc": "FedGC",
    "fedface": "FedFace",
    "fedfr": "FedFR",
    "hf_maml": "HF-MAML",
    "unsupervised": "unsupervised",
}
NOISED = ("fedpe", "hf_maml", "unsupervised")  # the others send more than a model, and `noise` refuses them
WITH_ROWS = ("fedgc", "fedface")
NOISE = {"norm": 0.3, "randomness": "seed"}
CENTRES = {"name": "centres", "clusters": 3, "randomness": "seed"}
CANARIES = {"name": "canaries", "count": 32, "norm": 0.3}
DEFENCES: dict[str, list[dict[str, object]]] = {
    "none": [],
    "noise 0.05": [{"name": "noise", "multiplier": 0.05, **NOISE}],
    "noise 1": [{"name": "noise", "multiplier": 1.0, **NOISE}],
    "local-noise 1": [{"name": "local-noise", "multiplier": 1.0, **NOISE}],
    "secret-sum": [{"name": "secret-sum"}],
    **{f"centres {z:g}": [{**CENTRES, "multiplier": z}] for z in (0.05, 0.2, 1.0)},
    "canaries": [CANARIES],
    "noise 0.05, canaries": [{"name": "noise", "multiplier": 0.05, **NOISE}, CANARIES],
    "noise 1, canaries": [{"name": "noise", "multiplier": 1.0, **NOISE}, CANARIES],
}
NOISE_COLUMNS = ("none", "noise 0.05", "noise 1", "local-noise 1", "secret-sum")
CENTRED = ("none", "centres 0.05", "centres 0.2", "centres 1")
WATCHED = ("canaries", "noise 0.05, canaries", "noise 1, canaries")
ON_ROWS = ("templates", "inversion")  # what noised centres are for
ON_THE_MODEL = ("updates", "hidden-rows", "membership", "scores")  # what noise and secret sums are for
NOT_RUN = "–"


@dataclass(frozen=True)
class Job:
    """One run."""

    system: str
    defence: str = "none"
    seed: int = 0

    @property
    def attacks(self) -> tuple[str, ...]:
        if self.defence in WATCHED:
            return ("canaries",)
        if self.defence in CENTRED[1:]:
            return ON_ROWS
        return ON_THE_MODEL if self.defence != "none" else (*ON_ROWS, *ON_THE_MODEL)


Cells = dict[Job, dict[str, Any]]


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    yield from without_defence(0)
    yield from with_defences(0)
    for seed in range(1, seeds):
        yield from without_defence(seed)
    for seed in range(1, seeds):
        yield from with_defences(seed)


def without_defence(seed: int) -> Iterator[Job]:
    yield from (Job(system, seed=seed) for system in SYSTEMS)


def with_defences(seed: int) -> Iterator[Job]:
    yield from (Job("fedpe", defence, seed) for defence in (*NOISE_COLUMNS[1:], *WATCHED))
    for system in NOISED[1:]:
        yield from (Job(system, defence, seed) for defence in NOISE_COLUMNS[1:])
    yield from (Job(system, defence, seed) for defence in CENTRED[1:] for system in WITH_ROWS)


def experiment(job: Job | None, seed: int) -> Experiment:
    """The recipe's start, and after it one system with its layers."""
    whole = load_experiment(RECIPE, (*BASE, f"seed={seed}")).resolved()
    for source in whole["data"].values():
        if source:
            source["first"] += ELSEWHERE * seed
    stages = {stage["name"]: stage for stage in whole["stages"]}
    chosen = [stages[START]]
    if job is not None:
        chosen.append({**stages[job.system], "after": START, "layers": DEFENCES[job.defence]})
    whole |= {"name": "audit", "stages": chosen, "audit": {"rounds": [1, -1]}}
    return parse_experiment(whole, "benchmarks/audit.py")


@cache
def settings_of(job: Job) -> str:
    """Another for other settings of the run, and for other attacks on it."""
    attacks = {each.name: asdict(each) for each in attacks_called(job.attacks)}  # type: ignore[call-overload]
    content = json.dumps([experiment(job, job.seed).resolved(), attacks], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


@cache
def started(seed: int, work: Path) -> Path:
    """The run that has the model that all systems begin with."""
    begin = experiment(None, seed)
    digest = hashlib.sha256(json.dumps(begin.resolved(), sort_keys=True).encode()).hexdigest()[:12]
    conduct(begin, work / f"{START}-{seed}-{digest}", Execution(), resume=True)
    return work / f"{START}-{seed}-{digest}"


def tried(job: Job, work: Path) -> dict[str, Any]:
    began, out = time.monotonic(), work / "run"
    result: dict[str, Any] = {**asdict(job), "settings": settings_of(job)}
    shutil.rmtree(out, ignore_errors=True)
    try:
        conduct(experiment(job, job.seed), out, Execution(), begin=started(job.seed, work))
        audit = audit_run(out, job.attacks, stages=[job.system])
        content = read_run(out)
        result |= {
            "tar": round(content.records[job.system].final_metrics[TAR], 4),
            "epsilon": [round(each.epsilon, 2) for each in content.spent],
            "findings": [_short(each) for each in audit.findings],
        }
    except PersonaeError as error:
        result["refused"] = str(error)
    shutil.rmtree(out, ignore_errors=True)
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def _short(finding: Finding) -> dict[str, Any]:
    """What tables need of it."""
    whole = {name: value for name, value in asdict(finding).items() if name not in ("stage", "details")}
    there = {name: value for name, value in whole.items() if value not in (None, "")}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in there.items()}


def cells(results: Path) -> Cells:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found = {Job(**{each.name: line[each.name] for each in fields(Job)}): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, work: Path, minutes: float, seeds: int) -> None:
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    known = cells(results)
    missing = [job for job in jobs(seeds) if job not in known]
    print(f"{len(known)} runs are there, {len(missing)} are missing", flush=True)
    for job in missing:
        if time.monotonic() > deadline:
            break
        line = tried(job, work)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(job, line.get("refused", f"{line['seconds']} s"), flush=True)


# ------------------------------------------------------------------------------------------------ the page


@dataclass(frozen=True)
class Row:
    """A figure of an attack, as tables name it; rounds of all systems are called first and last."""

    label: str
    attack: str
    target: str
    figure: str

    def has(self, finding: dict[str, Any]) -> bool:
        told = re.sub(r"(\w+, |updates of )round 1\b", "first round", finding["target"])
        told = re.sub(r"(\w+, |updates of )round \d+", "last round", told)
        return (finding["attack"], told) == (self.attack, self.target) and finding["figure"].startswith(self.figure)


ROWS = (
    Row("`templates`: whom a class embedding stands for, rank-1", "templates", "ClassEmbeddings", "rank-1"),
    Row(
        "`templates`: who is at which client, from centres, rank-1",
        "templates",
        "NoisedCentres, who is at which client",
        "rank-1",
    ),
    *(
        Row(
            f"`updates`: who is at which client, {words}, {number} round, rank-1",
            "updates",
            f"{number} round, {photos} photographs",
            "rank-1",
        )
        for photos, words in (("trained", "the very photographs"), ("other", "other photographs"))
        for number in ("first", "last")
    ),
    *(
        Row(
            f"`hidden-rows`: who is at which client, {number} round, rank-1", "hidden-rows", f"{number} round", "rank-1"
        )
        for number in ("first", "last")
    ),
    *(
        Row(f"`membership`: by the model, {words}, {name}", "membership", f"model, {photos} photographs", figure)
        for photos, words in (("trained", "the very photographs"), ("other", "other photographs"))
        for figure, name in ((AUC, AUC), ("TPR", "TPR at FPR 1.6%"))
    ),
    *(
        Row(
            f"`membership`: at this client, {number} round, {name}",
            "membership",
            f"{number} round, at this client",
            figure,
        )
        for number in ("first", "last")
        for figure, name in ((AUC, AUC), ("TPR", "TPR at FPR 0.1%"))
    ),
    Row("`inversion`: of a class embedding, accepted", "inversion", "ClassEmbeddings", "accepted"),
    Row(
        "`inversion`: of a centre, accepted for anybody at the client",
        "inversion",
        "NoisedCentres, as anybody at the client",
        "accepted",
    ),
    Row("`inversion`: of a template in a gallery, accepted", "inversion", "a template of a gallery", "accepted"),
    Row("`scores`: with four digits, accepted after 100", "scores", "scores with 4 digits", "accepted"),
    Row("`scores`: in tenths, accepted after 100", "scores", "scores in tenths", "accepted"),
    Row("`scores`: yes or no, accepted after 100", "scores", "yes or no", "accepted"),
)
CANARY = Row("estimate from canaries", "canaries", "model, delta 1e-05", "epsilon")
NOTHING = "nothing to attack"


@dataclass(frozen=True)
class Pooled:
    """A figure over all seeds."""

    value: float
    low: float
    high: float
    chance: float
    figure: str

    @classmethod
    def of(cls, found: Sequence[dict[str, Any]]) -> "Pooled":
        """Shares as if all people were of one run, which are others in each; of anything else the mean."""
        figure, count = found[0]["figure"], len(found)
        chance = mean(each["chance"] for each in found)
        if figure == AUC or figure.startswith("epsilon"):
            value = mean(each["value"] for each in found)
            below, above = (sum((each[end] - each["value"]) ** 2 for each in found) ** 0.5 for end in ("low", "high"))
            return cls(value, value - below / count, value + above / count, chance, figure)
        hits, trials = sum(each["value"] * each["trials"] for each in found), sum(each["trials"] for each in found)
        return cls(hits / trials, *share_interval(hits, trials), chance, figure)

    @property
    def leaks(self) -> bool:
        """More than twice chance, and more than chance beyond doubt. An area is told from chance or not."""
        if self.figure == AUC:
            return self.low > self.chance or self.high < self.chance
        return self.value > 2 * self.chance and self.low > self.chance

    def __str__(self) -> str:
        if self.figure.startswith("epsilon"):
            return (
                f"{self.value:,.3g} [{self.low:,.3g}, {self.high:,.3g}]"
                if self.value < 1000
                else f"{self.value:,.0f} [{self.low:,.0f}, {self.high:,.0f}]"
            )
        value = f"{100 * self.value:.1f}"
        return f"{f'**{value}**' if self.leaks else value} [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def pooled(found: Cells, system: str, defence: str, row: Row) -> Pooled | str:
    """Over the seeds that are there; or why there is no figure."""
    lines = [line for job, line in found.items() if (job.system, job.defence) == (system, defence)]
    if not lines or row.attack not in Job(system, defence).attacks:
        return NOT_RUN
    if any("refused" in line for line in lines):
        return "refused"
    figures = [each for line in lines for each in line["findings"] if "value" in each and row.has(each)]
    return Pooled.of(figures) if figures else NOTHING


def page(results: Path, target: Path) -> None:
    text, found = target.read_text(), cells(results)
    parts = {
        "summary": summary(found),
        "systems": systems(found),
        "defences": "\n".join(defences(found, system, NOISE_COLUMNS) for system in NOISED if defended(found, system)),
        "centres": "\n".join(defences(found, system, CENTRED) for system in WITH_ROWS),
        "canaries": watched(found),
    }
    for name, part in parts.items():
        before, opened, rest = text.partition(BEGIN.format(name))
        _, closed, after = rest.partition(END.format(name))
        if not opened or not closed:
            raise SystemExit(f"{target}: the marks of {name!r} are missing")
        text = f"{before}{opened}\n\n{part}\n{closed}{after}"
    write_text(target, text)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def summary(found: Cells) -> str:
    """Of the systems that were measured with each defence, how many are beyond twice chance."""
    columns = {
        "none": "no defence",
        **{
            name: f"`{name.split()[0]}` {' '.join(name.split()[1:])}".strip()
            for name in (*NOISE_COLUMNS[1:], *CENTRED[1:])
        },
    }
    rows = []
    for row in ROWS:
        cells = []
        for defence in columns:
            each = [pooled(found, system, defence, row) for system in SYSTEMS]
            there = [one for one in each if isinstance(one, Pooled)]
            if there:
                cells.append(f"{sum(one.leaks for one in there)} of {len(there)}")
            else:
                cells.append("nothing" if NOTHING in each else NOT_RUN)
        if any(cell not in (NOT_RUN, "nothing") for cell in cells):
            rows.append([row.label, *cells])
    return markdown(["systems beyond twice chance", *columns.values()], rows)


def systems(found: Cells) -> str:
    columns = [(system, "none") for system in SYSTEMS]
    return _table(found, columns, list(SYSTEMS.values()))


def defended(found: Cells, system: str) -> bool:
    return any(job.system == system and job.defence != "none" for job in found)


def defences(found: Cells, system: str, columns: Sequence[str]) -> str:
    labels = [
        "none",
        *(f"`{name.split()[0]}`, z = {name.split()[1]}" if " " in name else f"`{name}`" for name in columns[1:]),
    ]
    return _table(found, [(system, defence) for defence in columns], labels, title=SYSTEMS[system])


def _table(found: Cells, columns: Sequence[tuple[str, str]], labels: Sequence[str], title: str = "") -> str:
    rows = []
    made = {name for column in columns[1:] for name in Job(*column).attacks}
    for row in (row for row in ROWS if row.attack in made):
        each = [pooled(found, *column, row) for column in columns]
        there = [one for one in each if isinstance(one, Pooled)]
        if there:
            chances = sorted({f"{100 * one.chance:.1f}" for one in there}, key=float)
            rows.append([row.label, *map(str, each), " to ".join(dict.fromkeys((chances[0], chances[-1])))])
    lines = [[line for job, line in found.items() if (job.system, job.defence) == column] for column in columns]
    if any(line.get("epsilon") for each in lines for line in each):
        rows.append(["epsilon, delta 1e-5", *(_epsilon(each) for each in lines), ""])
    rows.append(["*TAR at FAR 1%, new people*", *(_mean(each, "tar", 100) for each in lines), "1.0"])
    rows.append(["*seeds*", *(str(len(each)) for each in lines), ""])
    return markdown([title or "attack and figure", *labels, "chance"], rows)


def _mean(lines: Sequence[dict[str, Any]], name: str, scale: float = 1) -> str:
    values = [line[name] for line in lines if name in line]
    return f"{scale * mean(values):.1f}" if values else NOT_RUN


def _epsilon(lines: Sequence[dict[str, Any]]) -> str:
    values = [value for line in lines for value in line.get("epsilon", ())]
    return f"{mean(values):,.0f}" if values else "none" if lines else NOT_RUN


def watched(found: Cells) -> str:
    """What canaries estimate beside what the accountant promises."""
    rows = []
    for defence in WATCHED:
        lines = [line for job, line in found.items() if (job.system, job.defence) == ("fedpe", defence)]
        noise = defence.partition(",")[0].removeprefix("noise ")
        rows.append(
            [
                f"z = {noise}" if "noise" in defence else "no noise",
                _epsilon(lines),
                str(pooled(found, "fedpe", defence, CANARY)),
                str(len(lines)),
            ]
        )
    return markdown(["FedPE with canaries", "epsilon of the accountant", "estimate from canaries", "seeds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "privacy-audits")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.work, options.minutes, options.seeds)
    else:
        page(options.results, PAGE)


if __name__ == "__main__":
    main()
