"""Some of your own people as those to test on, of whom nobody trains on any photograph."""

import math
from typing import Any

from numpy.typing import NDArray

FOLDS = 10
HELD_OUT = 0.2  # of the people


def with_people_held_out(raw: dict[str, Any], counts: NDArray[Any]) -> dict[str, Any]:
    """The last fifth of the people become those to test on, if there are enough; `counts`: images of each person."""
    counts = counts[counts > 0]  # who has too few images is left out already
    kept = len(counts) - round(HELD_OUT * len(counts))
    folds = min(FOLDS, (len(counts) - kept) // 2)
    if folds < 2:
        return raw
    each, images = (len(counts) - kept) // folds, int(counts[kept:].min())
    pairs = min(each * math.comb(images, 2), math.comb(each, 2) * images**2)  # of either kind, in every fold at least
    if not pairs:
        return raw
    source = raw["data"]["private"]
    held = {"private": {**source, "identities": kept}, "heldout": {**source, "first": kept}}
    options = {"folds": folds, "pairs_per_fold": min(600, 2 * pairs), "personal_benchmarks": True}
    return {**raw, "data": {**raw["data"], **held}, "evaluation": {**raw["evaluation"], **options}}
