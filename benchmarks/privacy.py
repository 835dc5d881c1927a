"""What differential privacy costs: how well strangers are told apart, against epsilon, for few and for many clients.

    python benchmarks/privacy.py run --minutes 10    # runs what is missing in docs/results/noise.jsonl, one by one
    python benchmarks/privacy.py page                # writes the table of docs/howto/differential-privacy.md from it

The recipe is `privacy/clients`, whose stage `federate` begins with one pre-trained model for all runs of a seed. For
each number of clients and each epsilon the noise is what the accountant asks for. A run that was measured with other
settings than the present ones counts as missing. What matters most comes first.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from personae.core.events import GlobalEvaluation
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.experiment.stages import StageSection
from personae.files import write_text
from personae.privacy.accountant import Accountant, Budget
from personae.report.records import read_events

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "noise.jsonl", DOCS / "howto" / "differential-privacy.md"
BEGIN, END = "<!-- table of benchmarks/privacy.py -->", "<!-- end of table -->"

Unit = Literal["client", "person"]
RECIPE, DELTA, WEIGHTS = "privacy/clients", 1e-5, 233_760
RATES = {36: 1.0, 360: 0.2, 3600: 0.06}  # who is asked in a round: more than a few hundred clients take too long here
EPSILONS = (32.0, 8.0, 2.0)
SILENT = 0.005  # a multiplier: hardly any noise
PEOPLE = 8  # of a client, all of whose photographs it trains with
ALL_FOR_TRAINING = ("data.private.images=4", "partition.train=1.0", "partition.test=0.0")
FIGURE = "heldout/tar@1e-01"


@dataclass(frozen=True)
class Job:
    """One run."""

    clients: int
    noise: str = "none"  # none: not even a bound; bound: hardly any noise; or an epsilon
    seed: int = 0
    unit: Unit = "client"  # what noise hides

    @property
    def rate(self) -> float:
        """A draw of clients does not count for their people, so all clients are asked where people are hidden."""
        return 1.0 if self.unit == "person" else RATES[self.clients]


Lines = dict[Job, dict[str, Any]]


def jobs(seeds: int) -> Iterator[Job]:
    """What matters most comes first, since the time may not be enough for all."""
    noises = ("none", "bound", *(f"{epsilon:g}" for epsilon in EPSILONS))
    for seed in range(seeds):
        yield from (Job(clients, noise, seed) for clients in RATES for noise in noises)
        yield from (Job(36, noise, seed, "person") for noise in noises[1:])


def experiment(job: Job, multiplier: float, weights: Path | None = None) -> Experiment:
    """The stage `federate` alone, for so many clients."""
    whole = load_experiment(
        RECIPE,
        [
            f"seed={job.seed}",
            f"partition.clients={job.clients}",
            f"data.private.identities={PEOPLE * job.clients}",
            *ALL_FOR_TRAINING,
            *([f"weights={weights}"] if weights else []),
        ],
    )
    federate = whole.stages[-1]
    layers: list[dict[str, Any]] = [each for each in federate.layers if each["name"] != "noise"]
    if job.noise != "none":
        (noise,) = (each for each in federate.layers if each["name"] == "noise")
        people = {"people": {"expected": PEOPLE}} if job.unit == "person" else {}
        layers.append({**noise, **people, "multiplier": multiplier, "randomness": "seed"})
    changed: StageSection = replace(
        federate, layers=tuple(layers), selection={"name": "poisson", "rate": job.rate}, evaluate_every=0
    )
    return whole.model_copy(update={"stages": (changed,), "budget": Budget(delta=DELTA)})


@cache
def multiplier_for(job: Job) -> float:
    """The least, to three digits, that keeps all rounds within epsilon."""
    if job.noise in ("none", "bound"):
        return SILENT
    low, high = 0.05, 200.0
    while high / low > 1.002:
        middle = (low * high) ** 0.5
        stage = experiment(job, middle).recipe[-1]
        (found,) = Accountant((stage,), {stage.name: job.clients}, Budget(delta=DELTA)).spent(stage, stage.rounds)
        low, high = (low, middle) if found.epsilon <= float(job.noise) else (middle, high)
    return high


@cache
def settings_of(job: Job) -> str:
    """Another for other settings of the runs; the multiplier follows from these."""
    content = json.dumps([experiment(job, SILENT).resolved(), load_experiment(RECIPE).resolved()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


@cache
def pretrained(seed: int, work: Path) -> Path:
    """The model that all runs of a seed begin with."""
    folder = work / f"pretrained-{seed}"
    if not (folder / "models" / "pretrain.safetensors").exists():
        few = ["partition.clients=4", f"data.private.identities={4 * PEOPLE}"]
        whole = load_experiment(RECIPE, [f"seed={seed}", *few, *ALL_FOR_TRAINING])
        only = whole.model_copy(update={"stages": whole.stages[:1], "budget": Budget(delta=DELTA)})
        conduct(only, folder, Execution(), resume=True)
    return folder / "models" / "pretrain.safetensors"


def measured(job: Job, work: Path) -> dict[str, Any]:
    began, multiplier = time.monotonic(), multiplier_for(job)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        conduct(experiment(job, multiplier, pretrained(job.seed, work)), Path(folder) / "run", Execution())
        events = [each for each in read_events(Path(folder) / "run") if isinstance(each, GlobalEvaluation)]
    figures = {event.round: round(event.metrics[FIGURE], 4) for event in events}
    return {
        **asdict(job),
        "settings": settings_of(job),
        "multiplier": round(multiplier, 4),
        "start": figures[min(figures)],
        "end": figures[max(figures)],
        "seconds": round(time.monotonic() - began, 1),
    }


def lines_of(results: Path) -> Lines:
    """What was measured with the present settings; of two lines the later one."""
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found = {Job(**{each.name: line[each.name] for each in fields(Job)}): line for line in lines}
    return {job: line for job, line in found.items() if line["settings"] == settings_of(job)}


def run(results: Path, work: Path, minutes: float, seeds: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    known = lines_of(results)
    missing = [job for job in jobs(seeds) if job not in known]
    print(f"{len(known)} runs are there, {len(missing)} are missing", flush=True)
    for job in missing:
        if time.monotonic() > deadline:
            break
        line = json.dumps(measured(job, work))
        with results.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


# ------------------------------------------------------------------------------------------------ the page


def page(results: Path, target: Path) -> None:
    before, _, rest = target.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(target, f"{before}{BEGIN}\n\n{table(lines_of(results))}\n{END}{after}")


def table(found: Lines) -> str:
    """Means over seeds: one row for each unit and number of clients, one column for each epsilon."""
    noises = {"none": "none", "bound": "bound alone", **{f"{each:g}": f"epsilon {each:g}" for each in EPSILONS}}
    head = ["hidden", "clients", "asked in a round", "noise over `norm`, epsilon 8", "pre-trained", *noises.values()]
    rows = ["| " + " | ".join([*head, "seeds"]) + " |", "|---" * (len(head) + 1) + "|"]
    for unit, clients in dict.fromkeys((job.unit, job.clients) for job in found):
        here = [(job, line) for job, line in found.items() if (job.unit, job.clients) == (unit, clients)]
        cells = {noise: [line["end"] for job, line in here if job.noise == noise] for noise in noises}
        if unit == "person":  # without a layer, nobody is trained alone
            cells["none"] = []
        rate = here[0][0].rate
        contributions = clients * rate * (PEOPLE if unit == "person" else 1)
        ratios = [line["multiplier"] * WEIGHTS**0.5 / contributions for job, line in here if job.noise == "8"]
        columns = [
            f"a {unit}",
            f"{clients:,}",
            "all" if rate == 1 else f"{rate:.0%}",
            f"{ratios[0]:.2g}" if ratios else "–",
            f"{mean(line['start'] for _, line in here):.1%}",
            *(_cell(each) for each in cells.values()),
            _range([len(each) for each in cells.values() if each]),
        ]
        rows.append("| " + " | ".join(columns) + " |")
    return "\n".join(rows) + "\n"


def _cell(values: Sequence[float]) -> str:
    """The mean and, of several seeds, the standard deviation."""
    if not values:
        return "–"
    return f"{mean(values):.1%}" + (f" ± {100 * stdev(values):.1f}" if len(values) > 1 else "")


def _range(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "price-of-noise")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.work, options.minutes, options.seeds)
    else:
        page(options.results, PAGE)


if __name__ == "__main__":
    main()
