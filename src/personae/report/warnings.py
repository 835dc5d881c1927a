"""What a reader of a run's figures is to be told before trusting them."""

from collections.abc import Iterator

from personae.report.records import Metrics, Run, StageRecord
from personae.report.table import CLIENTS, DEVIATION, heading, stage_metrics, start_metrics

TOLD = 0.0005  # a fall that one decimal of a percentage does not show is none
RATE = "tar@"
ENOUGH = 0.1  # a rate below is of a few pairs, and its fall is chance


def warnings_of(run: Run) -> list[str]:
    """What the figures gave reason to look at while it ran, and stages that ended below where they began."""
    seen = [
        f"{stage.label}, round {number}: {text}"
        for stage in run.stages
        for number, text in run.records[stage.name].warnings
    ]
    return [*seen, *(line for stage in run.stages for line in _fall(run, stage))]


def _fall(run: Run, stage: StageRecord) -> Iterator[str]:
    """How far a federated stage ended below its start, on the benchmark on which it fell most."""
    if not stage.federated or run.records[stage.name].evaluation is None:
        return
    before = stage_metrics(run.records[stage.after]) if stage.after else start_metrics(run)
    after = stage_metrics(run.records[stage.name])
    falls = {name: before[name] - after[name] for name in _main_figures(before) if name in after}
    name = max(falls, key=falls.__getitem__, default="")
    if falls.get(name, 0) >= TOLD:
        where, what = heading(name)
        yield (
            f"{stage.label} ends {100 * falls[name]:.1f} points below its start ({where} {what}: "
            f"{100 * before[name]:.1f} -> {100 * after[name]:.1f}); lower its learning rate, "
            "or see with evaluate_every from which round on it falls"
        )


def _main_figures(metrics: Metrics) -> Iterator[str]:
    """Of each benchmark the strictest rate that accepts enough; of clients only where there is no benchmark."""
    rates = [name for name in metrics if RATE in name and not name.endswith(DEVIATION) and metrics[name] >= ENOUGH]
    chosen = [name for name in rates if not name.startswith(CLIENTS)] or rates
    for place in dict.fromkeys(name.rpartition("/")[0] for name in chosen):
        at_place = (name for name in chosen if name.rpartition("/")[0] == place)
        yield min(at_place, key=lambda name: float(name.rpartition("@")[2]))
