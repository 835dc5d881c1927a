"""Can images be aligned faces, by their sizes? The one rule for everything that takes faces."""

from collections.abc import Mapping

from personae.errors import DataError

Sizes = Mapping[tuple[int, int], int]
"""How many images there are of each height and width."""


def refuse_unaligned(sizes: Sizes, height: int, width: int, source: str, latest: str = "") -> None:
    """Aligned faces have one size and the shape that the network takes; a network takes anything else in silence.

    Square faces fit a narrower network, too: the template is centred in the width, so that to cut off their sides is to
    align them to it. `latest`: the image that was looked at last.
    """
    if len(sizes) > 1:
        (one, _), (other, _) = sorted(sizes.items(), key=lambda size: -size[1])[:2]
        named = f" ({latest})" if latest else ""
        why = f"images of several sizes, such as {_written(one)} and {_written(other)}{named}"
    elif all(_fits(size, height, width) for size in sizes):
        return
    else:
        why = f"images of {_written(next(iter(sizes)))}, where the network takes {_written((height, width))}"
    raise DataError(
        f"{source}: {why}: these are not aligned faces. Align them with `personae data align`, or on the way with"
        ' --align (in an experiment crop = "align"), or take them as they are with --as-they-are (as_they_are = true)'
    )


def _fits(size: tuple[int, int], height: int, width: int) -> bool:
    """Up to less than a pixel, which is what scaling rounds away."""
    rows, columns = size
    return abs(columns - rows * width / height) < 1 or (rows == columns and width < height)


def _written(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"
