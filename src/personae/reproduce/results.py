"""`docs/results/claims.md`, made from the `claims.json` of finished reproductions."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from personae.reproduce.claims import Claim, System
from personae.reproduce.systems import SYSTEMS

HEAD = """# Claims of papers

`personae reproduce` found the following, a row for each claim and scale. [Reproduce a paper](../howto/reproduce.md)
explains how a claim is decided. The [notebook](../notebook/experiments.md) has the other experiments. This page is made
by `python -m personae.reproduce.results docs/results/claims` from the `claims.json` of each reproduction.

| claim | paper | compared | difference, 95% interval | verdict | gates | command |
|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    """Every claim of every paper: as often as a file of the folder has it, or once, as not judged."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    remarks = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for claim in content["claims"]:
            rows.setdefault(claim["id"], []).append(_row(content, claim))
        remarks += [f"\n`{path.name}`: {content['remark']}\n"] if "remark" in content else []
    known = [(claim, system) for system in SYSTEMS.values() for claim in system.claims]
    table = [row for claim, system in known for row in rows.pop(claim.id, [_unjudged(system, claim)])]
    table += [row for of_claim in rows.values() for row in of_claim]
    lines = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in table)
    return HEAD + lines + "".join(remarks)


def _unjudged(system: System, claim: Claim) -> tuple[str, ...]:
    parts = _lines([part.text for part in claim.parts])
    gates = _lines([gate.condition.text for gate in claim.gates]) or "none"
    command = f"`personae reproduce {system.name} --scale paper --claims {claim.id}`"
    return f"**{claim.id}** {claim.sentence}", claim.paper, parts, "–", "not judged with its gates", gates, command


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
