"""Keys that experiments had in the past, and what to write instead."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

RENAMED: Mapping[str, str] = {  # the place of the old key, where * is the name of a stage
    "stages.*.algorithm.judged": "evaluated = ...",
    "stages.*.participation": 'selection = { name = "share", share = ... }',
    "stages.*.carry": 'layers = [{ name = "carry", ... }]',
    "stages.*.algorithm.rows": "head_init",
    "stages.*.algorithm.public": "use_public_faces",
    "stages.*.algorithm.regularisation": 'terms = [{ name = "embedding-regularisation", weight = ... }]',
    "stages.*.algorithm.training.prox": 'terms = [{ name = "proximal", weight = ... }] beside training',
}


def replacement(place: str) -> str | None:
    """What stands today for the key that was at this place, if there was one."""
    return next((today for old, today in RENAMED.items() if fnmatchcase(place, old)), None)
