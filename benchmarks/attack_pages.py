"""The tables of docs/concepts/security.md and docs/results/attacks.md, from what was measured.

    python benchmarks/attack_pages.py

`benchmarks/attacks.py` and `benchmarks/triggers.py` measure.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import triggers
from attacks import (
    BEYOND,
    DOCS,
    FIRST,
    FURTHER,
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
from personae.words import counted

PAGES = (DOCS / "concepts" / "security.md", DOCS / "results" / "attacks.md")
END = "<!-- end -->"
NOT_RUN = "–"


def filled(text: str) -> str:
    """A page with every table anew, between the line that names it and the end."""
    for name, table in tables(cells(RESULTS)).items():
        begin = f"<!-- table: {name} -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n\n{table}\n{END}{rest.partition(END)[2]}"
    return text


def tables(found: Cells) -> dict[str, str]:
    """By name. One that nothing was measured for says so."""
    beside = ("off", "multi-krum", "median", "default", "grouped")
    made = {
        "points lost": _points(found, 0.2, 10, (*FIRST, *BEYOND), beside),
        "strangers accepted": _accepted(found, 0.2, 10, (*FIRST, *BEYOND, *REST), beside),
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
    found: Cells, share: float, clients: int, attacks: Iterable[tuple[str, float]], rules: Iterable[str]
) -> str:
    """What attacks take of the TAR of an honest run without defence."""
    rows = [
        (label, [_lost(lines, found) for lines in each])
        for label, each in _rows(found, share, clients, (("", 1), *attacks), rules)
    ]
    return _table("points of TAR", rules, rows)


def _accepted(
    found: Cells, share: float, clients: int, attacks: Iterable[tuple[str, float]], rules: Iterable[str]
) -> str:
    """How often strangers who wear the trigger are accepted, beside an honest model."""
    rows = []
    for kind, trigger in TRIGGERS.items():
        honest = _rows(found, share, clients, [("", 1)], rules)[0][1]
        rates = [[line.get(f"accepted/{kind}") for line in lines] for lines in honest]
        mine = [
            (label, [[line.get(f"accepted/{name}") for line in lines] for lines in each])
            for name, scale in attacks
            if name == kind or (kind == "backdoor" and name in ("model-replacement", "backdoor-counts"))
            for label, each in _rows(found, share, clients, [(name, scale)], rules)
        ]
        if any(any(each) for _, each in mine):
            rows += [(f"nobody attacks: {trigger}", rates), *mine]
    return _table(
        "% of strangers accepted", rules, [(label, [_figure(each, max) for each in some]) for label, some in rows]
    )


def _rows(
    found: Cells, share: float, clients: int, attacks: Iterable[tuple[str, float]], rules: Iterable[str]
) -> list[tuple[str, list[list[dict[str, Any]]]]]:
    """By attack and rule, the cells of all seeds that are there."""
    rows = []
    for name, scale in attacks:
        label = (f"`{name}`" + (f", x{scale:g}" if scale != 1 else "")) if name else "nobody attacks"
        algorithm = "fedgc" if name == "poisoned-rows" else "fedpe"
        jobs = [
            [Job(rule, name, scale, share if name else 0.2, seed, clients, algorithm=algorithm) for seed in SEEDS]
            for rule in rules
        ]
        rows.append((label, [[found[job] for job in each if job in found] for each in jobs]))
    return rows


def _table(title: str, rules: Iterable[str], rows: Iterable[tuple[str, list[str]]]) -> str:
    """Without the rows of what was run under no rule but the first, which is no defence."""
    there = [(label, cells) for label, cells in rows if set(cells[1:]) != {NOT_RUN}]
    if all(label.startswith("nobody") for label, _ in there):
        return "Not run.\n"
    head = [f"| {title} | " + " | ".join(RULES[rule] for rule in rules) + " |", "|---" * (1 + len(list(rules))) + "|"]
    return "\n".join([*head, *(f"| {label} | " + " | ".join(cells) + " |" for label, cells in there)]) + "\n"


def _figure(values: Sequence[float | None], worst: Callable[[Iterable[float]], float], sign: str = "") -> str:
    """In percent: the mean over seeds, and the worst of them in brackets. A star: not all seeds were run."""
    there = [100 * value for value in values if value is not None]
    if not there or len(there) < len(values):
        return NOT_RUN
    spread = f" ({worst(there):{sign}.1f})" if len(there) > 1 else ""
    star = "*" if len(there) < len(SEEDS) else ""
    return f"{statistics.mean(there):{sign}.1f}{spread}{star}"


def _lost(lines: Sequence[dict[str, Any]], found: Cells) -> str:
    """The points that were lost, or how many runs ended before their time."""
    ended = sum("ended" in line for line in lines)
    return f"{ended} of {len(lines)} ended" if ended else _figure([_gain(line, found) for line in lines], min, "+")


def _gain(line: dict[str, Any], found: Cells) -> float | None:
    """Against the honest run without defence of the same seed, clients and algorithm."""
    same = {name: line[name] for name in ("seed", "clients", "by", "algorithm")}
    beside = found.get(Job("off", **same))
    return line["tar"] - beside["tar"] if beside else None


def _honest(found: Cells) -> str:
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
        lines = {rule: [found.get(Job(rule, seed=seed, **kind)) for seed in SEEDS] for rule in ("off", *rules)}
        cells = []
        for figure in ("tar", "worst"):
            pairs = {
                rule: [(a[figure], b[figure]) for a, b in zip(lines["off"], each, strict=True) if a and b]
                for rule, each in lines.items()
            }
            known = {rule: [pair for pair in each if None not in pair] for rule, each in pairs.items()}
            cells.append(_figure([a for a, _ in known["off"]], min))
            cells += [_figure([b - a for a, b in known[rule]], min, "+") for rule in rules]
        if set(cells) != {NOT_RUN}:
            rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _rules_for_honest(found: Cells) -> str:
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
            jobs = [(Job(rule, seed=seed, **kinds[label]), Job("off", seed=seed, **kinds[label])) for seed in SEEDS]
            pairs = [(found[job][figure], found[off][figure]) for job, off in jobs if job in found and off in found]
            values = [a if rule == "off" else a - b for a, b in pairs]
            cells.append(_figure(values, min, "" if rule == "off" else "+"))
        rows.append(f"| {RULES[rule]} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _poisoned(found: Cells) -> str:
    """Poisoned class embeddings, by the algorithm that sends them."""
    rules, rows = ("off", "default"), []
    for algorithm, title in SEND_ROWS.items():
        jobs = [[Job(rule, "poisoned-rows", 8, seed=seed, algorithm=algorithm) for seed in SEEDS] for rule in rules]
        lines = [[found[job] for job in each if job in found] for each in jobs]
        rows.append((title, [_lost(each, found) for each in lines]))
    return _table("points of TAR, `poisoned-rows`, x8", rules, rows)


def _deeds(found: Cells) -> str:
    """What the server did about honest clients and attackers, in all runs with the default."""
    lines = [line for job, line in found.items() if job.rule == "default"]
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
