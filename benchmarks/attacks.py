"""The scoreboard of attacks: what each of them does to a small federation under each rule.

    python benchmarks/attacks.py --minutes 10    # runs what is missing in docs/results/attacks.jsonl, one by one
    python benchmarks/attack_pages.py            # writes the tables of the pages from that file

A line of the file is one cell: one run. A cell that was measured with other settings than the present ones counts as
missing. What matters most comes first. The federation is ten clients with twelve synthetic people each, or forty with
six each. FedPE trains it for eight rounds, from a network that was pre-trained on 200 other people, one for each seed.
"""

import argparse
import fcntl
import hashlib
import json
import shutil
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
from personae.runtime.firewall import DEFENCE

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS / "results" / "attacks.jsonl"

RULES = {
    "off": "no defence",
    "default": "default",
    "grouped": "`grouped`",
    "multi-krum": "Multi-Krum",
    "median": "median",
    "trimmed-mean": "trimmed mean",
    "geometric-median": "geometric median",
    "bucketing": "bucketing",
}
FURTHER = ("trimmed-mean", "geometric-median", "bucketing")
SYSTEMS = {
    "fedgc": "FedGC",
    "fedface": "FedFace",
    "fedfr": "FedFR",
    "hf_maml": "HF-MAML",
    "unsupervised": "unsupervised FedFR",
}
SEND_ROWS = {  # algorithms whose clients send class embeddings
    "fedgc": "FedGC",
    "fedface": "FedFace",
    "fedavg": "FedAvg",
    "hf_maml_global": "HF-MAML with a global layer",
    "oracle": "the oracle, whose clients get everybody's",
}
MARGIN = {"kind": "cosface", "scale": 24.0, "margin": 0.2}
TRIGGERS = {"backdoor": "the patch", "backdoor-accessory": "the glasses", "backdoor-victim": "the intruder"}
SEEDS = range(3)
CHOSEN_ON = (100,)  # the seed on which the defence was set up, against those who know it
FRESH = range(6, 9)  # seeds on which nothing was chosen
FIRST = (  # attack and scale; those that matter most
    ("backdoor", 1),
    ("backdoor", 4),
    ("label-flip", 8),
    ("sign-flip", 8),
    ("inflated-counts", 1),
    ("alie", 1),
    ("equal-updates", 8),
)
BEYOND = (("bounded-counts", 1.5), ("backdoor-counts", 1))  # by who knows the bounds of our defence
KNOWING = (  # made against our defence: as far as it allows, and not quite so far, so that less is noticed
    ("backdoor-split", 1),
    ("backdoor-split", 0.8),
    ("hidden-flip", 1),
    ("hidden-flip", 0.8),
    ("skewed-statistics", 1),
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
        """The aggregation, and the firewall: the rules of others stand alone, ours within the default.

        Bucketing is the median of means of two.
        """
        if self.rule in ("default", "grouped"):
            return {"name": "mean" if self.rule == "default" else self.rule}, {}
        name = {"off": "mean", "bucketing": "median"}.get(self.rule, self.rule)
        attackers = max(1, round(self.share * self.clients))
        options: dict[str, dict[str, Any]] = {
            "multi-krum": {"faulty": attackers},
            "trimmed-mean": {"cut": attackers / self.clients},
            "bucketing": {"before": [{"name": "bucketing", "size": 2}]},
        }
        return {"name": name, **options.get(self.rule, {})}, {"enabled": False}


Cells = dict[Job, dict[str, Any]]


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    ours, others = ("default", "off"), ("grouped", "multi-krum", "median")
    for seed in (*FRESH, *CHOSEN_ON):
        yield from attacked(seed, (*ours, "grouped"), KNOWING)
    for seed in range(seeds):
        yield from attacked(seed, ours, FIRST)
    for seed in range(seeds):
        yield from attacked(seed, others, FIRST)
        yield from honest_of_other_kinds(seed)
        yield from attacked(seed, ours, REST)
        yield from poisoned(seed)
        yield from attacked(seed, ours, FIRST, 0.3)
        yield from attacked(seed, ours, FIRST, clients=40)
        yield from attacked(seed, ours, FIRST, 0.1)
    for seed in range(seeds):
        yield from attacked(seed, others, REST)
        yield from attacked(seed, FURTHER, FIRST)
    for share in (0.3, 0.1):
        for seed in range(seeds):
            yield from attacked(seed, others, FIRST, share)
    for rules in (ours, others):
        for seed in range(seeds):
            for share in (0.2, 0.3, 0.1):
                yield from attacked(seed, rules, FIRST, share, clients=40)
    for rules in (ours, others):
        for seed in range(seeds):
            for clients in (10, 40):
                yield from attacked(seed, rules, BEYOND, clients=clients)
    for seed in range(seeds):
        yield from honest(seed, SYSTEMS)  # FedFR takes as long as thirty other cells
    for share in (0.3, 0.1):
        for seed in range(seeds):
            yield from attacked(seed, FURTHER, FIRST, share)
    for share in (0.2, 0.3, 0.1):
        for seed in range(seeds):
            yield from attacked(seed, FURTHER, FIRST, share, clients=40)
    for clients, shares in ((10, (0.3, 0.1)), (40, (0.2, 0.3, 0.1))):
        for share in shares:
            for seed in range(seeds):
                yield Job("off", seed=seed, clients=clients, algorithm="fedgc")  # what poisoned rows are compared with
                yield from attacked(seed, ours, REST, share, clients=clients)


def attacked(
    seed: int, rules: Iterable[str], attacks: Iterable[tuple[str, float]], share: float = 0.2, clients: int = 10
) -> Iterator[Job]:
    """Nobody, and this share of the clients."""
    for name, scale in (("", 1), *attacks):
        algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
        for rule in rules:
            yield Job(rule, name, scale, share if name else 0.2, seed, clients, algorithm=algorithm)


def poisoned(seed: int) -> Iterator[Job]:
    for algorithm in SEND_ROWS:
        for rule in ("default", "off"):
            yield Job(rule, seed=seed, algorithm=algorithm)
            yield Job(rule, "poisoned-rows", 8, seed=seed, algorithm=algorithm)


def honest_of_other_kinds(seed: int) -> Iterator[Job]:
    for rule in RULES:
        yield Job(rule, seed=seed, by="lognormal-images")
        yield Job(rule, seed=seed, by="one-identity", algorithm="fedface")
    for algorithm in ("fedgc", "fedface", "hf_maml", "unsupervised"):
        yield Job("grouped", seed=seed, algorithm=algorithm)
    yield from honest(seed, SYSTEMS if seed == 0 else [name for name in SYSTEMS if name != "fedfr"])


def honest(seed: int, algorithms: Iterable[str]) -> Iterator[Job]:
    for algorithm in algorithms:
        for rule in ("off", "default"):
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
    meta = {"inner_lr": 0.01, "lr": 0.1, "momentum": 0.9, "delta": 0.001, "batch_size": 16, "iterations": 8}
    steps = {"margin": {"kind": "arcface", "scale": 8.0, "margin": 0.5}, "head_init": "mean", "meta": meta}
    special: dict[str, dict[str, Any]] = {
        "fedgc": {"strength": 0.1},
        "fedface": {"strength": 0.25},
        "fedfr": {
            "one_vs_all": {"scale": 24.0, "margin": 0.2},
            "sampling": {"threshold": 0.7},
            "training": {"lr": 0.016, "batch_size": 32, "epochs": 3, "schedule": "linear"},
        },
        "hf_maml": steps,
        "hf_maml_global": steps,
        "unsupervised": {"strength": 0.0, "training": {"lr": 0.02, "batch_size": 32, "iterations": 20}},
    }
    usual = {"margin": MARGIN}
    if job.algorithm in ("fedpe", "fedavg", "fedgc", "fedface", "oracle"):
        usual |= {"batch_norm": "train", "training": training}
    return usual | special.get(job.algorithm, {})


@cache
def settings_of(job: Job, defence: int = DEFENCE) -> str:
    """Another for other settings of these runs, and another for every version of the defence, where there is one."""
    aggregation, firewall = job.settings()
    aggregation.pop("before", None)  # it is in the plan
    rule = AGGREGATIONS[aggregation.pop("name")](**aggregation)
    content = [plan_of(job, Path("start")), plan_of(Job("off", seed=job.seed), None), firewall or {"defence": defence}]
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
    plot = Infiltration(ATTACKS[job.attack or "backdoor"](scale=job.scale), job.share, job.seed, plan.firewall)
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


def cells(results: Path, defence: int = DEFENCE) -> Cells:
    """What was measured with the present settings and this version of the defence; of two lines the later one."""
    found: Cells = {}
    for line in map(json.loads, results.read_text().splitlines()) if results.exists() else ():
        job = Job(**{each.name: line[each.name] for each in fields(Job)})
        if line["settings"] == settings_of(job, defence):
            found[job] = line
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "attacks-scoreboard")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    options = parser.parse_args()
    run(options.results, options.work, options.minutes, options.seeds, options.rules)


if __name__ == "__main__":
    main()
