"""What differential privacy costs: how well strangers are told apart, against epsilon, for few and for many clients.

    python benchmarks/privacy.py OUT --clients 36 360 3600 --epsilons 2 8 32

The recipe is `privacy/clients`, whose stage `federate` begins with one pre-trained model for all runs. For each number
of clients and each epsilon the noise is what the accountant asks for. `OUT/results.jsonl` gets a line a run, and a run
that is there is not done again. At the end the table of docs/howto/differential-privacy.md is printed.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

from personae.core.events import GlobalEvaluation
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.experiment.stages import StageSection
from personae.privacy.accountant import Accountant, Budget
from personae.report.records import read_events

Unit = Literal["client", "person"]
RECIPE, DELTA = "privacy/clients", 1e-5
RATES = {36: 1.0, 360: 0.2, 3600: 0.06}  # who is asked in a round: more than a few hundred clients take too long here
SILENT = 1e-6  # a multiplier: no noise
PEOPLE = 8  # of a client, all of whose photographs it trains with
ALL_FOR_TRAINING = ("data.private.images=4", "partition.train=1.0", "partition.test=0.0")
FIGURES = ("heldout/accuracy", "heldout/tar@1e-01")


@dataclass(frozen=True)
class Task:
    clients: int
    rate: float
    seed: int
    unit: Unit = "client"  # what noise hides; for people without noise, each is trained for itself all the same
    epsilon: float | None = None  # None: no noise
    multiplier: float = SILENT

    @property
    def name(self) -> str:
        return f"{self.unit}-{self.clients}-{'none' if self.epsilon is None else f'{self.epsilon:g}'}-{self.seed}"


def tasks(clients: list[int], epsilons: list[float], seeds: list[int], unit: Unit) -> list[Task]:
    plain = [Task(number, RATES[number], seed, unit) for number in clients for seed in seeds]
    noised = [
        replace(task, epsilon=epsilon, multiplier=noise_for(epsilon, task)) for task in plain for epsilon in epsilons
    ]
    return [*plain, *noised]


def noise_for(epsilon: float, task: Task) -> float:
    """The least multiplier, to three digits, that keeps all rounds within epsilon."""
    low, high = 0.05, 200.0
    while high / low > 1.002:
        middle = (low * high) ** 0.5
        stage = experiment(replace(task, epsilon=epsilon, multiplier=middle)).recipe[-1]
        (found,) = Accountant((stage,), {stage.name: task.clients}, Budget(delta=DELTA)).spent(stage, stage.rounds)
        low, high = (low, middle) if found.epsilon <= epsilon else (middle, high)
    return high


def experiment(task: Task, weights: Path | None = None) -> Experiment:
    """The stage `federate` alone, for so many clients."""
    whole = load_experiment(
        RECIPE,
        [
            f"seed={task.seed}",
            f"partition.clients={task.clients}",
            f"data.private.identities={PEOPLE * task.clients}",
            *ALL_FOR_TRAINING,
            *([f"weights={weights}"] if weights else []),
        ],
    )
    federate = whole.stages[-1]
    layers: list[dict[str, Any]] = [each for each in federate.layers if each["name"] != "noise"]
    if task.epsilon is not None or task.unit == "person":
        (noise,) = (each for each in federate.layers if each["name"] == "noise")
        people = {"people": {"expected": PEOPLE}} if task.unit == "person" else {}
        layers.append({**noise, **people, "multiplier": task.multiplier, "randomness": "seed"})
    changed: StageSection = replace(
        federate, layers=tuple(layers), selection={"name": "poisson", "rate": task.rate}, evaluate_every=0
    )
    return whole.model_copy(update={"stages": (changed,), "budget": Budget(delta=DELTA)})


def pretrained(seed: int, out: Path, execution: Execution) -> Path:
    """The model that all runs begin with."""
    folder = out / f"pretrained-{seed}"
    if not (folder / "models" / "pretrain.safetensors").exists():
        few = ["partition.clients=4", f"data.private.identities={4 * PEOPLE}"]
        whole = load_experiment(RECIPE, [f"seed={seed}", *few, *ALL_FOR_TRAINING])
        only = whole.model_copy(update={"stages": whole.stages[:1], "budget": Budget(delta=DELTA)})
        conduct(only, folder, execution, resume=True)
    return folder / "models" / "pretrain.safetensors"


def carry_out(task: Task, out: Path, execution: Execution) -> dict[str, Any]:
    run = out / task.name
    conduct(experiment(task, pretrained(task.seed, out, execution)), run, execution, resume=True)
    benchmarks = {event.round: event.metrics for event in read_events(run) if isinstance(event, GlobalEvaluation)}
    start, end = (benchmarks[pick(benchmarks)] for pick in (min, max))
    figures = {"start": [start[name] for name in FIGURES], "end": [end[name] for name in FIGURES]}
    return {**asdict(task), **figures}


def table(lines: list[dict[str, Any]]) -> str:
    """Means over seeds: one row for each unit and number of clients, one column for each epsilon."""
    found: dict[tuple[str, int, float | None], list[float]] = defaultdict(list)
    for line in lines:
        found[line["unit"], line["clients"], line["epsilon"]].append(line["end"][1])
    starts = mean(line["start"][1] for line in lines)
    epsilons = sorted({epsilon for *_, epsilon in found if epsilon is not None}, reverse=True)
    head = ["hidden", "clients", "none", *(f"epsilon {epsilon:g}" for epsilon in epsilons), "pre-trained"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for place in sorted({(unit, clients) for unit, clients, _ in found}):
        measured = [found[*place, each] for each in (None, *epsilons)]
        cells = [f"{mean(each):.1%}" if each else "" for each in measured]
        rows.append("| " + " | ".join([place[0], f"{place[1]:,}", *cells, f"{starts:.1%}"]) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=list(RATES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0, 32.0])
    parser.add_argument("--unit", choices=get_args(Unit), default="client")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    results = options.out / "results.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {(line["unit"], line["clients"], line["epsilon"], line["seed"]) for line in lines}
    for task in tasks(options.clients, options.epsilons, options.seeds, options.unit):
        if (task.unit, task.clients, task.epsilon, task.seed) not in done:
            lines.append(carry_out(task, options.out, Execution(workers=options.workers)))
            with results.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(task.name, lines[-1]["end"], flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
