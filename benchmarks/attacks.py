"""The scoreboard of attacks: what each of them does to a small federation under each rule.

    python benchmarks/attacks.py run --minutes 10    # runs what is missing in docs/results/attacks.jsonl, one by one
    python benchmarks/attacks.py page                # writes the tables of docs/concepts/security.md from that file

A line of the file is one cell: one run. A cell that was measured with other settings than the present ones counts as
missing. What matters most comes first. The federation is ten clients with twelve synthetic people each, or forty with
six each. FedPE trains it for eight rounds, from a network that was pre-trained on 200 other people, one for each seed.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from personae.attacks import ATTACKS
from personae.attacks.infiltration import Infiltration
from personae.attacks.trial import deeds, infiltrated, standing
from personae.errors import Diverged, QuorumLost
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.files import write_text

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "attacks.jsonl", DOCS / "concepts" / "security.md"
BEGIN, END = "<!-- tables of benchmarks/attacks.py -->", "<!-- end of tables -->"

RULES = {
    "off": "no defence",
    "default": "default",
    "grouped": "`grouped`",
    "multi-krum": "Multi-Krum",
    "median": "median",
}
TRIGGERS = ("backdoor", "backdoor-accessory", "backdoor-victim")
FIRST = (  # attack and scale; those that matter most
    ("backdoor", 1),
    ("backdoor", 4),
    ("label-flip", 8),
    ("sign-flip", 8),
    ("inflated-counts", 1),
    ("alie", 1),
    ("equal-updates", 8),
)
REST = (
    ("model-replacement", 1),
    ("backdoor-accessory", 1),
    ("backdoor-victim", 4),
    ("sign-flip", 1),
    ("inner-product", 1),
    ("noise", 8),
    ("impossible-statistics", 1),
    ("free-rider", 1),
    ("replay", 1),
    ("stale", 1),
    ("poisoned-rows", 8),
)


@dataclass(frozen=True)
class Job:
    """One run."""

    rule: str  # off: the mean without any defence; default: what everybody has; or a rule
    attack: str = ""
    scale: float = 1
    share: float = 0.2
    seed: int = 0
    clients: int = 10
    by: str = "equal"
    algorithm: str = "fedpe"

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The aggregation, and the firewall: the rules of others stand alone, ours within the default."""
        if self.rule in ("default", "grouped"):
            return {"name": "mean" if self.rule == "default" else self.rule}, {}
        name = "mean" if self.rule == "off" else self.rule
        faulty = {"faulty": max(1, round(self.share * self.clients))} if name == "multi-krum" else {}
        return {"name": name, **faulty}, {"enabled": False}


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    ours, others = ("default", "off"), ("grouped", "multi-krum", "median")
    yield from at_a_fifth(0, ours)
    yield from honest_of_other_kinds(0)
    yield from at_a_fifth(0, others)
    yield from extremes(ours)
    for seed in range(1, seeds):
        yield from at_a_fifth(seed, ours)
    yield from crowds()
    yield from the_rest()
    for seed in range(1, seeds):
        yield from at_a_fifth(seed, others)
        yield from honest_of_other_kinds(seed)
    yield from extremes(others)


def at_a_fifth(seed: int, rules: Iterable[str]) -> Iterator[Job]:
    """Nobody, and two clients of ten, with the attacks that matter most."""
    for name, scale in (("", 1), *FIRST):
        for rule in rules:
            yield Job(rule, name, scale, seed=seed)


def extremes(rules: Iterable[str]) -> Iterator[Job]:
    """Three clients of ten, and one of ten."""
    for share in (0.3, 0.1):
        for name, scale in FIRST:
            for rule in rules:
                yield Job(rule, name, scale, share)


def the_rest() -> Iterator[Job]:
    for name, scale in REST:
        algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
        for rule in ("default", "off"):
            yield Job(rule, name, scale, algorithm=algorithm)


def crowds() -> Iterator[Job]:
    """Eight clients of forty."""
    for name, scale in (("", 1), *FIRST):
        for rule in ("default", "off"):
            yield Job(rule, name, scale, clients=40)


def honest_of_other_kinds(seed: int) -> Iterator[Job]:
    for rule in ("off", "default", "grouped"):
        yield Job(rule, seed=seed, by="lognormal-images")
        yield Job(rule, seed=seed, by="one-identity", algorithm="fedface")
    for rule in ("off", "default"):
        yield Job(rule, seed=seed, algorithm="fedgc")


