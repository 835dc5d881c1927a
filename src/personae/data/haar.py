"""Faces cut out of photographs by Haar cascades, as HF-MAML's paper does with CelebA; needs the extra `align`."""

from functools import cache
from typing import Any

import numpy as np

from personae.data.images import NO_FACE, NoFaceError
from personae.data.pixels import Pixels
from personae.errors import ConfigError

CASCADE = "haarcascade_frontalface_default.xml"
SMALLEST = 0.2  # of the shorter side: what is smaller is hardly the face that the picture is of


def crop_face(pixels: Pixels) -> Pixels:
    """The largest face that the cascade finds, as a square of the image [height, width, 3]; NoFaceError without any."""
    cv2 = _opencv()
    grey = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)
    least = max(1, round(SMALLEST * min(grey.shape)))
    found = _cascade().detectMultiScale(grey, scaleFactor=1.1, minNeighbors=5, minSize=(least, least))
    if not len(found):
        raise NoFaceError(NO_FACE)
    left, top, width, height = max(map(tuple, found), key=lambda box: (box[2] * box[3], box))
    return pixels[top : top + height, left : left + width]


def require() -> None:
    """Raise a ConfigError where the extra is not installed."""
    _opencv()


def _opencv() -> Any:
    try:
        import cv2  # an extra, and slow to import
    except ImportError as error:
        raise ConfigError('crop = "haar" needs OpenCV; install it with: pip install "personae[align]"') from error
    return cv2


@cache
def _cascade() -> Any:
    cv2 = _opencv()
    return cv2.CascadeClassifier(cv2.data.haarcascades + CASCADE)
