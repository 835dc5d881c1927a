"""How clients are served before and after tuning, as quantities, and a picture of two methods client by client."""

import statistics
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from personae.errors import DataError
from personae.evaluation.spread import Served
from personae.report.table import heading
from personae.reproduce.claims import Pictures
from personae.reproduce.pages import save
from personae.reproduce.quantities import Outcome, Outcomes, Quantity


def over_clients(
    label: str, variant: str, metric: str, *, tuned: bool, new: bool = False, of: str = "mean"
) -> Quantity:
    """A figure over the clients that trained, or over new ones, in percent: `mean`, `deviation`, `worst_decile` ..."""

    def read(outcomes: Outcomes) -> float:
        found = _served(outcomes[variant], metric, new)
        return 100 * float(getattr(found.personal if tuned else found.shared, of))

    return Quantity(label, (variant,), read)


def gain_of_third(label: str, before: str, after: str, metric: str, *, weakest: bool, chosen_by: str) -> Quantity:
    """How many percent better tuned clients do in `after` than in `before`: those a third of them that are weakest (or
    strongest) in `before`, or in the mean of both.

    Who is weak in one noisy measurement is less so in the next, even if it is no better: chosen by `before` alone, the
    weakest seem to gain. The mean of both does not favour either end.
    """

    def read(outcomes: Outcomes) -> float:
        one, other = (tuned_clients(outcomes[name], metric) for name in (before, after))
        names = [name for name in one if name in other and one[name] > 0]
        level = {name: one[name] if chosen_by == "before" else (one[name] + other[name]) / 2 for name in names}
        ordered = sorted(names, key=lambda name: (level[name], name), reverse=not weakest)
        third = ordered[: max(1, len(ordered) // 3)]
        return 100 * statistics.fmean(other[name] / one[name] - 1 for name in third)

    return Quantity(label, tuple(dict.fromkeys((before, after))), read)


def client_by_client(before: str, before_label: str, after: str, after_label: str, metric: str) -> Pictures:
    """Figure 3 of HF-MAML: tuned models of two methods at every client, mean over the seeds, and the improvement."""

    def draw(outcomes: Mapping[int, Outcomes], out: Path) -> list[Path]:
        means = [
            _means([tuned_clients(of_seed[variant], metric) for of_seed in outcomes.values()])
            for variant in (before, after)
        ]
        record = next(iter(outcomes.values()))[after].record()
        names = [name for name in means[0] if name in means[1]]
        picture = Figure(figsize=(8, 0.42 * len(names) + 1.4), layout="constrained")
        axes = picture.subplots()
        for turn, (found, label) in enumerate(zip(means, (before_label, after_label), strict=True)):
            places = [place + 0.38 * (turn - 0.5) for place in range(len(names))]
            axes.barh(places, [100 * found[name] for name in names], 0.36, label=label, color=f"C{turn}")
        for place, name in enumerate(names):
            if means[0][name] > 0:
                text = f"{100 * (means[1][name] / means[0][name] - 1):+.1f}%"
                axes.text(100 * max(found[name] for found in means) + 0.8, place, text, va="center", fontsize=8)
        marked = [f"{name} (new)" if name in record.new_clients else name for name in names]
        axes.set_yticks(range(len(names)), marked, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.1)  # room for the numbers at the ends
        seeds = "1 seed" if len(outcomes) == 1 else f"mean over {len(outcomes)} seeds"
        axes.set_xlabel(f"{heading(metric)[1]} after tuning, %, {seeds}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        path = out / "clients.png"
        save(picture, path)
        return [path]

    return draw


def tuned_clients(outcome: Outcome, metric: str) -> dict[str, float]:
    """The metric of every client under its own model."""
    return {
        name: figures[f"personal/{metric}"]
        for name, figures in outcome.record().last_clients.items()
        if f"personal/{metric}" in figures
    }


def _served(outcome: Outcome, metric: str, new: bool) -> Served:
    found = outcome.record().served(new=new).get(metric)
    if found is None:
        raise DataError(f"{outcome.folder}: no {'new ' if new else ''}client has the metric {metric}")
    return found


def _means(of_seeds: list[dict[str, float]]) -> dict[str, float]:
    """By client, over the seeds in which it has the metric."""
    names = sorted({name for figures in of_seeds for name in figures})
    return {name: statistics.fmean(figures[name] for figures in of_seeds if name in figures) for name in names}
