"""The same picture twice: the same file, or thumbnails that are nearly the same, under one identity or two."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from personae.progress import Progress

ALIKE = 0.995
"""Correlation of thumbnails from which two images count as nearly the same."""
COMPARED = 30_000
"""Images, at most; the comparison of all with all grows with the square."""

_BLOCK = 1024


def identical(digests: Sequence[bytes], people: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """Pairs of files that are the same under two identities, and how many are repeated within one."""
    first: dict[bytes, int] = {}
    shared, repeated = [], 0
    for position, digest in enumerate(digests):
        other = first.setdefault(digest, position)
        if people[other] != people[position]:
            shared.append((other, position))
        elif other != position:
            repeated += 1
    return shared, repeated


def nearly_identical(
    thumbnails: NDArray[np.float32], digests: Sequence[bytes], people: Sequence[str], progress: Progress
) -> list[tuple[int, int, float]] | None:
    """Pairs of different files under two identities whose thumbnails correlate; the most alike first."""
    count = len(people)
    if count > COMPARED:
        return None
    thumbnails = _normalised(thumbnails)
    names = np.unique(people, return_inverse=True)[1]
    files = np.unique(np.array(digests, dtype="S16"), return_inverse=True)[1] if count else names
    pairs = []
    with progress("comparing images", count, "images") as advance:
        for start in range(0, count, _BLOCK):
            scores = thumbnails[start : start + _BLOCK] @ thumbnails[start:].T
            for row, column in zip(*np.nonzero(scores >= ALIKE), strict=True):
                one, other = start + int(row), start + int(column)
                if one < other and names[one] != names[other] and files[one] != files[other]:
                    pairs.append((one, other, float(scores[row, column])))
            advance(len(scores))
    return sorted(pairs, key=lambda pair: (-pair[2], pair))


def _normalised(thumbnails: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without brightness and contrast; a blank image is like no other."""
    centred = thumbnails - thumbnails.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 1e-3)
    return scaled
