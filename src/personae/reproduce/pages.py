"""Findings on disk: `claims.json`, `claims.md` and a plot for each claim, written whole or not at all."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from personae.files import replacing, write_text
from personae.reproduce.claims import Rising
from personae.reproduce.findings import Finding, Part, Situation, spread
from personae.reproduce.statistics import LEVEL, Verdict

COLOURS = {
    Verdict.HOLDS: "#2a7d4f",
    Verdict.FAILS: "#b3392f",
    Verdict.NOISE: "#8a8a8a",
    Verdict.MISSING: "#c9a227",
    Verdict.UNREACHED: "#5b6fa8",
}
RULE = (
    "Figures are mean ± standard deviation over the seeds. A comparison holds where a paired one-sided t-test over the "
    f"seeds speaks for it at p < {LEVEL}, does not hold where one speaks against it or against half of the difference "
    "that the paper reports, and is within noise otherwise. "
    "A claim holds where all its comparisons do, and does not where one does not. A gate is the situation that a claim "
    "speaks of: where the mean over the seeds does not meet it, the regime is not reached, and the claim is not judged."
)


def write_findings(
    findings: Sequence[Finding], about: Mapping[str, Any], out: Path, pictures: Sequence[Path] = ()
) -> None:
    """`pictures` are those of the paper as a whole, in the folder of the plots."""
    content = {**about, "rule": RULE, "claims": [finding.plain() for finding in findings]}
    plots = [out / "plots" / f"{finding.claim.id}.png" for finding in findings]
    for finding, path in zip(findings, plots, strict=True):
        draw(finding, path)
    write_text(out / "claims.json", json.dumps(content, indent=1) + "\n")
    shown = [f"![{path.stem}]({path.relative_to(out).as_posix()})" for path in (*pictures, *plots)]
    write_text(out / "claims.md", markdown(findings, about) + "\n" + "\n\n".join(shown) + "\n")


def markdown(findings: Sequence[Finding], about: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, about["seeds"]))
    lines = [
        f"# {about['system']}, {about['scale']} scale, seeds {seeds}",
        "",
        f"{about['paper']}. {RULE}",
        "",
        "| id | claim | paper | measured | verdict |",
        "|---|---|---|---|---|",
    ]
    for finding in findings:
        figures = "; ".join(f"{item.quantity.label} {item.text}" for item in finding.measured)
        row = (finding.claim.id, finding.claim.sentence, finding.claim.paper, figures, f"**{finding.verdict}**")
        lines.append(_row(row))
    lines += ["", "| id | comparison | difference | 95% interval | p | half of the paper's | verdict |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for finding in findings:
        for part in finding.parts:
            told = (difference(part), interval(part), chance(part), half_of_paper(part), str(part.verdict))
            lines.append(_row((finding.claim.id, part.comparison.text, *told)))
    if any(finding.situations for finding in findings):
        lines += ["", "| id | gate | condition | measured | passed |", "|---|---|---|---|---|"]
    for finding in findings:
        for situation in finding.situations:
            gate = situation.gate
            lines.append(
                _row((finding.claim.id, gate.situation, gate.condition.text, situation.text, passed(situation)))
            )
    return "\n".join([*lines, ""])


def passed(situation: Situation) -> str:
    return {True: "yes", False: "no", None: "not measured"}[situation.passed]


def difference(part: Part) -> str:
    return spread(part.test.values) if math.isfinite(part.test.mean) else "–"


def interval(part: Part) -> str:
    return "–" if part.test.interval is None else "{:.2f} to {:.2f}".format(*part.test.interval)


def chance(part: Part) -> str:
    return "–" if part.p is None else f"{part.p:.3f}"


def half_of_paper(part: Part) -> str:
    return "–" if part.half_of_paper is None else f"{part.half_of_paper:.2f}"


def draw(finding: Finding, path: Path) -> None:
    """A bar for each figure, or a line where the claim is about a rise, with the seeds as points."""
    measured = finding.measured
    picture = Figure(figsize=(max(4.8, 0.95 * len(measured) + 1.6), 4.0), layout="constrained")
    axes = picture.subplots()
    for place, item in enumerate(measured):
        known = [value for value in item.values if math.isfinite(value)]
        if known:
            axes.bar(place, sum(known) / len(known), width=0.62, color="#9db8d9", zorder=1)
        axes.plot([place] * len(known), known, "o", color="#1f3d66", markersize=4, zorder=3)
    for part in finding.parts:
        if isinstance(part.comparison, Rising):
            labels = [item.quantity.label for item in measured]
            places = [labels.index(quantity.label) for quantity in part.comparison.quantities]
            axes.plot(places, [measured[place].mean for place in places], color="#1f3d66", linewidth=1, zorder=2)
    axes.set_xticks(range(len(measured)), [item.quantity.label for item in measured], rotation=35, ha="right")
    units = {item.quantity.unit for item in measured}
    axes.set_ylabel(" / ".join(sorted(units)))
    finite = [value for item in measured for value in item.values if math.isfinite(value)]
    if finite and units == {"%"}:  # the differences are small beside the figures
        margin = max(1.0, 0.35 * (max(finite) - min(finite)))
        axes.set_ylim(min(finite) - margin, max(finite) + margin)
    axes.set_title(f"{finding.claim.id}: {finding.verdict}", color=COLOURS[finding.verdict], fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    save(picture, path)


def save(picture: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        picture.savefig(temporary, dpi=130, format="png", metadata={"Software": None})


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
