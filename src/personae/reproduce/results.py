"""`docs/results/claims.md`, made from the `claims.json` of finished reproductions."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from personae.reproduce.claims import System
from personae.reproduce.reproduce import Scale
from personae.reproduce.statistics import Verdict
from personae.reproduce.systems import SYSTEMS

HEAD = """# Claims of papers

{tally}

[Reproduce a paper](../howto/reproduce.md) explains how a claim is decided. A row has the verdict at the largest
scale at which the claim was decided. If there is none, it has the one that says most. *Difference* is of the comparison
that decides the claim: its mean over the seeds, and the 95% interval. A star marks claims with several comparisons,
which are all [below](#all-comparisons). *Gates* says whether the situation was reached that the claim is about. To
repeat a row, name its system, scale, claim and number of seeds. For GC-7a:

```sh
personae reproduce fedgc --scale small --claims GC-7a --seeds 5
```

The [notebook](../notebook/experiments.md) has the other experiments. This page is made by `python -m
personae.reproduce.results docs/results/claims` from the `claims.json` of each reproduction.
"""
DETAILS = """
## All comparisons

Each claim, at every scale at which it was judged, with all its comparisons, and the figures of its gates.
"""
NOT_JUDGED = "not judged"
DECIDED = (Verdict.HOLDS, Verdict.FAILS)
SCALES = get_args(Scale)


@dataclass(frozen=True)
class Judgement:
    """One claim as one file of the folder has it."""

    claim: Mapping[str, Any]
    system: str
    scale: str
    seeds: int

    @property
    def verdict(self) -> str:
        return str(self.claim["verdict"])

    @property
    def rank(self) -> tuple[int, int]:
        """Higher for what says more: decided, then within noise, then anything else; of equals the larger scale."""
        says = 2 if self.verdict in DECIDED else int(self.verdict == Verdict.NOISE)
        return says, SCALES.index(self.scale)

    @property
    def deciding(self) -> Mapping[str, Any]:
        """The comparison with the verdict of the claim, and of several the one that speaks least for it."""
        parts = self.claim["comparisons"]
        judged = [part for part in parts if part["verdict"] == self.verdict] or parts
        return max(judged, key=lambda part: -1 if part["p"] is None else part["p"])

    @property
    def gate(self) -> str:
        passed = [gate["passed"] for gate in self.claim["gates"]]
        if not passed:
            return "none"
        return "not passed" if False in passed else "not measured" if None in passed else "passed"


def page(folder: Path) -> str:
    """Every claim of every paper, judged or not."""
    judged: dict[str, list[Judgement]] = {}
    remarks = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for claim in content["claims"]:
            judgement = Judgement(claim, content["system"], content["scale"], len(content["seeds"]))
            judged.setdefault(claim["id"], []).append(judgement)
        remarks += [f"- `{path.name}`: {content['remark']}\n"] if "remark" in content else []
    best = {name: max(found, key=lambda each: each.rank) for name, found in judged.items()}
    known = [(system, claim.id) for system in SYSTEMS.values() for claim in system.claims]
    parts = [HEAD.format(tally=_tally([best.get(name) for _, name in known]))]
    parts += [_table(system, best) for system in SYSTEMS.values()]
    parts += [DETAILS, *(_details(each) for _, name in known for each in judged.get(name, ()))]
    parts += ["\n## Remarks\n\n", *remarks] if remarks else []
    return "".join(parts)


def _tally(best: Sequence[Judgement | None]) -> str:
    counts = Counter(each.verdict if each else NOT_JUDGED for each in best)
    told = ", ".join(f"*{each}* {counts[each]}" for each in (*Verdict, NOT_JUDGED) if counts[each])
    return f"Verdicts on {len(best)} claims: {told}."


def _table(system: System, best: Mapping[str, Judgement]) -> str:
    lines = [
        f"\n## {system.name}\n\n{system.paper}.\n\n",
        "| claim | paper | difference | verdict | gates | scale | seeds |\n|---|---|---|---|---|---|---|\n",
    ]
    for claim in system.claims:
        found = best.get(claim.id)
        cells = ["–", NOT_JUDGED, "–", "–", "–"] if found is None else _cells(found)
        lines.append(_row(f"**{claim.id}** {claim.sentence}", claim.paper, *cells))
    return "".join(lines)


def _cells(found: Judgement) -> list[str]:
    several = "*" if len(found.claim["comparisons"]) > 1 else ""
    difference = _difference(found.deciding) + several
    return [difference, f"**{found.verdict}**", found.gate, found.scale, str(found.seeds)]


def _details(found: Judgement) -> str:
    lines = [f"\n### {found.claim['id']}, {found.scale}: {found.verdict}\n\n{found.claim['claim']}.\n\n"]
    lines += ["| comparison | difference | half of the paper's | verdict |\n|---|---|---|---|\n"]
    lines += [
        _row(part["claims"], _difference(part), _half_of_paper(part), part["verdict"])
        for part in found.claim["comparisons"]
    ]
    if found.claim["gates"]:
        lines += ["\n| gate | figures | |\n|---|---|---|\n"]
        lines += [_gate(gate) for gate in found.claim["gates"]]
    return "".join(lines)


def _difference(part: Mapping[str, Any]) -> str:
    if part["mean"] is None:
        return "–"
    interval = "" if part["interval"] is None else ", {:.2f} to {:.2f}".format(*part["interval"])
    return f"{part['mean']:.2f}{interval}"


def _half_of_paper(part: Mapping[str, Any]) -> str:
    return "–" if part["half_of_paper"] is None else f"{part['half_of_paper']:.2f}"


def _gate(gate: Mapping[str, Any]) -> str:
    passed = {True: "passed", False: "not passed", None: "not measured"}[gate["passed"]]
    figures = [_mean(item) for item in gate["figures"] if item["variants"]]
    return _row(gate["condition"], ", ".join(figures), passed)


def _mean(item: Mapping[str, Any]) -> str:
    values = item["values"]
    return "–" if None in values else f"{sum(values) / len(values):.2f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
