"""The scoreboard of attacks: what each of them does to a small federation under each rule.

    python benchmarks/attacks.py --out attacks.jsonl --processes 8 --minutes 8

A line of the result is one run. Runs that are in the file already are not repeated. `--table` prints what is there.
The federation is ten clients (or forty) with twelve people each, FedPE from a network that was pre-trained on 100 other
people, eight rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from personae.aggregation import AGGREGATIONS
from personae.attacks import ATTACKS
from personae.attacks.infiltration import Infiltration
from personae.attacks.trial import deeds, infiltrated, standing
from personae.errors import Diverged, QuorumLost
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.run import conduct

BACKDOORS = ("backdoor", "backdoor-accessory", "backdoor-victim", "model-replacement")
ENTRIES = (  # attack and scale
    ("backdoor", 1),
    ("backdoor", 4),
    ("sign-flip", 8),
    ("label-flip", 8),
    ("inflated-counts", 1),
    ("equal-updates", 8),
    ("alie", 1),
    ("model-replacement", 1),
    ("noise", 8),
    ("inner-product", 1),
    ("sign-flip", 1),
    ("impossible-statistics", 1),
    ("backdoor-accessory", 1),
    ("backdoor-victim", 4),
    ("free-rider", 1),
    ("replay", 1),
    ("stale", 1),
    ("poisoned-rows", 8),
)
OFF = {"enabled": False}


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

    @property
    def algorithm(self) -> str:
        return "fedgc" if self.attack == "poisoned-rows" else "fedpe"

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The aggregation, and the firewall."""
        faulty = max(1, round(self.share * self.clients))
        match self.rule:
            case "off":
                return {"name": "mean"}, OFF
            case "default":
                return {"name": "mean"}, {}
            case "multi-krum":
                return {"name": "multi-krum", "faulty": faulty}, OFF
            case "median":
                return {"name": "median"}, OFF
            case rule:
                return {"name": rule}, {}


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    rules = [
        rule for rule in ("off", "default", OURS, "multi-krum", "median") if rule in ("off", "default", *AGGREGATIONS)
    ]
    everybody, ours = rules, rules[1:3]
    for seed in range(seeds):
        for rule in everybody:
            yield Job(rule, seed=seed)
        for by in ("lognormal-images", "one-identity"):
            for rule in rules[:3]:
                yield Job(rule, seed=seed, by=by)
        for name, scale in ENTRIES:
            for rule in ours:
                yield Job(rule, name, scale, seed=seed)
    for rule in rules[:3]:
        yield Job(rule, clients=40)
    for name, scale in ENTRIES[:6]:
        for rule in rules[:2]:
            yield Job(rule, name, scale, clients=40)
    for name, scale in ENTRIES[:8]:
        for share in (0.1, 0.3):
            yield Job("default", name, scale, share)
    for seed in range(seeds):
        for name, scale in ENTRIES:
            for rule in everybody:
                yield Job(rule, name, scale, seed=seed)
    for name, scale in ENTRIES[:8]:
        for share in (0.1, 0.3):
            for rule in everybody:
                yield Job(rule, name, scale, share)


OURS = "grouped"


