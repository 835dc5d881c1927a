"""The scoreboard of attacks: what each of them does to a small federation under each rule.

    python benchmarks/attacks.py run --minutes 10    # runs what is missing in docs/results/attacks.jsonl, one by one
    python benchmarks/attacks.py page                # writes the tables of docs/concepts/security.md from that file

A line of the file is one cell: one run. A cell that was measured with other settings than the present ones counts as
missing. What matters most comes first. The federation is ten clients with twelve synthetic people each, or forty with
six each. FedPE trains it for eight rounds, from a network that was pre-trained on 200 other people, one for each seed.
"""

import argparse
import fcntl
import hashlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from personae.aggregation import AGGREGATIONS
from personae.attacks import ATTACKS
from personae.attacks.infiltration import Infiltration
from personae.attacks.trial import deeds, infiltrated, standing
from personae.core.events import PersonalEvaluation, events
from personae.errors import Diverged, QuorumLost
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.files import write_text
from personae.runtime.firewall import Firewall
from personae.words import counted

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "attacks.jsonl", DOCS / "concepts" / "security.md"
BEGIN, END = "<!-- tables of benchmarks/attacks.py -->", "<!-- end of tables -->"

RULES = {
    "off": "no defence",
    "default": "default",
    "grouped": "`grouped`",
    "multi-krum": "Multi-Krum",
    "median": "median",
    "trimmed-mean": "trimmed mean",
    "geometric-median": "geometric median",
}
SYSTEMS = ("fedgc", "fedface", "fedfr", "hf_maml", "unsupervised")
MARGIN = {"kind": "cosface", "scale": 24.0, "margin": 0.2}
TRIGGERS = {"backdoor": "patch", "backdoor-accessory": "glasses", "backdoor-victim": "victim"}
SEEDS = range(3)
NOT_RUN = "–"
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
        attackers = max(1, round(self.share * self.clients))
        known = {"multi-krum": {"faulty": attackers}, "trimmed-mean": {"cut": attackers / self.clients}}
        return {"name": name, **known.get(name, {})}, {"enabled": False}


Cells = dict[Job, dict[str, Any]]


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    ours, others = ("default", "off"), ("grouped", "multi-krum", "median")
    yield from attacked(seeds, ours, FIRST)
    yield from honest_of_other_kinds(seeds)
    yield from attacked(seeds, others, FIRST)
    yield from attacked(seeds, ours, REST)
    for share in (0.3, 0.1):
        yield from attacked(seeds, ours, FIRST, share)
    yield from attacked(seeds, ours, FIRST, clients=40)
    yield from attacked(seeds, others, REST)
    yield from attacked(seeds, ("trimmed-mean", "geometric-median"), FIRST)
    for share in (0.3, 0.1):
        yield from attacked(seeds, others, FIRST, share)
    yield from attacked(seeds, others, FIRST, clients=40)
    for share in (0.3, 0.1):
        yield from attacked(seeds, (*ours, *others), FIRST, share, clients=40)


def attacked(
    seeds: int, rules: Iterable[str], attacks: Iterable[tuple[str, float]], share: float = 0.2, clients: int = 10
) -> Iterator[Job]:
    """This share of the clients, and nobody."""
    for seed in range(seeds):
        for name, scale in (("", 1), *attacks):
            algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
            for rule in rules:
                yield Job(rule, name, scale, share if name else 0.2, seed, clients, algorithm=algorithm)


def honest_of_other_kinds(seeds: int) -> Iterator[Job]:
    for seed in range(seeds):
        for rule in ("off", "default", "grouped"):
            yield Job(rule, seed=seed, by="lognormal-images")
            yield Job(rule, seed=seed, by="one-identity", algorithm="fedface")
            for algorithm in SYSTEMS:
                yield Job(rule, seed=seed, algorithm=algorithm)


def experiment(job: Job, weights: Path | None) -> Experiment:
    """What a job runs; without `weights`, the pre-training that gives them."""
    return parse_experiment(plan_of(job, weights), "benchmarks/attacks.py")


