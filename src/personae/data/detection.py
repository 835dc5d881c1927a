"""Faces and five landmarks in photographs: MTCNN (Zhang et al., 2016), many images at once; needs the extra `align`.

Three small networks in a row: the first proposes squares on a pyramid of the image, the second throws most of them out,
the third finds the landmarks. Their weights come with the package `mtcnn`, inside its wheel. That package runs them on
TensorFlow; here they are run by PyTorch, which is there anyway. Weights are a pickle, so that only the very files that
were looked at are loaded, by their SHA-256.

Coordinates inside are continuous: a pixel begins at its number. Those given out are of pixel centres, as landmarks are.
"""

import hashlib
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from personae.data.align import Points
from personae.data.pixels import Pixels
from personae.errors import ConfigError

NAME = "mtcnn 1.0.0"
_SHA256 = {
    "pnet": "ea6b0c3e685ebee3165326ad6484acc95f2ef78f1c94fbf40a55704fa989f7b5",
    "rnet": "cb00e6460f3c98b0bfafaba3c0a0ded4bdf6e62cee7174d969e8670d7e757fee",
    "onet": "94f6ea2f4cf985275ee958cdd762d17b6009348a4fb9d8c6be39ba73ffd22ca3",
}
_CANVAS = 320
"""Every image is brought to this size for the search; what the networks see of a face is 48 pixels at most."""
_SMALLEST = 32  # on the canvas: a tenth of the image
_FACTOR = 0.709  # from one level of the pyramid to the next
_WINDOW, _STRIDE = 12, 2  # of the first network
_SURE = (0.6, 0.7, 0.7)  # how sure each network must be
_BLACK = -127.5 / 128


@dataclass(frozen=True, eq=False)
class Face:
    """One that was found: left, top, right and bottom, how sure that is, and the landmarks [5, 2]."""

    box: NDArray[np.float64]
    score: float
    landmarks: Points


def require() -> None:
    """Raise a ConfigError where the extra is not installed."""
    _networks()


def find_faces(images: Sequence[Pixels], margin: float = 0.0) -> list[list[Face]]:
    """The faces in each image, the surest first. `margin`: of the longer side, added all around; for tight crops."""
    propose, refine, describe = _networks()
    places = [_place(image.shape[0], image.shape[1], margin) for image in images]
    canvases = torch.stack([_canvas(image, place) for image, place in zip(images, places, strict=True)])
    with torch.inference_mode():
        squares = _proposals(canvases, propose)
        owner, boxes = squares.owner, squares.boxes
        offsets, score = refine(_crops(canvases, owner, boxes, 24))
        squares = _Boxes(owner, boxes, score).better_than(_SURE[1], offsets).without_overlap(0.7).as_squares()
        owner, boxes = squares.owner, squares.boxes
        offsets, points, score = describe(_crops(canvases, owner, boxes, 48))
        corner, sides = boxes[:, None, :2], (boxes[:, 2:] - boxes[:, :2])[:, None]
        # The network gives five x and then five y, from 0 to 1 across the square.
        landmarks = corner + sides * points.view(-1, 2, 5).transpose(1, 2)
        found = _Boxes(owner, boxes, score, landmarks).better_than(_SURE[2], offsets).without_overlap(0.7, least=True)
    return [found.of(number, place) for number, place in enumerate(places)]


def main_face(faces: Sequence[Face], height: int, width: int) -> Face | None:
    """The one that a picture is of: large, and near its centre."""
    centre = np.array([width, height]) / 2

    def prominence(face: Face) -> float:
        left, top, right, bottom = face.box
        away = np.array([left + right, top + bottom]) / 2 - centre
        return float((right - left) * (bottom - top) - 2 * (away**2).sum())

    return max(faces, key=prominence, default=None)


@dataclass(frozen=True)
class _Place:
    """Where an image lies on its canvas."""

    scale: float
    left: int
    top: int


def _place(height: int, width: int, margin: float) -> _Place:
    scale = _CANVAS / (max(height, width) * (1 + 2 * margin))
    left, top = (round((_CANVAS - scale * side) / 2) for side in (width, height))
    return _Place(scale, left, top)


