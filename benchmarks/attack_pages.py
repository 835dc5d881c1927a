"""The tables of docs/concepts/security.md and docs/results/attacks.md, from what was measured.

    python benchmarks/attack_pages.py

`benchmarks/attacks.py` and `benchmarks/triggers.py` measure. A dagger marks what was measured with the defence before
the present one and not yet again.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import triggers
from attacks import (
    BEYOND,
    CHOSEN_ON,
    DOCS,
    FIRST,
    FRESH,
    FURTHER,
    KNOWING,
    REST,
    RESULTS,
    RULES,
    SEEDS,
    SEND_ROWS,
    SYSTEMS,
    TRIGGERS,
    Cells,
    Job,
    cells,
)
from personae.files import write_text
from personae.runtime.firewall import DEFENCE
from personae.words import counted

PATCHES = ("model-replacement", "backdoor-counts", "backdoor-split")  # whose trigger is that of `backdoor`
PAGES = (DOCS / "concepts" / "security.md", DOCS / "results" / "attacks.md")
END = "<!-- end -->"
NOT_RUN, EARLIER = "–", "†"

Line = dict[str, Any]


@dataclass(frozen=True)
class Board:
    """What was measured, with the present defence and with the one before it."""

    present: Cells
    earlier: Cells

    def lines(self, jobs: Sequence[Job]) -> list[Line | None]:
        """For one cell of a table, by seed. What two defences did is never mixed: the one with more seeds is shown."""
        now, then = ([cells.get(job) for job in jobs] for cells in (self.present, self.earlier))
        if _count(now) >= _count(then):
            return now
        return [line and line | {"earlier": True} for line in then]


def _count(lines: Sequence[Line | None]) -> int:
    return sum(line is not None for line in lines)


def board() -> Board:
    return Board(cells(RESULTS), cells(RESULTS, DEFENCE - 1))


def filled(text: str) -> str:
    """A page with every table anew, between the line that names it and the end."""
    for name, table in tables(board()).items():
        begin = f"<!-- table: {name} -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n\n{table}\n{END}{rest.partition(END)[2]}"
    return text


def tables(found: Board) -> dict[str, str]:
    """By name. One that nothing was measured for says so."""
    beside, knowing = ("off", "multi-krum", "median", "default", "grouped"), ("off", "default", "grouped")
    made = {
        "points lost": _points(found, 0.2, 10, (*FIRST, *BEYOND), beside),
        "strangers accepted": _accepted(found, 0.2, 10, (*FIRST, *BEYOND, *REST), beside),
        "points lost to who knows": _points(found, 0.2, 10, KNOWING, knowing, FRESH),
        "strangers accepted, who know": _accepted(found, 0.2, 10, KNOWING, knowing, FRESH),
        "points lost to who knows, chosen on": _points(found, 0.2, 10, KNOWING, knowing, CHOSEN_ON),
        "strangers accepted, who know, chosen on": _accepted(found, 0.2, 10, KNOWING, knowing, CHOSEN_ON),
        "honest clients": _honest(found),
        "honest clients, every rule": _rules_for_honest(found),
        "poisoned rows": _poisoned(found),
        "deeds": _deeds(found),
        "triggers": triggers.table(triggers.RESULTS),
        "points lost, the rest": _points(found, 0.2, 10, REST, beside),
        "points lost, further rules": _points(found, 0.2, 10, FIRST, ("off", *FURTHER)),
        "strangers accepted, further rules": _accepted(found, 0.2, 10, FIRST, ("off", *FURTHER)),
    }
    for clients in (10, 40):
        for share in (0.1, 0.2, 0.3):
            label = f"{share:.0%} of {clients}"
            attacks = (*FIRST, *BEYOND) if share == 0.2 else FIRST
            made |= {f"points lost, {label}": _points(found, share, clients, attacks, beside)}
            made |= {f"strangers accepted, {label}": _accepted(found, share, clients, attacks, beside)}
    return made


def _points(
    found: Board,
    share: float,
    clients: int,
    attacks: Iterable[tuple[str, float]],
    rules: Iterable[str],
    seeds: Sequence[int] = SEEDS,
) -> str:
    """What attacks take of the TAR of an honest run without defence."""
    rows = [
        (label, [_lost(lines, found, seeds) for lines in each])
        for label, each in _rows(found, share, clients, (("", 1), *attacks), rules, seeds)
    ]
    return _table("points of TAR", rules, rows)


def _accepted(
    found: Board,
    share: float,
    clients: int,
    attacks: Iterable[tuple[str, float]],
    rules: Iterable[str],
    seeds: Sequence[int] = SEEDS,
) -> str:
    """How often strangers who wear the trigger are accepted, beside an honest model."""
    rows: list[tuple[str, str, list[list[Line]]]] = []

    def rows_of(attack: tuple[str, float]) -> list[tuple[str, list[list[Line]]]]:
        return _rows(found, share, clients, [attack], rules, seeds)

    for kind, trigger in TRIGGERS.items():
        of_kind = [each for each in attacks if each[0] == kind or (kind == "backdoor" and each[0] in PATCHES)]
        mine = [(label, name, each) for name, scale in of_kind for label, each in rows_of((name, scale))]
        if any(any(each) for _, _, each in mine):
            ((_, honest),) = rows_of(("", 1))
            rows += [(f"nobody attacks: {trigger}", kind, honest), *mine]
    shown = [
        (label, [_figure(each, [line.get(f"accepted/{name}") for line in each], max, seeds) for each in some])
        for label, name, some in rows
    ]
    return _table("% of strangers accepted", rules, shown)


def _rows(
    found: Board,
    share: float,
    clients: int,
    attacks: Iterable[tuple[str, float]],
    rules: Iterable[str],
    seeds: Sequence[int],
) -> list[tuple[str, list[list[Line]]]]:
    """By attack and rule, the cells of all seeds that are there."""
    rows = []
    for name, scale in attacks:
        label = (f"`{name}`" + (f", x{scale:g}" if scale != 1 else "")) if name else "nobody attacks"
        algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
        jobs = [
            [Job(rule, name, scale, share if name else 0.2, seed, clients, algorithm=algorithm) for seed in seeds]
            for rule in rules
        ]
        rows.append((label, [[line for line in found.lines(each) if line] for each in jobs]))
    return rows


def _table(title: str, rules: Iterable[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    """Without the rows of what was run under no rule but the first, which is no defence."""
    there = [(label, cells) for label, cells in rows if set(cells[1:]) != {NOT_RUN}]
    if all(label.startswith("nobody") for label, _ in there):
        return "Not run.\n"
    head = [f"| {title} | " + " | ".join(RULES[rule] for rule in rules) + " |", "|---" * (1 + len(list(rules))) + "|"]
    return "\n".join([*head, *(f"| {label} | " + " | ".join(cells) + " |" for label, cells in there)]) + "\n"


def _figure(
    lines: Sequence[Line],
    values: Sequence[float | None],
    worst: Callable[[Iterable[float]], float],
    seeds: Sequence[int] = SEEDS,
    sign: str = "",
) -> str:
    """In percent: the mean over seeds, and the worst of them in brackets. A star: not all seeds were run."""
    there = [100 * value for value in values if value is not None]
    if not there or len(there) < len(values):
        return NOT_RUN
    spread = f" ({worst(there):{sign}.1f})" if len(there) > 1 else ""
    marks = ("*" if len(there) < len(seeds) else "") + (EARLIER if any("earlier" in line for line in lines) else "")
    return f"{statistics.mean(there):{sign}.1f}{spread}{marks}"


def _lost(lines: Sequence[Line], found: Board, seeds: Sequence[int] = SEEDS) -> str:
    """The points that were lost, or how many runs ended before their time."""
    ended = sum("ended" in line for line in lines)
    if ended:
        return f"{ended} of {len(lines)} ended"
    return _figure(lines, [_gain(line, found) for line in lines], min, seeds, "+")


def _gain(line: Line, found: Board) -> float | None:
    """Against the honest run without defence of the same seed, clients and algorithm."""
    same = {name: line[name] for name in ("seed", "clients", "by", "algorithm")}
    beside = found.present.get(Job("off", **same))
    return line["tar"] - beside["tar"] if beside else None


def _honest(found: Board) -> str:
    """The TAR without attackers, and the client for which the model works worst; what defences change about them."""
    kinds: dict[str, dict[str, Any]] = {
        "FedPE": {},
        "FedPE, 40 clients": {"clients": 40},
        "FedPE, log-normal: 16 to 343 images": {"by": "lognormal-images"},
        "FedFace, one person each": {"by": "one-identity", "algorithm": "fedface"},
        **{title: {"algorithm": name} for name, title in SYSTEMS.items()},
    }
    rules = ("default", "grouped")
    head = ["TAR", *(RULES[rule] for rule in rules), "worst client", *(RULES[rule] for rule in rules)]
    rows = ["| honest clients | " + " | ".join(head) + " |", "|---" * 7 + "|"]
    for label, kind in kinds.items():
        lines = {rule: found.lines([Job(rule, seed=seed, **kind) for seed in SEEDS]) for rule in ("off", *rules)}
        pairs = {
            rule: [(a, b) for a, b in zip(lines["off"], each, strict=True) if a and b] for rule, each in lines.items()
        }
        cells = []
        for figure in ("tar", "worst"):
            known = {
                rule: [(a, b) for a, b in each if None not in (a[figure], b[figure])] for rule, each in pairs.items()
            }
            honest = [a for a, _ in known["off"]]
            cells.append(_figure(honest, [line[figure] for line in honest], min))
            for rule in rules:
                changes = [b[figure] - a[figure] for a, b in known[rule]]
                cells.append(_figure([b for _, b in known[rule]], changes, min, sign="+"))
        if set(cells) != {NOT_RUN}:
            rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _rules_for_honest(found: Board) -> str:
    """What the rules change for clients of one size, of many sizes, and with one person each."""
    kinds: dict[str, dict[str, Any]] = {
        "equal": {},
        "log-normal": {"by": "lognormal-images"},
        "one person each": {"by": "one-identity", "algorithm": "fedface"},
    }
    columns = [(label, figure) for figure in ("tar", "worst") for label in list(kinds)[: 3 if figure == "tar" else 2]]
    head = [f"{'TAR' if figure == 'tar' else 'worst client'}, {label}" for label, figure in columns]
    rows = ["| honest clients | " + " | ".join(head) + " |", "|---" * (1 + len(head)) + "|"]
    for rule in RULES:
        cells = []
        for label, figure in columns:
            judged, off = (
                found.lines([Job(each, seed=seed, **kinds[label]) for seed in SEEDS]) for each in (rule, "off")
            )
            pairs = [(a, b) for a, b in zip(judged, off, strict=True) if a and b]
            values = [a[figure] if rule == "off" else a[figure] - b[figure] for a, b in pairs]
            cells.append(_figure([a for a, _ in pairs], values, min, sign="" if rule == "off" else "+"))
        rows.append(f"| {RULES[rule]} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _poisoned(found: Board) -> str:
    """Poisoned class embeddings, by the algorithm that sends them."""
    rules, rows = ("off", "default"), []
    for algorithm, title in SEND_ROWS.items():
        jobs = [[Job(rule, "poisoned-rows", 8, seed=seed, algorithm=algorithm) for seed in SEEDS] for rule in rules]
        lines = [[line for line in found.lines(each) if line] for each in jobs]
        rows.append((title, [_lost(each, found) for each in lines]))
    return _table("points of TAR, `poisoned-rows`, x8", rules, rows)


def _deeds(found: Board) -> str:
    """What the server did about honest clients and attackers, in all runs with the default."""
    lines = [line for job, line in found.present.items() if job.rule == "default"]
    attacked, honest = ([line for line in lines if bool(line["attack"]) == kind] for kind in (True, False))
    rows = ["| rounds in which an update was, under the default | refused | left out | drawn back |", "|---" * 4 + "|"]
    for label, some, whom in (
        (f"of honest clients, in {counted(len(honest), 'honest run')}", honest, "honest"),
        (f"of honest clients, in {counted(len(attacked), 'attacked run')}", attacked, "honest"),
        (f"of attackers, in {counted(len(attacked), 'attacked run')}", attacked, "attackers"),
    ):
        sums = [sum(line.get(f"{what}: {whom}", 0) for line in some) for what in ("refused", "left out", "drawn back")]
        rows.append(f"| {label} | " + " | ".join(map(str, sums)) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    for page in PAGES:
        write_text(page, filled(page.read_text()))