def plan_of(job: Job, weights: Path | None) -> dict[str, Any]:
    aggregation, firewall = job.settings()
    each = 1 if job.by == "one-identity" else 12 if job.clients == 10 else 6
    pretrain = {
        "name": "pretrain",
        "rounds": 8,
        "algorithm": {
            "name": "pretrain",
            "margin": MARGIN,
            "training": {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15},
        },
    }
    federate = {
        "name": "federate",
        "rounds": 8,
        "aggregation": aggregation,
        "quorum": 0.3,
        "algorithm": {"name": job.algorithm, **settings_of_algorithm(job)},
    }
    lognormal = {"mu": 3.5, "sigma": 1.0} if job.by == "lognormal-images" else {}
    plan: dict[str, Any] = {
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
    if not weights or job.algorithm == "fedfr":
        plan["data"]["public"] = {"source": "synthetic", "identities": 200, "images": 12}
    return plan


def settings_of_algorithm(job: Job) -> dict[str, Any]:
    """With given weights the default would be to keep BatchNorm's statistics, so it is set where clients can train."""
    training = {"lr": 0.05, "batch_size": 32, "epochs": 3}
    if job.by == "one-identity":  # it trains on positive pairs alone
        return {"batch_norm": "auto", "training": training}
    special: dict[str, dict[str, Any]] = {
        "fedgc": {"strength": 0.1},
        "fedface": {"strength": 0.25},
        "fedfr": {
            "one_vs_all": {"scale": 24.0, "margin": 0.2},
            "sampling": {"threshold": 0.7},
            "training": {"lr": 0.016, "batch_size": 32, "epochs": 3, "schedule": "linear"},
        },
        "hf_maml": {
            "margin": {"kind": "arcface", "scale": 8.0, "margin": 0.5},
            "head_init": "mean",
            "meta": {"inner_lr": 0.01, "lr": 0.1, "momentum": 0.9, "delta": 0.001, "batch_size": 16, "iterations": 8},
        },
        "unsupervised": {"strength": 0.0, "training": {"lr": 0.02, "batch_size": 32, "iterations": 20}},
    }
    usual = {"margin": MARGIN}
    if job.algorithm in ("fedpe", "fedgc", "fedface"):
        usual |= {"batch_norm": "train", "training": training}
    return usual | special.get(job.algorithm, {})


@cache
def settings_of(job: Job) -> str:
    """Another for other settings of these runs, and for other defaults of the defences."""
    aggregation, firewall = job.settings()
    rule = AGGREGATIONS[aggregation.pop("name")](**aggregation)
    content = [plan_of(job, Path("start")), plan_of(Job("off", seed=job.seed), None), asdict(Firewall(**firewall))]
    return hashlib.sha256(json.dumps([*content, asdict(rule)], sort_keys=True).encode()).hexdigest()[:12]


@cache
def pretrained(seed: int, work: Path) -> Path:
    run = work / f"pretrain-{seed}-{settings_of(Job('off', seed=seed))}"
    weights = run / "models" / "pretrain.safetensors"
    if not weights.exists():
        conduct(experiment(Job("off", seed=seed), None), run, Execution())
    return weights


def tried(job: Job, weights: Path, model: Path) -> dict[str, Any]:
    """The figures of one run, and of an honest one how often each trigger is accepted. Its `model` is kept."""
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
            model.parent.mkdir(exist_ok=True)
            shutil.copy(out / "models" / "federate.safetensors", model)
            if not job.attack:
                result["worst"] = worst_client(out)
        attackers = set(plot.attackers(Materials(plan).clients)) if job.attack else set()
        for what, counts in deeds(out).items():
            result[f"{what}: attackers"] = sum(count for name, count in counts.items() if name in attackers)
            result[f"{what}: honest"] = sum(count for name, count in counts.items() if name not in attackers)
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def worst_client(folder: Path) -> float | None:
    """The lowest rank-1 rate of a client with its own people, after the last round."""
    with (folder / "metrics.jsonl").open("rb") as lines:
        last = [event for event in events(lines, folder) if isinstance(event, PersonalEvaluation)][-1]
    rates = [figures["global/rank1"] for figures in last.clients.values() if "global/rank1" in figures]
    return min(rates, default=None)  # who has one person confuses nobody


def cells(results: Path) -> Cells:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found = {Job(**{each.name: line[each.name] for each in fields(Job)}): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, work: Path, minutes: float, seeds: int, rules: Iterable[str]) -> None:
    """Several processes may do this with one file: each takes what is not there and what no other has begun."""
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    wanted = [job for job in dict.fromkeys(jobs(seeds)) if job.rule in rules]
    print(f"{len(wanted)} cells, of which {len(set(wanted) - set(cells(results)))} are missing", flush=True)
    for job in wanted:
        if time.monotonic() > deadline:
            break
        with begun(job, work) as mine:
            if not mine or job in cells(results):
                continue
            line = json.dumps(tried(job, pretrained(job.seed, work), kept(job, work)))
            with results.open("a") as file:
                file.write(line + "\n")
        print(line, flush=True)


@contextmanager
def begun(job: Job, work: Path) -> Iterator[bool]:
    """Whether nobody else is at this cell; until the end, or until the process dies, nobody else will be."""
    folder = work / "begun"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / named(job)).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def named(job: Job) -> str:
    return "-".join(str(value) for value in asdict(job).values() if value != "")


def kept(job: Job, work: Path) -> Path:
    """Where the model of a cell stays, for other measurements."""
    return work / "models" / f"{named(job)}-{settings_of(job)}.safetensors"


# ------------------------------------------------------------------------------------------------ the page


def page(results: Path, target: Path) -> None:
    text = target.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(target, f"{before}{BEGIN}\n\n{tables(cells(results))}\n{END}{after}")