def _canvas(image: Pixels, place: _Place) -> Tensor:
    height, width = (max(1, round(side * place.scale)) for side in image.shape[:2])
    small = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (_CANVAS, _CANVAS))
    canvas.paste(small, (place.left, place.top))
    return torch.from_numpy((np.asarray(canvas, dtype=np.float32) - 127.5) / 128).permute(2, 0, 1)


@dataclass(frozen=True, eq=False)
class _Boxes:
    """Boxes [K, 4] on canvases, and whose they are."""

    owner: Tensor
    boxes: Tensor
    scores: Tensor
    landmarks: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> "_Boxes":
        points = None if self.landmarks is None else self.landmarks[rows]
        return _Boxes(self.owner[rows], self.boxes[rows], self.scores[rows], points)

    def better_than(self, least: float, offsets: Tensor) -> "_Boxes":
        """Those that are sure enough, moved by `offsets`, which are in sides of the box."""
        sides = (self.boxes[:, 2:] - self.boxes[:, :2]).repeat(1, 2)
        moved = _Boxes(self.owner, self.boxes + offsets * sides, self.scores, self.landmarks)
        return moved[torch.nonzero(self.scores > least)[:, 0]]

    def without_overlap(self, most: float, *, least: bool = False) -> "_Boxes":
        """The surest, and of all others those that share no more than `most` of the union (or of the lesser) area."""
        boxes, owner = self.boxes.numpy(), self.owner.numpy()
        areas = (boxes[:, 2:] - boxes[:, :2]).clip(min=0).prod(axis=1)
        waiting, kept = torch.argsort(self.scores, descending=True, stable=True).numpy(), []
        while len(waiting):
            first, waiting = waiting[0], waiting[1:]
            kept.append(first)
            top = np.maximum(boxes[first, :2], boxes[waiting, :2])
            common = (np.minimum(boxes[first, 2:], boxes[waiting, 2:]) - top).clip(min=0).prod(axis=1)
            whole = np.minimum(areas[first], areas[waiting]) if least else areas[first] + areas[waiting] - common
            waiting = waiting[(common <= most * whole) | (owner[waiting] != owner[first])]
        return self[torch.from_numpy(np.array(kept, dtype=np.int64))]

    def as_squares(self) -> "_Boxes":
        """Around the same centres, with the longer of their sides."""
        centre = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        half = (self.boxes[:, 2:] - self.boxes[:, :2]).amax(dim=1, keepdim=True) / 2
        return _Boxes(self.owner, torch.cat([centre - half, centre + half], dim=1), self.scores, self.landmarks)

    def of(self, number: int, place: _Place) -> list[Face]:
        mine = self[torch.nonzero(self.owner == number)[:, 0]]
        assert mine.landmarks is not None
        shift = np.array([place.left, place.top])
        boxes = (mine.boxes.double().numpy().reshape(-1, 2, 2) - shift) / place.scale
        points = (mine.landmarks.double().numpy() - shift) / place.scale - 0.5
        return [
            Face(box.ravel(), float(score), face) for box, score, face in zip(boxes, mine.scores, points, strict=True)
        ]


def _proposals(canvases: Tensor, network: nn.Module) -> _Boxes:
    """Squares that the first network takes for faces, at every level of the pyramid."""
    scale, levels = _WINDOW / _SMALLEST, []
    while (side := round(_CANVAS * scale)) >= _WINDOW:
        offsets, score = network(F.interpolate(canvases, size=(side, side), mode="area"))
        owner, row, column = torch.nonzero(score > _SURE[0], as_tuple=True)
        corner = torch.stack([column, row], dim=1).float() * _STRIDE
        boxes = torch.cat([corner, corner + _WINDOW], dim=1) * (_CANVAS / side)
        level = _Boxes(owner, boxes, score[owner, row, column])
        levels.append(level.better_than(_SURE[0], offsets[owner, :, row, column]).without_overlap(0.5))
        scale *= _FACTOR
    parts = ([getattr(level, name) for level in levels] for name in ("owner", "boxes", "scores"))
    return _Boxes(*map(torch.cat, parts)).without_overlap(0.7).as_squares()


