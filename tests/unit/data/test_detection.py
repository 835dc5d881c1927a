"""The detector: its networks computed again slowly, its boxes by brute force, and faces found where they were put."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from personae.data import detection, synthetic_faces
from personae.data.detection import Face, _Boxes, find_faces, main_face
from personae.errors import ConfigError

if importlib.util.find_spec("mtcnn") is None:  # importing it would need TensorFlow
    pytest.skip("the extra `align` is not installed", allow_module_level=True)

LAYERS = {  # convolutions and the size and stride of the pool behind each, of which only some round up
    "pnet": ([(2, 2, True), None, None], 0),
    "rnet": ([(3, 2, True), (3, 2, False), None], 1),
    "onet": ([(3, 2, True), (3, 2, False), (2, 2, True), None], 1),
}


def convolved(image: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """[H, W, C] with a kernel [h, w, C, D], in float64, one place at a time."""
    rows, columns = image.shape[0] - kernel.shape[0] + 1, image.shape[1] - kernel.shape[1] + 1
    result = np.empty((rows, columns, kernel.shape[3]))
    for y in range(rows):
        for x in range(columns):
            window = image[y : y + kernel.shape[0], x : x + kernel.shape[1]]
            result[y, x] = np.tensordot(window, kernel, 3) + bias
    return result


def pooled(image: np.ndarray, size: int, stride: int, partial: bool) -> np.ndarray:
    """The maximum of every window, of windows that leave the image only if `partial`."""
    sides = [range(0, side - (0 if partial else size - 1), stride) for side in image.shape[:2]]
    starts = [[start for start in side if not partial or start == 0 or start - stride + size < total] for side, total in
              zip(sides, image.shape[:2], strict=True)]  # fmt: skip
    return np.array([[image[y : y + size, x : x + size].max(axis=(0, 1)) for x in starts[1]] for y in starts[0]])


def rectified(values: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, values * slopes.reshape(-1))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def slowly(name: str, image: np.ndarray) -> list[np.ndarray]:
    """The network as Keras would: height, width, channels; inputs before outputs."""
    weights = [values.astype(np.float64) for values in detection._weights(name)]
    pools, hidden = LAYERS[name]
    for pool in pools:
        kernel, bias, slopes, *weights = weights
        image = rectified(convolved(image, kernel, bias), slopes)
        image = image if pool is None else pooled(image, *pool)
    if hidden:
        matrix, bias, slopes, *weights = weights
        image = rectified(image.transpose(1, 0, 2).reshape(-1) @ matrix + bias, slopes)
    heads = [image @ (matrix[0, 0] if matrix.ndim == 4 else matrix) + bias for matrix, bias in
             zip(weights[::2], weights[1::2], strict=True)]  # fmt: skip
    return [*heads[:-1], softmax(heads[-1])[..., 1]]


@pytest.mark.parametrize(
    ("number", "name", "side"), [(0, "pnet", 12), (0, "pnet", 17), (1, "rnet", 24), (2, "onet", 48)]
)
def test_networks_compute_what_keras_would(number: int, name: str, side: int) -> None:
    image = np.random.default_rng(side).uniform(-1, 1, (side, side, 3))
    network = detection._networks()[number]
    with torch.inference_mode():
        outputs = network(torch.from_numpy(image).float().permute(2, 0, 1)[None])
    expected = slowly(name, image)
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected, strict=True):
        found = output[0].permute(1, 2, 0) if output.dim() == 4 else output[0]
        assert np.abs(found.numpy() - wanted).max() < 1e-4


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    faces = synthetic_faces(identities=8, images=1, size=112, cache=tmp_path_factory.mktemp("cache"))
    return list(faces.images(np.arange(8)))


def photograph(face: np.ndarray, height: int, width: int, left: int, top: int, side: int) -> np.ndarray:
    scene = np.full((height, width, 3), 90, dtype=np.uint8)
    scene[top : top + side, left : left + side] = np.asarray(
        Image.fromarray(face).resize((side, side), Image.Resampling.BICUBIC)
    )
    return scene


def test_faces_are_found_where_they_were_put(people: list[np.ndarray]) -> None:
    places = [(400, 500, 40, 20, 300), (300, 300, 100, 90, 150), (900, 400, 10, 400, 380)]
    for height, width, left, top, side in places:
        scenes = [photograph(face, height, width, left, top, side) for face in people]
        tight = [main_face(faces, 112, 112) for faces in find_faces(people, margin=0.5)]
        found = [main_face(faces, height, width) for faces in find_faces(scenes)]
        both = [(one, other) for one, other in zip(tight, found, strict=True) if one and other]
        assert len(both) >= 6
        scale = side / 112
        for one, other in both:
            expected = (one.landmarks + 0.5) * scale + [left, top] - 0.5
            assert np.abs(other.landmarks - expected).mean() < 4 * scale  # of 112; the same face, cut out anew


def test_a_batch_gives_what_single_images_give(people: list[np.ndarray]) -> None:
    mixed = [*people[:3], photograph(people[3], 200, 300, 50, 10, 150)]
    together = find_faces(mixed, margin=0.25)
    for image, faces in zip(mixed, together, strict=True):
        (alone,) = find_faces([image], margin=0.25)
        assert len(alone) == len(faces)
        for one, other in zip(alone, faces, strict=True):
            assert np.abs(one.landmarks - other.landmarks).max() < 0.01
            assert abs(one.score - other.score) < 1e-4


def test_landmarks_are_in_the_order_of_the_template(people: list[np.ndarray]) -> None:
    for faces in find_faces(people, margin=0.25):
        for face in faces[:1]:
            left_eye, right_eye, nose, left_mouth, right_mouth = face.landmarks
            assert left_eye[0] < right_eye[0]
            assert left_mouth[0] < right_mouth[0]
            assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1])


def test_nothing_is_found_where_nobody_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    images = [np.zeros((50, 70, 3), np.uint8), noise, np.zeros((1, 1, 3), np.uint8), np.zeros((3, 900, 3), np.uint8)]
    assert find_faces(images) == [[], [], [], []]


def test_the_main_face_is_large_and_central() -> None:
    def face(left: float, top: float, side: float) -> Face:
        return Face(np.array([left, top, left + side, top + side]), 1.0, np.zeros((5, 2)))

    central, corner, small = face(40, 40, 20), face(0, 0, 22), face(48, 48, 4)
    assert main_face([corner, small, central], 100, 100) is central
    assert main_face([small, face(0, 0, 60)], 100, 100).box[2] == 60
    assert main_face([], 100, 100) is None


@pytest.mark.parametrize("least", [False, True])
def test_overlaps_against_brute_force(least: bool) -> None:
    random = np.random.default_rng(4)
    corner = random.uniform(0, 40, (60, 2))
    boxes = np.hstack([corner, corner + random.uniform(5, 30, (60, 2))]).astype(np.float32)
    scores, owner = random.permutation(60).astype(np.float32), random.integers(0, 3, 60)

    def overlap(a: np.ndarray, b: np.ndarray) -> float:
        width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
        height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
        return width * height / (min(areas) if least else sum(areas) - width * height)

    expected: list[int] = []
    for row in np.argsort(-scores):
        if all(owner[row] != owner[other] or overlap(boxes[row], boxes[other]) <= 0.5 for other in expected):
            expected.append(int(row))
    given = _Boxes(*(torch.from_numpy(values) for values in (owner, boxes, scores)))
    kept = given.without_overlap(0.5, least=least)
    assert kept.scores.tolist() == scores[expected].tolist()
    assert 0 < len(expected) < 60


def test_only_the_weights_that_are_known_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(detection._SHA256, "rnet", "0" * 64)
    with pytest.raises(ConfigError, match=r"rnet.lz4: not the weights of mtcnn 1.0.0; install"):
        detection._weights("rnet")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"personae\[align\]"):
        detection._weights("pnet")
