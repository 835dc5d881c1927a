"""Numbers as people say them."""

from collections.abc import Sequence

UNITS = {unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}


def percent(rate: float) -> str:
    """`10%`, `0.1%`: without zeros at the end, and never as a power of ten."""
    text = f"{100 * rate:.10f}".rstrip("0").rstrip(".")
    return f"{text}%"


def duration(seconds: float) -> str:
    """`48 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


def joined(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def unit_of(count: int) -> tuple[str, int]:
    """The unit that gives a short number of bytes, and how many it has."""
    return next((each for each in UNITS.items() if count < 1000 * each[1]), ("TB", UNITS["TB"]))


def size(count: int) -> str:
    """Bytes in the unit that gives a short number."""
    unit, of = unit_of(count)
    return f"{count} B" if unit == "B" else f"{count / of:,.1f} {unit}"
