"""Similarities against an independent least-squares solution, and warps against scipy's interpolation."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage, optimize

from personae.data.align import TEMPLATE, similarity, template, warp
from personae.data.streamed import StreamedStore, streamed
from personae.errors import DataError

coordinates = st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), min_size=5, max_size=5)


def least_squares(points, target):
    """A rotation with scaling is [[a, -b], [b, a]]: linear in a, b and the shift, so the best one is solved for."""
    x, y = points.T
    zero, one = np.zeros(len(points)), np.ones(len(points))
    rows = np.vstack([np.column_stack([x, -y, one, zero]), np.column_stack([y, x, zero, one])])
    a, b, right, down = np.linalg.lstsq(rows, np.concatenate([target[:, 0], target[:, 1]]), rcond=None)[0]
    return np.array([[a, -b, right], [b, a, down]])


@given(coordinates)
def test_equals_the_linear_least_squares_solution(points):
    points = np.array(points)
    if np.linalg.matrix_rank(points - points.mean(axis=0), tol=1) < 2:
        return
    found, expected = similarity(points, TEMPLATE), least_squares(points, TEMPLATE)
    moved = [points @ matrix[:, :2].T + matrix[:, 2] for matrix in (found, expected)]
    # Umeyama's scale is the best for the best rotation; together they are the least squares solution.
    assert np.abs(moved[0] - moved[1]).max() < 1e-6


def test_a_known_motion_is_found_again():
    angle, scale, shift = 0.3, 1.7, np.array([12.0, -5.0])
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = (TEMPLATE - shift) @ np.linalg.inv(turn).T
    assert similarity(points, TEMPLATE) == pytest.approx(np.column_stack([turn, shift]), abs=1e-9)


def test_mirrored_points_are_not_mirrored_back():
    points = TEMPLATE * [-1, 1]
    found = similarity(points, TEMPLATE)
    assert np.linalg.det(found[:, :2]) > 0

    def cost(values):
        turn = np.array([[values[0], -values[1]], [values[1], values[0]]])
        return ((points @ turn.T + values[2:] - TEMPLATE) ** 2).sum()

    best = optimize.minimize(cost, [1, 0, 0, 0])
    assert ((points @ found[:, :2].T + found[:, 2] - TEMPLATE) ** 2).sum() == pytest.approx(best.fun, rel=1e-6)


def test_points_that_coincide_are_only_shifted():
    found = similarity(np.full((5, 2), 7.0), TEMPLATE)
    assert found[:, :2] == pytest.approx(np.eye(2))


def test_the_template_of_other_sizes():
    assert template(112, 112) == pytest.approx(TEMPLATE)
    assert template(112, 96) == pytest.approx(TEMPLATE - [8, 0])
    assert template(56, 56) == pytest.approx(TEMPLATE / 2)


def test_warps_as_scipy_interpolates():
    pixels = ndimage.gaussian_filter(np.random.default_rng(0).uniform(0, 255, (60, 70, 3)), (3, 3, 0))
    pixels = (4 * (pixels - 127.5) + 127.5).clip(0, 255).astype(np.uint8)
    matrix = np.array([[0.8, -0.3, 20.0], [0.3, 0.8, -6.0]])
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    across, down = np.meshgrid(np.arange(48), np.arange(40))
    source = back[:2] @ np.stack([across.ravel(), down.ravel(), np.ones(across.size)])
    found = warp(pixels, matrix, 40, 48)
    assert found.shape == (40, 48, 3)
    inside = ((source >= 1) & (source <= np.array([[68], [58]]))).all(axis=0)
    assert 0.3 < inside.mean() < 1
    for channel in range(3):
        expected = ndimage.map_coordinates(pixels[..., channel].astype(float), source[::-1], order=1)
        off = np.abs(found[..., channel].ravel()[inside] - expected[inside])
        assert off.max() <= 1  # rounding to whole values
    outside = ((source < -1) | (source > np.array([[70], [60]]))).any(axis=0)
    assert outside.any()
    assert (found.reshape(-1, 3)[outside] == 0).all()


def drawn_face(turn: float) -> tuple[bytes, np.ndarray]:
    """A large picture with white dots where the landmarks are."""
    turning = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    points = (TEMPLATE - 56) @ turning.T * 2 + [150, 160]
    pixels = np.zeros((320, 300, 3), dtype=np.uint8)
    for across, down in points:
        y, x = np.mgrid[:320, :300]
        pixels[(x - across) ** 2 + (y - down) ** 2 < 36] = 255
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue(), points


def test_landmarks_come_to_lie_on_the_template(tmp_path):
    points = []
    for number, turn in enumerate((0.0, 0.5, -0.7)):
        encoded, where = drawn_face(turn)
        (tmp_path / f"{number}.png").write_bytes(encoded)
        points.append(where)
    paths = tuple(f"{number}.png" for number in range(3))
    store = StreamedStore(tmp_path, paths, 112, 112, landmarks=np.array(points))
    for aligned in store.take(np.arange(3)):
        for across, down in TEMPLATE.round().astype(int):
            assert aligned[down, across, 0] > 200
        assert (aligned[..., 0] > 128).sum() < 5 * 45  # nothing but five dots of radius three


def test_boxes_are_cut_out(tmp_path):
    pixels = np.zeros((100, 120, 3), dtype=np.uint8)
    pixels[20:60, 30:50] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    boxes = np.array([[30.0, 20, 20, 40], [np.nan, 0, 0, 0]])
    store = StreamedStore(tmp_path, ("a.png", "a.png"), 32, 32, boxes=boxes)
    cut, whole = store.take(np.arange(2))
    assert (cut[2:-2, 2:-2] == 255).all()
    assert 0 < (whole == 255).mean() < 0.2


def test_the_digest_tells_files_and_landmarks_apart(tmp_path):
    (tmp_path / "0.png").write_bytes(drawn_face(0)[0])
    points = drawn_face(0)[1][None]
    stores = [StreamedStore(tmp_path, ("0.png",), 32, 32, landmarks=each) for each in (None, points, points + 1)]
    assert len({store.digest for store in stores}) == 3
    (tmp_path / "0.png").write_bytes(drawn_face(0.1)[0])
    assert StreamedStore(tmp_path, ("0.png",), 32, 32).digest != stores[0].digest
    with pytest.raises(DataError, match=r"1\.png: cannot be read"):
        _ = StreamedStore(tmp_path, ("1.png",), 32, 32).digest


def test_what_cannot_be_streamed(tmp_path):
    (tmp_path / "0.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"0\.png: cannot be used"):
        StreamedStore(tmp_path, ("0.png",), 32, 32).take(np.arange(1))
    with pytest.raises(DataError, match="leaves the folder"):
        streamed(StreamedStore(tmp_path, ("../0.png",), 32, 32), np.arange(1))
