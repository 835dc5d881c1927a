"""`docs/results.md`, made from the `claims.json` of finished reproductions."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEAD = """# Results

What `personae reproduce` found, one row for each claim. [Putting a paper's claims to the test](reproduce.md) says how a
claim is decided, and [Experiments](experiments.md) has what was seen besides. This page is made by
`python -m personae.reproduce.results docs/results` from the `claims.json` of each reproduction, kept in `results/`.
A remark below the table says where such a file came about in another way.

| claim | paper | compared | difference, 95% interval | verdict | gates | command |
|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    """All claims of all files of a folder, by name."""
    rows, remarks = [], []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        rows += [_row(content, claim) for claim in content["claims"]]
        remarks += [f"\n`{path.name}`: {content['remark']}\n"] if "remark" in content else []
    table = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)
    return HEAD + table + "".join(remarks)


def _row(about: Mapping[str, Any], claim: Mapping[str, Any]) -> tuple[str, ...]:
    parts = claim["comparisons"]
    command = f"personae reproduce {about['system']} --scale {about['scale']} --claims {claim['id']}"
    return (
        f"**{claim['id']}** {claim['claim']}",
        claim["paper"],
        _lines([part["claims"] for part in parts]),
        _lines([_difference(part) for part in parts]),
        f"**{claim['verdict']}**",
        _lines([_gate(gate) for gate in claim["gates"]]) or "none",
        f"`{command} --seeds {len(about['seeds'])}`",
    )


def _difference(part: Mapping[str, Any]) -> str:
    if part["mean"] is None:
        return "–"
    interval = "" if part["interval"] is None else ", {:.2f} to {:.2f}".format(*part["interval"])
    return f"{part['mean']:.2f}{interval}"


def _gate(gate: Mapping[str, Any]) -> str:
    passed = {True: "passed", False: "not passed", None: "not measured"}[gate["passed"]]
    figures = [_mean(item) for item in gate["figures"] if item["variants"]]
    return f"{gate['condition']}: {', '.join(figures)}, {passed}"


def _mean(item: Mapping[str, Any]) -> str:
    values = item["values"]
    return "–" if None in values else f"{sum(values) / len(values):.2f}"


def _lines(texts: Sequence[str]) -> str:
    return "<br>".join(texts)


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
