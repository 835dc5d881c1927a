"""Input that is wrong in every way we know: each gives one line that names the place and says what to do."""

import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from personae.data import PartitionPlan, open_faces
from personae.data import images as images_module
from personae.errors import DataError, PersonaeError


def photograph(kind: str = "JPEG", size: int = 24) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind)
    return buffer.getvalue()


GOOD = photograph()


def put(file: Path, content: bytes = GOOD) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def pack(file: Path, members: dict[str, bytes | str]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # names that come twice are the point of one test
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name.removesuffix("#")), content)
    return file


def listed(root: Path, text: str) -> Path:
    put(root / "a.jpg")
    return put(root / "list.txt", text.encode())


def labelled(root: Path, labels: str, **more: bytes) -> Path:
    return pack(root / "faces.zip", {"images/a.jpg": GOOD, "labels.csv": labels, **more})


def linked(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def missing(root: Path) -> Path:
    return root / "nowhere"


def empty_folder(root: Path) -> Path:
    (root / "faces").mkdir()
    return root / "faces"


def identity_without_images(root: Path) -> Path:
    put(root / "faces/ann/readme.txt", b"no image")
    return root / "faces"


def images_without_identity(root: Path) -> Path:
    put(root / "faces/ann/1.jpg")
    put(root / "faces/stray.jpg")
    return root / "faces"


def folder_too_deep(root: Path) -> Path:
    put(root / "faces/ann/1.jpg")
    put(root / "faces/ann/day/1.jpg")
    return root / "faces"


def linked_image_outside(root: Path) -> Path:
    linked(root / "faces/ann/1.jpg", put(root / "secret.jpg"))
    return root / "faces"


def linked_folder_outside(root: Path) -> Path:
    linked(root / "faces/ann", put(root / "elsewhere/1.jpg").parent)
    return root / "faces"


def unknown_layout(root: Path) -> Path:
    return put(root / "faces.tar", b"faces")


def list_linked_outside(root: Path) -> Path:
    linked(root / "sub/a.jpg", put(root / "secret.jpg"))
    return put(root / "sub/list.txt", b"a.jpg ann")


def not_a_zip(root: Path) -> Path:
    return put(root / "faces.zip", b"PK but no more")


def zip_without_labels(root: Path) -> Path:
    return pack(root / "faces.zip", {"images/a.jpg": GOOD})


def zip_with_a_name_twice(root: Path) -> Path:
    members = {"images/a.jpg": GOOD, "images/a.jpg#": GOOD, "labels.csv": "path,identity\na.jpg,ann\n"}
    return pack(root / "faces.zip", members)


HEADER = "path,identity,label\n"
CASES: list[tuple[Callable[[Path], Path], str, str]] = [
    (missing, "nowhere: no such file or folder", "give a folder with one folder per identity"),
    (empty_folder, "faces: no images (.bmp, ", "one folder of images per identity"),
    (identity_without_images, "faces: no images (.bmp, ", "1 file is left out (1 TXT)"),
    (images_without_identity, "faces/stray.jpg: an image outside", "move it to"),
    (folder_too_deep, "some folders hold images and others (ann) hold folders", "or give ann in it"),
    (linked_image_outside, "faces/ann/1.jpg is a link that leaves", "copy what it points to"),
    (linked_folder_outside, "faces/ann is a link that leaves", "copy what it points to"),
    (unknown_layout, "faces.tar: not a layout that is known", "a zip with images/ and labels.csv"),
    (lambda root: listed(root, ""), "list.txt: an empty list", "write one line `path label`"),
    (lambda root: listed(root, "a.jpg ann\nb.jpg"), "line 2: 'b.jpg' has no label", "write `path label`"),
    (lambda root: listed(root, "a.jpg ann\nb.jpg ann"), "line 2: ", "b.jpg is missing; correct the path"),
    (lambda root: listed(root, "a.jpg ann\na.jpg ann"), "line 2: a.jpg is already listed at ", "remove one of the two"),
    (lambda root: listed(root, "a.jpg ann\n./a.jpg bob"), "labelled 'bob', but 'ann' at ", "keep the right one"),
    (lambda root: listed(root, "../a.jpg ann"), "the path '../a.jpg' leaves", "relative to the folder and without .."),
    (lambda root: listed(root, "/etc/passwd ann"), "the path '/etc/passwd' leaves", "relative to the folder"),
    (lambda root: listed(root, "a\0.jpg ann"), "line 1: the path ", "relative to the folder"),
    (lambda root: put(root / "list.txt", b"\xff\xfe\x00 ann"), "list.txt: not a text in UTF-8", "`path label`"),
    (list_linked_outside, "sub/a.jpg is a link that leaves", "copy what it points to"),
    (not_a_zip, "faces.zip: not a readable zip", "download or pack it again"),
    (zip_without_labels, "no labels.csv in the zip", "should hold images/ and labels.csv"),
    (zip_with_a_name_twice, "images/a.jpg is in the zip twice", "pack it again"),
    (lambda root: labelled(root, HEADER), "labels.csv lists no images", "one line per image"),
    (lambda root: labelled(root, ""), "the header of labels.csv is ''", "needs path,identity"),
    (lambda root: labelled(root, "file,person\na.jpg,ann\n"), "is 'file,person'", "needs path,identity"),
    (lambda root: labelled(root, HEADER + "a.jpg,ann\n"), "line 2: not the 3 values", "correct the line"),
    (lambda root: labelled(root, HEADER + "a.jpg,ann,0,1\n"), "line 2: not the 3 values", "correct the line"),
    (lambda root: labelled(root, HEADER + "a.jpg,,0\n"), "line 2: not the 3 values", "correct the line"),
    (
        lambda root: labelled(root, HEADER + "b.jpg,ann,0\n"),
        "line 2: images/b.jpg is not in the zip",
        "add it or remove",
    ),
    (lambda root: labelled(root, HEADER + "../a.jpg,ann,0\n"), "line 2: the path '../a.jpg' leaves", "relative"),
    (lambda root: labelled(root, HEADER + "a.jpg,ann,0\na.jpg,ann,0\n"), "line 3: a.jpg is already listed", "remove"),
    (lambda root: labelled(root, HEADER + "a.jpg,ann,0\na.jpg,bob,1\n"), "is labelled 'bob', but 'ann' at", "keep"),
    (
        lambda root: labelled(root, HEADER + "a.jpg,ann,0\nb.jpg,ann,1\n", **{"images/b.jpg": GOOD}),
        "identity 'ann' has the labels '0' and '1'",
        "give each identity one label",
    ),
    (lambda root: labelled(root, '"path,identity\na.jpg'), "labels.csv", "write it again"),
    (lambda root: labelled(root, HEADER, **{"../evil.jpg": GOOD}), "the path '../evil.jpg' leaves", "without .."),
    (lambda root: labelled(root, HEADER, **{"/evil.jpg": GOOD}), "the path '/evil.jpg' leaves", "relative"),
]


def names_of_cases() -> list[str]:
    return [f"{number}-{case[1]}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize(("make", "complaint", "advice"), CASES, ids=names_of_cases())
def test_wrong_sources(tmp_path: Path, make: Callable[[Path], Path], complaint: str, advice: str) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as told:
        open_faces(path, height=8, width=8, cache=tmp_path / "cache")
    one_line = str(told.value)
    assert complaint in one_line
    assert advice in one_line
    assert "\n" not in one_line
    assert path.name in one_line
    assert told.value.exit_code == 3
    assert not (tmp_path / "cache").exists()


def declared_png(width: int, height: int) -> bytes:
    """A file of a few bytes that claims to be an image of any size."""

    def chunk(content: bytes) -> bytes:
        return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR" + size) + chunk(b"IDAT" + zlib.compress(bytes(99))) + chunk(b"IEND")


def declared_jpeg(width: int, height: int) -> bytes:
    frame = GOOD.index(b"\xff\xc0")
    return GOOD[: frame + 5] + struct.pack(">HH", height, width) + GOOD[frame + 9 :]


def declared_tiff(width: int, height: int) -> bytes:
    content = photograph("TIFF", size=24)
    for tag, side in ((256, width), (257, height)):
        at = content.index(struct.pack("<HHI", tag, 4, 1))  # a number, once
        content = content[: at + 8] + struct.pack("<I", side) + content[at + 12 :]
    return content


UNREADABLE = {
    "empty": (b"", "an empty file"),
    "no image": (b"hello, I am a picture", "not a JPEG, PNG, BMP, WebP, GIF, TIFF or HEIC image"),
    "an icon": (photograph("ICO"), "not a JPEG, PNG, BMP, WebP, GIF, TIFF or HEIC image"),
    "truncated TIFF": (photograph("TIFF")[:1000], "truncated"),
    "huge TIFF": (declared_tiff(10_000, 10_000), "10000 x 10000 is more than 50,000,000 pixels"),
    "truncated GIF": (photograph("GIF")[:-200], "truncated"),
    "truncated JPEG": (GOOD[: len(GOOD) // 2], "truncated"),
    "almost whole JPEG": (GOOD[:-40], "truncated"),
    "JPEG with a gap": (GOOD[:-60] + GOOD[-2:], "truncated"),
    "truncated PNG": (photograph("PNG")[:300], "truncated"),
    "truncated WebP": (photograph("WEBP")[:100], "damaged"),
    "damaged PNG": (photograph("PNG").replace(b"IDAT", b"IDAT\0\0"), "damaged"),
    "huge PNG": (declared_png(10_000, 10_000), "10000 x 10000 is more than 50,000,000 pixels"),
    "bomb PNG": (declared_png(100_000, 100_000), "more than 50,000,000 pixels"),
    "huge JPEG": (declared_jpeg(60_000, 60_000), "60000 x 60000 is more than 50,000,000 pixels"),
}


@pytest.mark.parametrize("which", UNREADABLE)
def test_images_that_cannot_be_used(tmp_path: Path, which: str) -> None:
    content, why = UNREADABLE[which]
    put(tmp_path / "faces/ann/1.jpg")
    put(tmp_path / "faces/ann/2.jpg", content)
    with pytest.raises(DataError) as told:
        open_faces(tmp_path / "faces", height=8, width=8, cache=tmp_path / "cache")
    assert f"faces: 1 of 2 images cannot be used, the first is ann/2.jpg ({why}" in str(told.value)
    advice = "repair or remove them, or leave such files out with --skip-unreadable (in an experiment skip_unreadable"
    assert advice in str(told.value)
    assert "\n" not in str(told.value)


def test_unreadable_images_are_counted_and_may_be_skipped(tmp_path: Path) -> None:
    for name in ("ann", "bob", "cid"):
        for number in range(4):
            put(tmp_path / "faces" / name / f"{number}.jpg", GOOD if number != 2 and name != "bob" else b"bad")
    path, options = tmp_path / "faces", {"height": 8, "width": 8, "cache": tmp_path / "cache"}
    with pytest.raises(DataError, match=r"6 of 12 images cannot be used, the first is ann/2.jpg"):
        open_faces(path, **options)
    faces = open_faces(path, **options, skip_unreadable=True)
    assert faces.unreadable == 6
    assert faces.identities == ("ann", "cid")
    assert faces.columns["path"].tolist() == [f"{name}/{number}.jpg" for name in ("ann", "cid") for number in (0, 1, 3)]
    assert faces.images(np.arange(6)).any(axis=(1, 2, 3)).all()
    with pytest.raises(DataError, match="6 of 12"):  # also when the cache is there
        open_faces(path, **options)


def test_nothing_readable_cannot_be_skipped(tmp_path: Path) -> None:
    put(tmp_path / "faces/ann/1.jpg", b"bad")
    with pytest.raises(DataError, match="1 of 1 image cannot be used") as told:
        open_faces(tmp_path / "faces", height=8, width=8, cache=tmp_path / "cache", skip_unreadable=True)
    assert "skip" not in str(told.value)


def test_a_broken_link_is_an_unreadable_image(tmp_path: Path) -> None:
    put(tmp_path / "faces/ann/1.jpg")
    linked(tmp_path / "faces/ann/2.jpg", tmp_path / "faces/ann/3.jpg")
    with pytest.raises(DataError, match=r"ann/2.jpg \(no such file"):
        open_faces(tmp_path / "faces", height=8, width=8, cache=tmp_path / "cache")


def test_large_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(put(tmp_path / "faces/ann/1.jpg"), images_module.MAX_BYTES + 1)  # sparse: takes no space
    with pytest.raises(DataError, match="a file of more than 100,000,000 bytes"):
        open_faces(tmp_path / "faces", height=8, width=8, cache=tmp_path / "cache")


def zip_of_zeros(root: Path, name: str, size: int) -> Path:
    with zipfile.ZipFile(root / "faces.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images/a.jpg", b"bad")
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(size // 1_000_000 + 1):
                member.write(bytes(1_000_000))
        if name != "labels.csv":
            archive.writestr("labels.csv", f"path,identity\n{name.removeprefix('images/')},ann\n")
    return root / "faces.zip"


def test_a_zip_bomb_is_refused_by_the_size_it_declares(tmp_path: Path) -> None:
    bomb = zip_of_zeros(tmp_path, "images/bomb.jpg", images_module.MAX_BYTES)
    assert bomb.stat().st_size < 200_000
    with pytest.raises(DataError, match=r"bomb.jpg \(declares more than 100,000,000 bytes"):
        open_faces(bomb, height=8, width=8, cache=tmp_path / "cache")


def test_a_table_of_labels_that_is_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.data.readers.archives._MAX_LABELS", 1_000_000)
    with pytest.raises(DataError, match=r"labels.csv declares more than 1,000,000 bytes"):
        open_faces(zip_of_zeros(tmp_path, "labels.csv", 2_000_000), height=8, width=8, cache=tmp_path / "cache")


def test_a_member_damaged_in_the_zip(tmp_path: Path) -> None:
    path = labelled(tmp_path, "path,identity\na.jpg,ann\n")
    content = path.read_bytes()
    middle = content.index(GOOD) + len(GOOD) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    with pytest.raises(DataError, match=r"a.jpg \(damaged in the zip\)"):
        open_faces(path, height=8, width=8, cache=tmp_path / "cache")


def test_a_size_that_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(PersonaeError, match="positive height and width") as told:
        open_faces(tmp_path, height=0, width=8)
    assert told.value.exit_code == 2


def test_one_image_per_identity_cannot_be_split_unless_asked_to(tmp_path: Path) -> None:
    for name in ("ann", "bob", "cid"):
        put(tmp_path / "faces" / name / "1.jpg")
    faces = open_faces(tmp_path / "faces", height=8, width=8, cache=tmp_path / "cache")
    with pytest.raises(
        DataError, match="3 of 3 identities have fewer than 2 images, the first is 'ann'; set drop_small"
    ):
        PartitionPlan(by="equal", clients=3).apply(faces, 0)
    with pytest.raises(DataError, match="0 identities with at least 2 images are too few for 3 clients"):
        PartitionPlan(by="equal", clients=3, drop_small=True).apply(faces, 0)
    assert PartitionPlan(by="equal", clients=3, min_images=1).apply(faces, 0).clients
