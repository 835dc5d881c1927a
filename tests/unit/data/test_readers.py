"""Faces in each layout that is read, decoded as they should look."""

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from personae.data import FaceSet, open_faces
from personae.data.images import decode
from personae.progress import Advance

COLOURS = {"eve": (200, 30, 30), "person10": (30, 200, 30), "person2": (30, 30, 200)}
ORDER = ("eve", "person2", "person10")


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(colour: object, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour)


def as_folders(root: Path) -> Path:
    for name, colour in COLOURS.items():
        for number in range(2):
            file = root / "faces" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(plain(colour)))
    (root / "faces" / ".hidden").mkdir()
    (root / "faces" / "eve" / "notes.txt").write_text("not a face")
    return root / "faces"


def as_zip(root: Path) -> Path:
    lines = ["path,identity,label,domain,Male,Young,age"]
    with zipfile.ZipFile(root / "faces.zip", "w") as archive:
        for label, (name, colour) in enumerate(COLOURS.items()):
            for number in range(2):
                archive.writestr(f"images/{name}/{number}.png", encoded(plain(colour)))
                lines.append(f"{name}/{number}.png,{name},{label},day,{number},{'true' if label else 'False'},{label}7")
        archive.writestr("labels.csv", "\r\n".join(lines) + "\r\n")
    return root / "faces.zip"


def as_list(root: Path) -> Path:
    folder = as_folders(root)
    lines = [f"{folder.name}/{name}/{number}.png\t{name}" for name in COLOURS for number in range(2)]
    (root / "faces.txt").write_text("\n".join(lines) + "\n\n")
    return root / "faces.txt"


@pytest.mark.parametrize("layout", [as_folders, as_zip, as_list])
def test_every_layout_gives_the_same_faces(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    faces = open_faces(layout(tmp_path), height=8, width=8, cache=tmp_path / "cache")
    assert faces.name == "faces"
    assert faces.identities == ORDER
    assert sorted(faces.identity.tolist()) == [0, 0, 1, 1, 2, 2]
    for row in range(6):
        colour = COLOURS[faces.identities[faces.identity[row]]]
        assert (faces.images(np.array([row])) == np.array(colour)).all()
        assert faces.identities[faces.identity[row]] in str(faces.columns["path"][row])


def test_a_zip_may_tell_more_of_its_images(tmp_path: Path) -> None:
    faces = open_faces(as_zip(tmp_path), height=8, width=8, cache=tmp_path / "cache")
    assert faces.columns["domain"].tolist() == ["day"] * 6
    assert faces.columns["Male"].tolist() == [False, True] * 3
    assert faces.columns["Young"].tolist() == [False, False, True, True, True, True]
    assert faces.columns["age"].tolist() == ["07", "07", "17", "17", "27", "27"]
    assert set(faces.columns) == {"domain", "Male", "Young", "age", "path"}


def test_a_list_may_have_spaces_in_paths_and_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "my photo.png").write_bytes(encoded(plain("red")))
    (tmp_path / "list.txt").write_text("\ufeff./my photo.png   ann\n", encoding="utf-8")
    faces = open_faces(tmp_path / "list.txt", height=4, width=4, cache=tmp_path / "cache")
    assert faces.identities == ("ann",)
    assert faces.columns["path"].tolist() == ["my photo.png"]


def open_and_count(path: Path, cache: Path) -> tuple[FaceSet, int]:
    """The faces, and how many images were decoded for them."""
    decoded = []

    @contextmanager
    def meter(description: str, total: int, unit: str) -> Iterator[Advance]:
        assert (description, total, unit) == ("decoding faces", 6, "images")
        yield decoded.append

    return open_faces(path, height=8, width=8, cache=cache, progress=meter), sum(decoded)