def _crops(canvases: Tensor, owner: Tensor, boxes: Tensor, side: int) -> Tensor:
    """[K, 3, side, side]: what is in each box, black beyond the canvas; taken twice as fine and averaged."""
    steps = (torch.arange(2 * side) + 0.5) / (2 * side)
    along = boxes[:, None, :2] + (boxes[:, None, 2:] - boxes[:, None, :2]) * steps[None, :, None]
    along = along * (2 / _CANVAS) - 1
    x, y = along[:, None, :, 0].expand(-1, 2 * side, -1), along[:, :, None, 1].expand(-1, -1, 2 * side)
    grid = torch.stack([x, y], dim=3)
    crops = torch.empty(len(boxes), 3, side, side)
    for number in range(len(canvases)):
        mine = torch.nonzero(owner == number)[:, 0]
        canvas = (canvases[number] - _BLACK).expand(len(mine), -1, -1, -1)
        crops[mine] = F.avg_pool2d(F.grid_sample(canvas, grid[mine], align_corners=False), 2) + _BLACK
    return crops


class _Proposer(nn.Module):
    """P-Net: at every place of an image, how sure a face is there, and how its square is to be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Conv2d(3, 10, 3), nn.PReLU(10), nn.MaxPool2d(2, ceil_mode=True)),
            *(nn.Conv2d(10, 16, 3), nn.PReLU(16), nn.Conv2d(16, 32, 3), nn.PReLU(32)),
        )
        self.heads = nn.ModuleList([nn.Conv2d(32, 4, 1), nn.Conv2d(32, 2, 1)])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        offsets, classes = (head(features) for head in self.heads)
        return offsets, classes.softmax(dim=1)[:, 1]


class _Judge(nn.Module):
    """R-Net and O-Net: the same of a square that was cut out; the last output is how sure it is a face."""

    def __init__(self, trunk: Sequence[nn.Module], features: int, hidden: int, heads: Sequence[int]) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*trunk)
        self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.PReLU(hidden))
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in heads)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        # The weights are from a program that stores images column by column.
        vectors = self.hidden(self.trunk(images).permute(0, 3, 2, 1).flatten(1))
        *others, classes = (head(vectors) for head in self.heads)
        return *others, classes.softmax(dim=1)[:, 1]


def _refiner() -> nn.Module:
    trunk = (
        *(nn.Conv2d(3, 28, 3), nn.PReLU(28), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(nn.Conv2d(28, 48, 3), nn.PReLU(48), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(48, 64, 2), nn.PReLU(64)),
    )
    return _Judge(trunk, 576, 128, (4, 2))


def _describer() -> nn.Module:
    trunk = (
        *(nn.Conv2d(3, 32, 3), nn.PReLU(32), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(nn.Conv2d(32, 64, 3), nn.PReLU(64), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 64, 3), nn.PReLU(64), nn.MaxPool2d(2, ceil_mode=True)),
        *(nn.Conv2d(64, 128, 2), nn.PReLU(128)),
    )
    return _Judge(trunk, 1152, 256, (4, 10, 2))


@cache
def _networks() -> tuple[nn.Module, nn.Module, nn.Module]:
    """The three of them, with the weights of the package."""
    networks = _Proposer(), _refiner(), _describer()
    for network, name in zip(networks, _SHA256, strict=True):
        parameters = dict(network.named_parameters())
        for parameter, values in zip(parameters.values(), _weights(name), strict=True):
            parameter.data.copy_(_arranged(torch.from_numpy(values), parameter))
        network.eval()
    return networks


def _arranged(values: Tensor, parameter: Tensor) -> Tensor:
    """Keras has the inputs of a layer before its outputs."""
    if parameter.dim() == 4:
        return values.permute(3, 2, 0, 1)
    return values.T if parameter.dim() == 2 else values.flatten()


def _weights(name: str) -> list[NDArray[np.float32]]:
    advice = 'install the detector with: pip install "personae[align]"'
    package = importlib.util.find_spec("mtcnn")
    if package is None or package.origin is None:
        raise ConfigError(f"finding faces needs the package mtcnn; {advice}, or give `personae data align` --landmarks")
    file = Path(package.origin).parent / "assets" / "weights" / f"{name}.lz4"
    content = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != _SHA256[name]:
        raise ConfigError(f"{file}: not the weights of {NAME}; {advice}")
    import joblib  # comes with the package, as what it was written with does

    weights: list[NDArray[np.float32]] = joblib.load(io.BytesIO(content))
    return weights