def experiment(job: Job, weights: Path | None) -> Experiment:
    margin = {"kind": "cosface", "scale": 24.0, "margin": 0.2}
    aggregation, firewall = job.settings()
    people = 12 * job.clients if job.by != "one-identity" else 10
    pretrain = {
        "name": "pretrain",
        "rounds": 8,
        "algorithm": {
            "name": "pretrain",
            "margin": margin,
            "training": {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15},
        },
    }
    federate = {
        "name": "federate",
        "rounds": 8,
        "aggregation": aggregation,
        "quorum": 0.3,
        "algorithm": {
            "name": "fedface" if job.by == "one-identity" else job.algorithm,
            "margin": margin,
            "training": {"lr": 0.05, "batch_size": 32, "epochs": 3},
        },
    }
    if job.by == "one-identity":
        del federate["algorithm"]["margin"]  # type: ignore[attr-defined]
    lognormal = {"mu": 3.5, "sigma": 1.0} if job.by == "lognormal-images" else {}
    plan = {
        "name": "attacks",
        "seed": job.seed,
        "network": {"name": "small", "embedding": 64, "height": 32, "width": 32},
        "data": {
            "private": {"source": "synthetic", "first": 200, "identities": people, "images": 12},
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
        plan["data"]["public"] = {"source": "synthetic", "identities": 100, "images": 12}  # type: ignore[index]
    return parse_experiment(plan, "benchmarks/attacks.py")


def pretrained(seed: int, work: Path) -> Path:
    torch.set_num_threads(1)
    run = work / f"pretrain-{seed}"
    if not (run / "models" / "pretrain.safetensors").exists():
        conduct(experiment(Job("off", seed=seed), None), run, Execution())
    return run / "models" / "pretrain.safetensors"


def tried(job: Job, weights: Path) -> dict[str, Any]:
    """The figures of one run, and of an honest one how often each trigger is accepted."""
    torch.set_num_threads(1)
    began = time.monotonic()
    plan = experiment(job, weights)
    plot = Infiltration(ATTACKS[job.attack or "backdoor"](scale=job.scale), job.share, job.seed)
    result: dict[str, Any] = asdict(job)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            if job.attack:
                conduct(plan, out, Execution(), connect=partial(infiltrated, plot=plot))
            else:
                conduct(plan, out, Execution())
        except (Diverged, QuorumLost) as error:
            result["ended"] = str(error)
        else:
            materials = Materials(plan)
            for name in (job.attack,) if job.attack else BACKDOORS[:3]:
                found = standing(out, plan, materials, Infiltration(ATTACKS[name](), job.share, job.seed))
                result |= {"tar": found.tar, "accuracy": found.accuracy, f"accepted/{name}": found.accepted}
        attackers = set(plot.attackers(Materials(plan).clients)) if job.attack else set()
        for what, counts in deeds(out).items():
            result[f"{what}: attackers"] = sum(count for name, count in counts.items() if name in attackers)
            result[f"{what}: honest"] = sum(count for name, count in counts.items() if name not in attackers)
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in Job.__dataclass_fields__)


def run(out: Path, work: Path, processes: int, minutes: float, seeds: int) -> None:
    deadline = time.monotonic() + 60 * minutes
    known = {key(json.loads(line)) for line in out.read_text().splitlines()} if out.exists() else set()
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    weights = dict(enumerate(pool.map(partial(pretrained, work=work), range(seeds))))
    pending = iter(list(dict.fromkeys(job for job in jobs(seeds) if key(asdict(job)) not in known)))
    running = {pool.submit(tried, job, weights[job.seed]) for _, job in zip(range(processes), pending, strict=False)}
    while running and time.monotonic() < deadline:
        done, running = wait(running, timeout=max(0.0, deadline - time.monotonic()), return_when=FIRST_COMPLETED)
        for future in done:
            if job := next(pending, None):
                running.add(pool.submit(tried, job, weights[job.seed]))
            with out.open("a") as file:
                file.write(json.dumps(future.result()) + "\n")
    for process in (pool._processes or {}).values():
        process.kill()  # what is not done in time is not waited for


def table(out: Path) -> None:
    """Means over seeds: TAR at 1% false accepts, and the acceptance of a backdoor."""
    cells: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in map(json.loads, out.read_text().splitlines()):
        cells[line["clients"], line["by"], line["share"], line["attack"], line["scale"]][line["rule"]].append(line)
    rules = ["off", "default", OURS, "multi-krum", "median"]
    print("| clients | attack | share | " + " | ".join(rules) + " |\n|" + "---|" * (3 + len(rules)))
    for (clients, by, share, attack, scale), found in sorted(cells.items(), key=str):
        name = f"{attack}, x{scale:g}" if attack else "none"
        row = [f"{clients}{'' if by == 'equal' else ', ' + by}", name, f"{share:.0%}" if attack else ""]
        print("| " + " | ".join(row + [_cell(found.get(rule, []), attack) for rule in rules]) + " |")


def _cell(lines: list[dict[str, Any]], attack: str) -> str:
    if not lines:
        return ""
    ended = sum("ended" in line for line in lines)
    lived = [line for line in lines if "ended" not in line]
    text = f"{100 * statistics.mean(line['tar'] for line in lived):.1f}" if lived else ""
    rates = [
        line[f"accepted/{attack or 'backdoor'}"]
        for line in lived
        if line.get(f"accepted/{attack or 'backdoor'}") is not None
    ]
    text += f" ({100 * statistics.mean(rates):.1f})" if rates else ""
    return f"{text} {ended} of {len(lines)} ended" if ended else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("attacks.jsonl"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "attacks-scoreboard")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        run(options.out, options.work, options.processes, options.minutes, options.seeds)
    table(options.out)


if __name__ == "__main__":
    main()