@pytest.mark.parametrize("layout", [as_folders, as_zip, as_list])
def test_faces_are_decoded_once_and_again_after_a_change(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    path, cache = layout(tmp_path), tmp_path / "cache"
    first, decoded = open_and_count(path, cache)
    assert decoded == 6
    second, decoded = open_and_count(path, cache)
    assert decoded == 0
    assert second.fingerprint == first.fingerprint
    if path.suffix == ".zip":
        os.utime(path, ns=(0, 0))
    else:
        (tmp_path / "faces" / "eve" / "0.png").write_bytes(encoded(plain("white")))
        os.utime(tmp_path / "faces" / "eve" / "0.png", ns=(0, 0))
    third, decoded = open_and_count(path, cache)
    assert decoded == 6
    assert (third.fingerprint == first.fingerprint) == (path.suffix == ".zip")


def test_the_fingerprint_survives_a_move(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, there = (as_folders(tmp_path / name) for name in ("here", "there"))
    options = {"height": 8, "width": 8}
    first = open_faces(here, cache=tmp_path / "cache", **options)
    assert open_faces(there, cache=tmp_path / "other", **options).fingerprint == first.fingerprint
    assert open_faces(here, height=9, width=8, cache=tmp_path / "cache").fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (plain(90, mode="L"), "JPEG", (90, 90, 90)),
        (plain(90, mode="L"), "PNG", (90, 90, 90)),
        (plain((200, 100, 50)), "BMP", (200, 100, 50)),
        (plain((200, 100, 50)), "WEBP", (200, 100, 50)),
        (plain((200, 100, 50)).convert("CMYK"), "JPEG", (200, 100, 50)),
        (plain((200, 100, 50)).quantize(4), "PNG", (200, 100, 50)),
        (plain((200, 100, 50, 255), mode="RGBA"), "PNG", (200, 100, 50)),
        (plain((200, 100, 50, 0), mode="RGBA"), "PNG", (0, 0, 0)),
        (plain((90, 0), mode="LA"), "PNG", (0, 0, 0)),
        (plain(1, mode="1"), "PNG", (255, 255, 255)),
        (Image.fromarray(np.full((12, 12), 90 * 256, dtype=np.uint16)), "PNG", (90, 90, 90)),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_every_kind_of_image_becomes_rgb(image: Image.Image, kind: str, expected: tuple[int, int, int]) -> None:
    pixels = decode(encoded(image, kind, **{"quality": 100} if kind == "WEBP" else {}), 6, 6, upright=True)
    assert pixels.shape == (6, 6, 3)
    assert np.abs(pixels.astype(int) - expected).max() <= 3


def test_a_transparent_palette_is_laid_on_black() -> None:
    image = plain((200, 100, 50)).quantize(4)
    pixels = decode(encoded(image, transparency=bytes([0] * 4)), 12, 12, upright=False)
    assert not pixels.any()


def test_an_image_of_the_right_size_is_left_as_it_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(noise)), 16, 16, upright=True), noise)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_smaller_images_are_averages_and_not_samples(kind: str) -> None:
    stripes = np.zeros((256, 256, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    pixels = decode(encoded(Image.fromarray(stripes), kind), 32, 32, upright=False)
    assert np.abs(pixels.astype(int) - 127).max() < 12


def test_other_proportions_are_cropped_around_the_centre() -> None:
    image = plain("red", (40, 20))
    image.paste("blue", (10, 0, 30, 20))
    assert (decode(encoded(image), 20, 20, upright=False) == (0, 0, 255)).all()


def test_photographs_in_folders_stand_upright_and_those_in_zips_are_taken_as_they_are(tmp_path: Path) -> None:
    image = plain("white", (16, 16))
    image.paste("black", (0, 0, 16, 8))  # the upper half
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side: turn it clockwise
    photograph = encoded(image, "JPEG", exif=turned, quality=95)
    (tmp_path / "faces" / "ann").mkdir(parents=True)
    (tmp_path / "faces" / "ann" / "1.jpg").write_bytes(photograph)
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        archive.writestr("images/1.jpg", photograph)
        archive.writestr("labels.csv", "path,identity\n1.jpg,ann\n")
    upright, as_is = (
        open_faces(path, height=16, width=16, cache=tmp_path / "cache").images(np.array([0]))[0].mean(axis=2)
        for path in (tmp_path / "faces", tmp_path / "faces.zip")
    )
    assert upright[:, 10:].max() < 60 < 200 < upright[:, :6].min()
    assert as_is[:6].max() < 60 < 200 < as_is[10:].min()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_undone(kind: str, orientation: int) -> None:
    image = plain("red", (32, 32))
    image.paste("lime", (16, 0, 32, 16))
    image.paste("blue", (0, 16, 16, 32))
    image.paste("white", (16, 16, 32, 32))
    tag = Image.Exif()
    tag[0x0112] = orientation
    photograph = encoded(image, kind, exif=tag)
    with Image.open(io.BytesIO(photograph)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB")).astype(int)
    corners = np.ix_([4, 28], [4, 28])
    found = decode(photograph, 32, 32, upright=True).astype(int)
    assert np.abs(found[corners] - expected[corners]).max() < 12
    assert (orientation == 1) == np.array_equal(found, decode(photograph, 32, 32, upright=False))


def test_metadata_that_cannot_be_read_says_nothing() -> None:
    photograph = encoded(plain("red"), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff nonsense")
    assert decode(photograph, 12, 12, upright=True)[..., 0].min() > 240