def experiment(job: Job, weights: Path | None) -> Experiment:
    """What a job runs; without `weights`, the pre-training that gives them."""
    margin = {"kind": "cosface", "scale": 24.0, "margin": 0.2}
    aggregation, firewall = job.settings()
    each = 1 if job.by == "one-identity" else 12 if job.clients == 10 else 6
    pretrain = {
        "name": "pretrain",
        "rounds": 8,
        "algorithm": {
            "name": "pretrain",
            "margin": margin,
            "training": {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15},
        },
    }
    one = job.algorithm == "fedface"  # it trains on positive pairs alone
    federate = {
        "name": "federate",
        "rounds": 8,
        "aggregation": aggregation,
        "quorum": 0.3,
        "algorithm": {
            "name": job.algorithm,
            "batch_norm": "auto" if one else "train",  # with given weights the default would be to keep statistics
            "training": {"lr": 0.05, "batch_size": 32, "epochs": 3},
            **({} if one else {"margin": margin}),
            **({"strength": 0.1} if job.algorithm == "fedgc" else {}),
        },
    }
    lognormal = {"mu": 3.5, "sigma": 1.0} if job.by == "lognormal-images" else {}
    plan = {
        "name": "attacks",
        "seed": job.seed,
        "network": {"name": "small", "embedding": 64, "height": 32, "width": 32},
        "data": {
            "private": {"source": "synthetic", "first": 200, "identities": each * job.clients, "images": 12},
            "heldout": {"source": "synthetic", "first": 1000, "identities": 100, "images": 8},
        },
        "partition": {"by": job.by, "clients": job.clients, **lognormal},
        "evaluation": {"pairs_per_fold": 200},
        "firewall": firewall,
        "stages": [federate if weights else pretrain],
    }
    if weights:
        plan["weights"] = str(weights)
    else:
        plan["data"]["public"] = {"source": "synthetic", "identities": 200, "images": 12}  # type: ignore[index]
    return parse_experiment(plan, "benchmarks/attacks.py")


@cache
def settings_of(job: Job) -> str:
    """Another for other settings, the defaults of the defences included."""
    plans = [experiment(job, Path("start.safetensors")), experiment(Job("off", seed=job.seed), None)]
    return hashlib.sha256(json.dumps([plan.resolved() for plan in plans], sort_keys=True).encode()).hexdigest()[:12]


@cache
def pretrained(seed: int, work: Path) -> Path:
    run = work / f"pretrain-{seed}-{settings_of(Job('off', seed=seed))}"
    weights = run / "models" / "pretrain.safetensors"
    if not weights.exists():
        conduct(experiment(Job("off", seed=seed), None), run, Execution())
    return weights


