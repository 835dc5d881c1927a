"""Five landmarks of a face to where the field's networks expect them: a similarity, estimated by least squares."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from personae.data.pixels import Pixels

Points = NDArray[np.float64]

TEMPLATE: Points = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""Eyes, nose and corners of the mouth in an image of 112 x 112, left ones first as one sees them."""

_SIDE = 112


def template(height: int, width: int) -> Points:
    """The template for images of another size: scaled with the height, centred in the width."""
    scale = height / _SIDE
    return (TEMPLATE - [_SIDE / 2, 0]) * scale + [width / 2, 0]


def similarity(points: Points, target: Points) -> NDArray[np.float64]:
    """[2, 3]: rotation, scaling and shift that bring `points` nearest to `target` (Umeyama, 1991); no reflection."""
    centre, goal = points.mean(axis=0), target.mean(axis=0)
    away, wanted = points - centre, target - goal
    left, singular, right = np.linalg.svd(wanted.T @ away / len(points))
    signs = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right)) or 1.0])
    turn = left @ np.diag(signs) @ right
    spread = away.var(axis=0).sum()
    scale = singular @ signs / spread if spread > 0 else 1.0
    return np.column_stack([scale * turn, goal - scale * turn @ centre])


def warp(pixels: Pixels, matrix: NDArray[np.float64], height: int, width: int) -> Pixels:
    """The image moved by `matrix`, bilinear, black where there is nothing; coordinates are those of pixel centres."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2]
    # Pillow counts from the corner of a pixel, half a pixel before its centre.
    shift = back[:, 2] + 0.5 - 0.5 * back[:, :2].sum(axis=1)
    coefficients = (*back[0, :2], shift[0], *back[1, :2], shift[1])
    image = Image.fromarray(pixels)
    return np.asarray(image.transform((width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR))
