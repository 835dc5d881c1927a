"""What is done with images that are more than an aligned face, or less."""

from typing import Literal, TypedDict

from personae.data.levels import Level

Crop = Literal["haar", "align"]
Missed = Literal["skip", "crop"]

MIN_SCORE = 0.8
"""How sure the detector must be: from 0.7 (it finds nothing below) to 1. docs/howto/data.md has what that costs."""


class Handling(TypedDict, total=False):
    """What is done with folders in folders, and with images that are more than an aligned face, or less; see
    `open_faces`."""

    skip_unreadable: bool
    crop: Crop | None
    missed: Missed | None
    as_they_are: bool
    identity_level: Level | None
