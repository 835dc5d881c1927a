"""Numbers as people say them."""

from collections.abc import Sequence


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


def size(count: int) -> str:
    """Bytes in the unit that gives a short number."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
