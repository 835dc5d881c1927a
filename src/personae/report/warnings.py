"""What a reader of a run's figures is to be told before trusting them."""

import statistics
from collections.abc import Iterator, Mapping

from personae.core.quantities import SAMPLES
from personae.core.strong_start import departures
from personae.report.records import Metrics, Record, Run, StageRecord, rate_of
from personae.report.table import CLIENTS, DEVIATION, heading, stage_metrics, start_metrics
from personae.report.wording import joined

TOLD = 0.0005  # a fall that one decimal of a percentage does not show is none
LESS = 0.8  # what is drawn back to more than this part of itself counts for nearly as much
NAMED = 3  # clients, in one line
DRAWN_BACK = {  # by setting of the firewall
    "samples_multiple": "clients with far more images than the others did not count in full",
    "norm_multiple": "clients with far longer updates than the others had them shortened",
}
RATE = "tar@"
SHARED, OWN = f"{CLIENTS}global/", f"{CLIENTS}personal/"
ENOUGH = 0.1  # a rate below is of a few pairs, and its fall is chance


def warnings_of(run: Run) -> list[str]:
    """Stages that ended below where they began or let clients count for less, and what was remarkable as it ran."""
    return [*falls_of(run), *counted_for_less(run), *remarks_on_rounds(run)]


def remarks_on_rounds(run: Run) -> list[str]:
    """What the figures gave reason to look at while it ran."""
    return [
        f"{stage.label}, round {number}: {text}"
        for stage in run.stages
        for number, text in run.records[stage.name].warnings
    ]


def falls_of(run: Run) -> list[str]:
    """Stages that ended below where they began, and what to change."""
    return [line for stage in run.stages for line in _falls(run, stage)]


def counted_for_less(run: Run) -> list[str]:
    """Clients that were drawn back in most rounds and never left out, and what to change if they are honest.

    So looks a client that has far more faces than the others, and the shared model may be worse without them. So does
    an attacker that pushes hard.
    """
    return [line for stage in run.stages for line in _drawn_back(stage.label, run.records[stage.name])]


def _drawn_back(stage: str, record: Record) -> Iterator[str]:
    """A line for each setting that drew such clients back: to which part of themselves, and how often."""
    suspects = {client for each in record.suspicions.values() for client in each.left_out}
    for setting, words in DRAWN_BACK.items():
        told = []
        for client, asked in sorted(record.asked.items()):
            of = (each.drawn_back.get(client, {}) for each in record.suspicions.values())
            parts = [part for factors in of if (part := _part(factors, setting)) < LESS]
            if client not in suspects and 2 * len(parts) > asked:
                told.append(f"{client} ({100 * statistics.median(parts):.0f}% in {len(parts)} of {asked} rounds)")
        if told:
            more = [f"{len(told) - NAMED} more"] if len(told) > NAMED else []
            yield (
                f"{stage}: {words}: {joined([*told[:NAMED], *more])}. If you trust them, raise firewall.{setting} "
                "and firewall.credible; attackers look the same (docs/concepts/security.md)"
            )


def _part(factors: Mapping[str, float], setting: str) -> float:
    """What was left of the quantities that a setting bounds, of which one is the number of samples."""
    bounded = (each for name, each in factors.items() if (name == SAMPLES) == (setting == "samples_multiple"))
    return min(bounded, default=1.0)


def _falls(run: Run, stage: StageRecord) -> Iterator[str]:
    """How far its shared model and its clients' own ones fell, on the benchmark on which they fell most."""
    if run.records[stage.name].evaluation is None:
        return
    before = stage_metrics(run.records[stage.after]) if stage.after else start_metrics(run)
    after = stage_metrics(run.records[stage.name])
    shared = _main_figures(before) if stage.federated else ()
    own = _main_figures({name: value for name, value in before.items() if name.startswith(SHARED)})
    pairs = {
        "ends": {name: (before[name], after[name]) for name in shared if name in after},
        "leaves clients' own models": {
            personal: (before[name], after[personal])
            for name in own
            if (personal := name.replace(SHARED, OWN, 1)) in after
        },
    }
    for what, found in pairs.items():
        name = max(found, key=lambda name: found[name][0] - found[name][1], default="")
        was, is_now = found.get(name, (0.0, 0.0))
        if was - is_now >= TOLD:
            yield (
                f"{stage.label} {what} {100 * (was - is_now):.1f} points below its start ({' '.join(heading(name))}: "
                f"{100 * was:.1f} -> {100 * is_now:.1f}); {_advice(run, stage)}"
            )


def _advice(run: Run, stage: StageRecord) -> str:
    """What to change: settings that are not for a strong start, or else the rate."""
    sections = {section["name"]: section for section in run.config.get("stages", ())}
    settings = sections.get(stage.name, {}).get("algorithm", {})
    if run.config.get("weights") and (others := departures(settings)):
        return f"it has {', '.join(others)}: leave these out, and they are as a strong start needs them"
    return "lower its learning rate, or see with evaluate_every from which round on it falls"


def _main_figures(metrics: Metrics) -> Iterator[str]:
    """Of each benchmark the strictest rate that accepts enough; of clients only where there is no benchmark.

    Of clients, pairs of their own people and those with everybody's impostors (1:1) count as two benchmarks.
    """
    rates = {
        name: rate
        for name, value in metrics.items()
        if RATE in name and not name.endswith(DEVIATION) and value >= ENOUGH and (rate := rate_of(name))
    }
    chosen = [name for name in rates if not name.startswith(CLIENTS)] or [*rates]
    for kind in dict.fromkeys(name.rpartition("@")[0] for name in chosen):
        of_kind = (name for name in chosen if name.rpartition("@")[0] == kind)
        yield min(of_kind, key=lambda name: rates[name])