def tables(found: Cells) -> str:
    """Every table of the page, from the cells that are there."""
    parts = [
        _scoreboard("20% of 10 clients", found, 0.2, 10, ("", *TRIGGERS), (*FIRST, *REST)),
        _scoreboard("10% of 10 clients", found, 0.1, 10, (), FIRST),
        _scoreboard("30% of 10 clients", found, 0.3, 10, (), FIRST),
        _scoreboard("20% of 40 clients", found, 0.2, 40, ("", *TRIGGERS), FIRST),
        _deeds(found),
        "## What it costs honest clients\n",
        "The table has the TAR without any attacker, measured as above. The figure after the stroke is of the client\n"
        "for which the model works worst: how often the nearest image is of the same person.\n",
        _honest(found),
    ]
    return "\n".join(filter(None, parts))


def _scoreboard(
    title: str, found: Cells, share: float, clients: int, honest: Iterable[str], attacks: Iterable[tuple[str, float]]
) -> str:
    """`honest`: of runs that nobody attacks, the TAR ("") and how often these triggers are accepted."""
    rows = []
    for trigger in honest:
        label = "nobody attacks" + (f": accepted, {TRIGGERS[trigger]}" if trigger else "")
        lines = [[found.get(Job(rule, seed=seed, clients=clients)) for seed in SEEDS] for rule in RULES]
        rows.append((label, [_cell(each, found, trigger, with_tar=not trigger) for each in lines]))
    for name, scale in attacks:
        label = f"`{name}`" + (f", x{scale:g}" if scale != 1 else "")
        algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
        jobs = [[Job(rule, name, scale, share, seed, clients, algorithm=algorithm) for seed in SEEDS] for rule in RULES]
        cells = [_cell([found.get(job) for job in each], found, name) for each in jobs]
        if any(cell != NOT_RUN for cell in cells):
            rows.append((label, cells))
    if all(label.startswith("nobody") for label, _ in rows):
        return ""
    head = [f"| {title} | " + " | ".join(RULES.values()) + " |", "|---" * (1 + len(RULES)) + "|"]
    return "\n".join([*head, *(f"| {label} | " + " | ".join(cells) + " |" for label, cells in rows)]) + "\n"


def _cell(
    lines: Iterable[dict[str, Any] | None],
    found: Cells,
    trigger: str = "",
    *,
    with_tar: bool = True,
    with_worst: bool = False,
) -> str:
    """TAR, how much that is more than without defence and attack, and a rate: in percent, means over seeds."""
    there = [line for line in lines if line]
    if not there:
        return NOT_RUN
    lived = [line for line in there if "ended" not in line]
    if len(lived) < len(there):
        return f"{len(there) - len(lived)} of {len(there)} ended"
    rates = [line.get("worst" if with_worst else f"accepted/{trigger}") for line in lived]
    parts = []
    if with_tar:
        parts.append(f"{100 * statistics.mean(line['tar'] for line in lived):.1f}")
        gains = [gain for line in lived if (gain := _gain(line, found)) is not None]
        if len(gains) == len(lived):
            parts[0] += f" {100 * statistics.mean(gains):+.1f}"
    if None not in rates:
        parts.append(f"{100 * statistics.mean(rates):.1f}")
    return " / ".join(parts) + f" ({len(lived)})" if parts else NOT_RUN


def _gain(line: dict[str, Any], found: Cells) -> float | None:
    """Against the honest run without defence of the same seed, clients and algorithm; None for that itself."""
    if line["rule"] == "off" and not line["attack"]:
        return None
    same = {name: line[name] for name in ("seed", "clients", "by", "algorithm")}
    beside = found.get(Job("off", **same))
    return line["tar"] - beside["tar"] if beside else None


def _honest(found: Cells) -> str:
    kinds = {
        "of one size": {},
        "log-normal, 17 to 277 images": {"by": "lognormal-images"},
        "one person each (FedFace)": {"by": "one-identity", "algorithm": "fedface"},
        "of one size (FedGC)": {"algorithm": "fedgc"},
        "of one size, 40 clients": {"clients": 40},
    }
    rules = ("off", "default", "grouped")
    rows = ["| honest clients | " + " | ".join(RULES[rule] for rule in rules) + " |", "|---" * 4 + "|"]
    for label, kind in kinds.items():
        lines = [[found.get(Job(rule, seed=seed, **kind)) for seed in SEEDS] for rule in rules]  # type: ignore[arg-type]
        worst = "one person" not in label  # who has one person confuses nobody
        cells = [_cell(each, found, with_worst=worst) for each in lines]
        if any(cell != NOT_RUN for cell in cells):
            rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _deeds(found: Cells) -> str:
    """What the server did about honest clients and attackers, in all runs with the default."""
    lines = [line for job, line in found.items() if job.rule == "default"]
    attacked, honest = ([line for line in lines if bool(line["attack"]) == kind] for kind in (True, False))
    rows = ["| rounds in which an update was, under the default | refused | left out | drawn back |", "|---" * 4 + "|"]
    for label, some, whom in (
        (f"of honest clients, in {counted(len(honest), 'honest run')}", honest, "honest"),
        (f"of honest clients, in {counted(len(attacked), 'attacked run')}", attacked, "honest"),
        (f"of attackers, in {counted(len(attacked), 'attacked run')}", attacked, "attackers"),
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
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.work, options.minutes, options.seeds, options.rules)
    else:
        page(options.results, PAGE)


if __name__ == "__main__":
    main()