def tried(job: Job, weights: Path) -> dict[str, Any]:
    """The figures of one run, and of an honest one how often each trigger is accepted."""
    began = time.monotonic()
    plan = experiment(job, weights)
    plot = Infiltration(ATTACKS[job.attack or "backdoor"](scale=job.scale), job.share, job.seed)
    result: dict[str, Any] = {**asdict(job), "settings": settings_of(job)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            conduct(plan, out, Execution(), **({"connect": partial(infiltrated, plot=plot)} if job.attack else {}))
        except (Diverged, QuorumLost) as error:
            result["ended"] = str(error)
        else:
            materials = Materials(plan)
            for name in (job.attack,) if job.attack else TRIGGERS:
                found = standing(out, plan, materials, Infiltration(ATTACKS[name](), job.share, job.seed))
                result |= {"tar": found.tar, f"accepted/{name}": found.accepted}
        attackers = set(plot.attackers(Materials(plan).clients)) if job.attack else set()
        for what, counts in deeds(out).items():
            result[f"{what}: attackers"] = sum(count for name, count in counts.items() if name in attackers)
            result[f"{what}: honest"] = sum(count for name, count in counts.items() if name not in attackers)
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def cells(results: Path) -> dict[Job, dict[str, Any]]:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found = {Job(**{each.name: line[each.name] for each in fields(Job)}): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, work: Path, minutes: float, seeds: int, part: int, parts: int) -> None:
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    known = cells(results)
    missing = [job for job in list(dict.fromkeys(jobs(seeds)))[part - 1 :: parts] if job not in known]
    print(f"{len(known)} cells are there, {len(missing)} are missing", flush=True)
    for job in missing:
        if time.monotonic() > deadline:
            break
        line = json.dumps(tried(job, pretrained(job.seed, work)))
        with results.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


# ------------------------------------------------------------------------------------------------ the page


def page(results: Path, target: Path) -> None:
    text = target.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(target, f"{before}{BEGIN}\n\n{tables(cells(results))}\n{END}{after}")


def tables(found: dict[Job, dict[str, Any]]) -> str:
    """Every table of the page, from the cells that are there."""
    parts = [
        _scoreboard("20% of 10 clients", found, 0.2, 10, (*FIRST, *REST)),
        _scoreboard("10% of 10 clients", found, 0.1, 10, FIRST),
        _scoreboard("30% of 10 clients", found, 0.3, 10, FIRST),
        _scoreboard("20% of 40 clients", found, 0.2, 40, FIRST),
        _honest(found),
        _deeds(found),
    ]
    return "\n".join(parts)


def _scoreboard(
    title: str, found: dict[Job, dict[str, Any]], share: float, clients: int, attacks: Iterable[Any]
) -> str:
    columns: dict[tuple[str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for job, line in found.items():
        usual = job.clients == clients and job.by == "equal" and (job.share == share or not job.attack)
        if usual and (job.algorithm == "fedpe" or job.attack):
            columns[job.attack, job.scale, job.rule].append(line)
    rules = [rule for rule in RULES if any(key[2] == rule for key in columns)]
    rows = [f"| {title} | " + " | ".join(RULES[rule] for rule in rules) + " |", "|---" * (1 + len(rules)) + "|"]
    rows += [_row("nobody attacks", columns, ("", 1), rules, "")]
    for trigger, what in zip(TRIGGERS, ("patch", "glasses", "victim"), strict=True):
        rows += [_row(f"nobody attacks: accepted, {what}", columns, ("", 1), rules, trigger, rate_alone=True)]
    for name, scale in attacks:
        if any(columns.get((name, scale, rule)) for rule in rules):
            label = f"`{name}`" + (f", x{scale:g}" if scale != 1 else "")
            rows.append(_row(label, columns, (name, scale), rules, name))
    return "\n".join(rows) + "\n"


def _row(
    label: str, columns: Any, entry: tuple[str, float], rules: list[str], trigger: str, *, rate_alone: bool = False
) -> str:
    shown = [_cell(columns.get((*entry, rule), []), trigger, rate_alone=rate_alone) for rule in rules]
    return f"| {label} | " + " | ".join(shown) + " |"


def _cell(lines: list[dict[str, Any]], trigger: str, *, rate_alone: bool = False) -> str:
    """TAR / acceptance of the trigger, in percent: means over seeds, whose number is in brackets."""
    if not lines:
        return "–"
    lived = [line for line in lines if "ended" not in line]
    if len(lived) < len(lines):
        return f"{len(lines) - len(lived)} of {len(lines)} ended"
    rates = [line[f"accepted/{trigger}"] for line in lived if line.get(f"accepted/{trigger}") is not None]
    accepted = f"{100 * statistics.mean(rates):.1f}" if rates else ""
    tar = f"{100 * statistics.mean(line['tar'] for line in lived):.1f}"
    text = accepted or "–" if rate_alone else " / ".join(filter(None, (tar, accepted)))
    return f"{text} ({len(lived)})"


def _honest(found: dict[Job, dict[str, Any]]) -> str:
    kinds = {
        ("equal", "fedpe", 10): "of one size",
        ("lognormal-images", "fedpe", 10): "log-normal, 17 to 277 images",
        ("one-identity", "fedface", 10): "one person each (FedFace)",
        ("equal", "fedgc", 10): "of one size (FedGC)",
        ("equal", "fedpe", 40): "of one size, 40 clients",
    }
    rules = ("off", "default", "grouped")
    rows = ["| honest clients | " + " | ".join(RULES[rule] for rule in rules) + " |", "|---" * 4 + "|"]
    for (by, algorithm, clients), label in kinds.items():
        shown = []
        for rule in rules:
            same = (rule, "", by, algorithm, clients)
            lines = [each for j, each in found.items() if (j.rule, j.attack, j.by, j.algorithm, j.clients) == same]
            shown.append(_cell(lines, ""))
        rows.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(rows) + "\n"


def _deeds(found: dict[Job, dict[str, Any]]) -> str:
    """What the server did about honest clients and attackers, in all runs with the default."""
    lines = [line for job, line in found.items() if job.rule == "default" and job.by == "equal"]
    attacked, honest = ([line for line in lines if bool(line["attack"]) == kind] for kind in (True, False))
    rows = ["| under the default, rounds in which an update was | refused | left out | drawn back |", "|---" * 4 + "|"]
    for label, some, whom in (
        (f"of honest clients, in {len(honest)} honest runs", honest, "honest"),
        (f"of honest clients, in {len(attacked)} attacked runs", attacked, "honest"),
        (f"of attackers, in {len(attacked)} attacked runs", attacked, "attackers"),
    ):
        sums = [sum(line.get(f"{what}: {whom}", 0) for line in some) for what in ("refused", "left out", "drawn back")]
        rows.append(f"| {label} | " + " | ".join(map(str, sums)) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "attacks-scoreboard")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", default="1/1", help="of the cells, for several processes: 1/2 and 2/2")
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.work, options.minutes, options.seeds, *map(int, options.part.split("/")))
    else:
        page(options.results, PAGE)


if __name__ == "__main__":
    main()
