"""`docs/results/claims.md` and a page of comparisons for each paper, made from the `claims.json` of reproductions."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from personae.files import write_text
from personae.reproduce.claims import Claim, Comparison, System
from personae.reproduce.quantities import Quantity
from personae.reproduce.reproduce import Scale
from personae.reproduce.statistics import LEVEL, Verdict
from personae.reproduce.systems import SYSTEMS

HEAD = """# Claims of papers

- {count} claims of the papers: {tally}.
- {count_added} that we added, whose ids end in a letter: {tally_added}.

{overview}
A claim is *decided* if it holds or does not hold here. What holds, does not hold or is within noise has passed its
gates: the situation was reached that the claim is about. *Half* means that it would be within noise, but [half of the
paper's difference](../howto/reproduce.md#how-a-claim-is-decided) is ruled out.

The tables below have a row for each claim, with the comparison that decides it, in the paper and here: means over the
seeds, in percent unless a unit is given. *Difference* is our first figure minus the second, or the slope if there are
more, with the 95% interval. It has to be above zero, unless the row asks for something else. A star marks claims with
several comparisons; the id of a claim leads to all of them. The verdict is that of the largest scale at which the claim
was decided. Papers measure on other faces than we do: compare differences, not levels.

`personae reproduce` with what stands in the last column repeats a row. Add `--budget 0` to see only how long that will
take, `--device cuda` to use a GPU, and `--resume` for further rows of the same system and scale.
"""
COMPARISONS = """# All comparisons: {name}

{paper}.

Each claim is here with every scale at which it was judged, all its comparisons and the figures of its gates. The [table
of claims](../claims.md) has one row for each claim, and [Results](../{page}#why-claims-do-not-hold) says why some do
not hold. Figures are means over the seeds, intervals have 95%. A comparison within noise does not hold if *half of the
paper's* difference is excluded.
"""
COLUMNS = ("claim", "paper", "ours", "difference", "verdict", "gate", "`personae reproduce`")
NOT_JUDGED = "not judged"
VERDICTS = (*Verdict, NOT_JUDGED)
DECIDED = (Verdict.HOLDS, Verdict.FAILS)
SCALES = get_args(Scale)
Figure = Mapping[str, Any]  # of a quantity, as a file has it


@dataclass(frozen=True)
class Compared:
    """One comparison as a file has it, with what it compares."""

    definition: Comparison
    found: Mapping[str, Any]
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Judgement:
    """One claim as one file of the folder has it."""

    system: System
    claim: Claim
    found: Mapping[str, Any]
    scale: str
    seeds: Sequence[int]

    @property
    def verdict(self) -> str:
        return str(self.found["verdict"])

    @property
    def rank(self) -> tuple[int, int, int]:
        """Higher for what says more: decided, then within noise, then anything else; of equals the larger scale, and
        of the same scale more seeds."""
        says = 2 if self.verdict in DECIDED else int(self.verdict == Verdict.NOISE)
        return says, SCALES.index(self.scale), len(self.seeds)

    @cached_property
    def comparisons(self) -> list[Compared]:
        return [
            Compared(part, found, self._figures(part.quantities))
            for part, found in zip(self.claim.parts, self.found["comparisons"], strict=True)
        ]

    @property
    def beside(self) -> list[Figure]:
        """What is shown and compared with nothing; a file from before something was shown does not have it."""
        compared = {quantity.label for part in self.claim.parts for quantity in part.quantities}
        return [figure for figure in self._figures(self.claim.beside) if figure["label"] not in compared]

    @property
    def deciding(self) -> Compared:
        """The comparison with the verdict of the claim, and of several the one that speaks least for it."""
        judged = [part for part in self.comparisons if part.found["verdict"] == self.verdict] or self.comparisons
        return max(judged, key=lambda part: -1 if part.found["p"] is None else part.found["p"])

    @property
    def by_half(self) -> bool:
        """Whether it would be within noise, were it not for half of the paper's difference."""
        failed = [part.found for part in self.comparisons if part.found["verdict"] == Verdict.FAILS]
        surely = [found for found in failed if found["half_of_paper"] is None or found["p"] > 1 - LEVEL]
        return self.verdict == Verdict.FAILS and not surely

    @property
    def gate(self) -> str:
        passed = [gate["passed"] for gate in self.found["gates"]]
        if not passed:
            return "none"
        return "not passed" if False in passed else "not measured" if None in passed else "passed"

    @property
    def command(self) -> str:
        """What follows `personae reproduce`."""
        chosen = f"{self.system.name} --scale {self.scale} --claims {self.claim.id} --seeds {len(self.seeds)}"
        return chosen + (f" --first-seed {self.seeds[0]}" if self.seeds[0] else "")

    def _figures(self, quantities: Sequence[Quantity]) -> list[Figure]:
        known = {figure["label"]: figure for figure in self.found["figures"]}
        return [known[quantity.label] for quantity in quantities if quantity.label in known]


def pages(folder: Path) -> dict[str, str]:
    """The table of all claims and the comparisons of each paper, by their paths beside the folder of the files."""
    judged: dict[str, list[Judgement]] = {}
    remarks: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        system = SYSTEMS[content["system"]]
        claims = {claim.id: claim for claim in system.claims}
        for found in content["claims"]:
            judgement = Judgement(system, claims[found["id"]], found, content["scale"], content["seeds"])
            judged.setdefault(found["id"], []).append(judgement)
        if "remark" in content:
            remarks.setdefault(system.name, []).append(f"- `{path.name}`: {content['remark']}\n")
    for each in judged.values():
        each.sort(key=lambda judgement: judgement.rank, reverse=True)
    made = {f"claims/{_page(system)}": _comparisons(system, judged, remarks) for system in SYSTEMS.values()}
    return {"claims.md": _claims(judged), **made}


def _page(system: System) -> str:
    """How the pages of a paper are called, here and where its verdicts are explained."""
    return f"{system.name.replace('_', '-')}.md"


def _claims(judged: Mapping[str, Sequence[Judgement]]) -> str:
    best = {name: found[0] for name, found in judged.items()}
    claims = [claim for system in SYSTEMS.values() for claim in system.claims]
    reported, added = ([claim for claim in claims if claim.added is ours] for ours in (False, True))
    head = HEAD.format(
        count=len(reported),
        tally=_tally(reported, best),
        count_added=len(added),
        tally_added=_tally(added, best),
        overview=_overview(best),
    )
    return head + "".join(_table(system, best) for system in SYSTEMS.values())


def _overview(best: Mapping[str, Judgement]) -> str:
    """All claims at a glance: a row for each paper and one for the claims that are not the papers', by verdict."""
    pages = {claim.id: _page(system) for system in SYSTEMS.values() for claim in system.claims}
    claims = [claim for system in SYSTEMS.values() for claim in system.claims]
    verdicts = [each for each in VERDICTS if any(_verdict(claim, best) == each for claim in claims)]

    def row(name: str, claims: Sequence[Claim]) -> str:
        by_verdict = [[claim for claim in claims if _verdict(claim, best) == each] for each in verdicts]
        told = [", ".join(_link(claim, pages[claim.id], best) for claim in alike) for alike in by_verdict]
        return _row(name, *told, _decided(claims, best))

    reported = [claim for claim in claims if not claim.added]
    counts = Counter(_verdict(claim, best) for claim in reported)
    return "".join(
        [
            _header("", *verdicts, "decided"),
            *(
                row(f"[{system.name}](#{system.name})", [claim for claim in system.claims if not claim.added])
                for system in SYSTEMS.values()
            ),
            _row("together", *(f"**{counts[each]}**" for each in verdicts), f"**{_decided(reported, best)}**"),
            row("added", [claim for claim in claims if claim.added]),
        ]
    )


def _decided(claims: Sequence[Claim], best: Mapping[str, Judgement]) -> str:
    return f"{sum(_verdict(claim, best) in DECIDED for claim in claims)} of {len(claims)}"


def _verdict(claim: Claim, best: Mapping[str, Judgement]) -> str:
    return best[claim.id].verdict if claim.id in best else NOT_JUDGED


def _link(claim: Claim, page: str, best: Mapping[str, Judgement]) -> str:
    return f"[{claim.id}](claims/{page}#{claim.id.lower()})" if claim.id in best else claim.id


def _tally(claims: Sequence[Claim], best: Mapping[str, Judgement]) -> str:
    counts = Counter(_verdict(claim, best) for claim in claims)
    halves = sum(claim.id in best and best[claim.id].by_half for claim in claims)
    return ", ".join(
        f"*{each}* {counts[each]}" + (f" ({halves} of them by half)" if each == Verdict.FAILS and halves else "")
        for each in VERDICTS
        if counts[each]
    )


def _table(system: System, best: Mapping[str, Judgement]) -> str:
    page = _page(system)
    lines = [
        f"\n## {system.name}\n\n{system.paper}.\n\n",
        f"Of {len(system.claims)} claims: {_tally(system.claims, best)}. "
        f"[Why]({page}#why-claims-do-not-hold). [All comparisons](claims/{page}).\n\n",
        _header(*COLUMNS),
    ]
    for claim in system.claims:
        found = best.get(claim.id)
        cells = ["–", "–", "–", NOT_JUDGED, "–", "–"] if found is None else _cells(found)
        lines.append(_row(f"**{_link(claim, page, best)}** {claim.short}", *cells))
    return "".join(lines)


def _cells(judgement: Judgement) -> list[str]:
    deciding = judgement.deciding
    asked = f", asked: {deciding.definition.asked}" if deciding.definition.asked else ""
    several = "*" if len(judgement.comparisons) > 1 else ""
    difference = f"{_difference(deciding.found)}{several}{asked}"
    verdict = f"**{judgement.verdict}**" + (" (half)" if judgement.by_half else "")
    command = f"`{judgement.command}`"
    return [
        _reported(deciding.definition, judgement.claim),
        _told(deciding.figures),
        difference,
        verdict,
        judgement.gate,
        command,
    ]


def _reported(comparison: Comparison, claim: Claim) -> str:
    """What the paper has of the comparison, in the same order; of the whole claim where that is all there is."""
    return "; ".join(f"{each:.2f}" for each in comparison.reported) or claim.paper


def _comparisons(
    system: System, judged: Mapping[str, Sequence[Judgement]], remarks: Mapping[str, Sequence[str]]
) -> str:
    lines = [COMPARISONS.format(name=system.name, paper=system.paper, page=_page(system))]
    for claim in system.claims:
        lines.append(f"\n## {claim.id}\n\n{claim.sentence}. The paper: {claim.paper}.\n")
        lines += [part for judgement in judged.get(claim.id, ()) for part in _details(judgement)]
    if system.name in remarks:
        lines += ["\n## Remarks\n\n", *remarks[system.name]]
    return "".join(lines)


def _details(judgement: Judgement) -> Iterator[str]:
    about = f"{judgement.claim.id}, {judgement.scale} scale, {len(judgement.seeds)} seeds"
    by_half = " (half)" if judgement.by_half else ""
    yield f"\n### {about}: {judgement.verdict}{by_half}\n\n`personae reproduce {judgement.command}`\n\n"
    yield _header("comparison", "figures", "difference", "half of the paper's", "verdict")
    for part in judgement.comparisons:
        means = ", ".join(map(_mean, part.figures))
        found = part.found
        yield _row(found["claims"], means, _difference(found), _number(found["half_of_paper"]), found["verdict"])
    if judgement.beside:
        yield f"\nBeside: {_told(judgement.beside)}.\n"
    if judgement.found["gates"]:
        yield "\n" + _header("gate", "figures", "")
        yield from map(_gate, judgement.found["gates"])


def _told(figures: Sequence[Figure]) -> str:
    """The figures with their labels; words that all labels have in common are said once, before them."""
    labels = [[term.split(", ") for term in figure["label"].split(" − ")] for figure in figures]
    terms = [term for label in labels for term in label]
    shared = [word for word in terms[0] if all(word in term for term in terms)] if len(terms) > 1 else []
    rest = [" − ".join(", ".join(word for word in term if word not in shared) for term in label) for label in labels]
    head = f"{', '.join(shared)}: " if shared else ""
    return head + "; ".join(f"{label} {_bold(figure)}" for label, figure in zip(rest, figures, strict=True))


def _bold(figure: Figure) -> str:
    """The mean with its unit, set apart from labels that end in a number."""
    return f"**{_mean(figure)}**" + ("" if figure["unit"] == "%" else f" {figure['unit']}")


def _mean(figure: Figure) -> str:
    values = figure["values"]
    return "–" if None in values else _number(statistics.fmean(values))


def _difference(part: Mapping[str, Any]) -> str:
    interval = "" if part["interval"] is None else " ({} to {})".format(*map(_number, part["interval"]))
    return f"{_number(part['mean'])}{interval}"


def _number(value: float | None) -> str:
    """With a true minus, at which no browser breaks the line; zero has none."""
    return "–" if value is None else f"{round(value, 2) + 0:.2f}".replace("-", "−")


def _gate(gate: Mapping[str, Any]) -> str:
    passed = {True: "passed", False: "not passed", None: "not measured"}[gate["passed"]]
    return _row(gate["condition"], ", ".join(_mean(item) for item in gate["figures"] if item["variants"]), passed)


def _header(*cells: str) -> str:
    return _row(*cells) + f"|{'---|' * len(cells)}\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path, text in pages(folder).items():
        write_text(folder.parent / path, text)
