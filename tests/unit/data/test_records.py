"""InsightFace's record files: read as they are written, and refused where they lie."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facefiles import MAGIC, framed, insightface, picture, pixels_of, record, write_records
from personae.data import FaceSet, open_faces
from personae.data.readers import recognise
from personae.errors import DataError

PEOPLE = {7: [picture(1), picture(2, "JPEG")], 3: [picture(3), picture(4, "JPEG"), picture(5)]}


def opened(path: Path, **options: bool) -> FaceSet:
    return open_faces(path, height=16, width=16, cache=path.parent / "cache", **options)


def same_as(faces: FaceSet, row: int, encoded: bytes) -> bool:
    """Decoders of JPEG may round differently."""
    apart = faces.images(np.array([row]))[0].astype(int) - pixels_of(encoded)
    return int(np.abs(apart).max()) <= (0 if encoded.startswith(b"\x89PNG") else 2)


@pytest.mark.parametrize("place", ["faces.rec", "whole folder", "another name"])
def test_insightface_sets(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    file = write_records(folder / "train.rec", insightface(PEOPLE))
    (folder / "property").write_text("2,16,16")
    path = {"faces.rec": file, "whole folder": folder}.get(place)
    if path is None:
        path = file.rename(folder / "train.data")
    faces = opened(path)
    assert faces.identities == ("3", "7")
    assert [faces.identities[code] for code in faces.identity] == ["7", "7", "3", "3", "3"]
    assert faces.columns["path"].tolist() == ["1", "2", "3", "4", "5"]
    encoded = [image for images in PEOPLE.values() for image in images]
    assert all(same_as(faces, row, image) for row, image in enumerate(encoded))


def test_records_without_ranges_are_all_images(tmp_path: Path) -> None:
    images = [picture(number) for number in range(4)]
    records = {number: record(float(number % 2), image, number) for number, image in enumerate(images)}
    faces = opened(write_records(tmp_path / "plain.rec", records))
    assert [faces.identities[code] for code in faces.identity] == ["0", "1", "0", "1"]
    assert all(same_as(faces, row, image) for row, image in enumerate(images))


def test_of_several_labels_the_first_is_the_identity(tmp_path: Path) -> None:
    records = {number: record([5.0, 0.25, 0.5 * number], picture(number)) for number in range(3)}
    faces = opened(write_records(tmp_path / "many.rec", records))
    assert faces.identities == ("5",)
    assert all(same_as(faces, row, picture(row)) for row in range(3))


@pytest.mark.parametrize("times", [1, 2, 5])
def test_images_that_hold_the_word_of_the_frame_are_put_together(tmp_path: Path, times: int) -> None:
    image = picture(1)
    # A PNG may have anything behind its end; the header is 24 bytes, so that this is a multiple of four.
    awkward = image + bytes(-len(image) % 4) + (MAGIC + b"abcd") * times + MAGIC
    whole = record(1.0, awkward)
    assert framed(whole).count(MAGIC) == times + 2  # one begins each part
    file = write_records(tmp_path / "split.rec", {0: record(1.0, image), 1: whole})
    _, listing = recognise(file)
    with listing.opened() as fetch:
        assert fetch(1) == awkward
        assert fetch(0) == image
    assert len(opened(file)) == 2


def test_reading_in_any_order_gives_the_same(tmp_path: Path) -> None:
    _, listing = recognise(write_records(tmp_path / "faces.rec", insightface(PEOPLE)))
    encoded = [image for images in PEOPLE.values() for image in images]
    with listing.opened() as fetch:
        assert [fetch(position) for position in (4, 0, 2, 2, 1, 3)] == [encoded[n] for n in (4, 0, 2, 2, 1, 3)]


def test_a_label_that_contradicts_its_range(tmp_path: Path) -> None:
    records = insightface(PEOPLE)
    records[2] = record(8.0, PEOPLE[7][1])
    file = write_records(tmp_path / "faces.rec", records)
    with pytest.raises(DataError, match=r"faces.rec: 1 of 5 .* first is 2 \(its record is labelled 8, .* 7\)"):
        opened(file)
    assert len(opened(file, skip_unreadable=True)) == 4


def test_an_image_in_no_range_goes_by_its_own_label(tmp_path: Path) -> None:
    records = insightface(PEOPLE)
    records[6] = record([2.0, 3.0])  # the first identity without its first image, which says 7 itself
    assert opened(write_records(tmp_path / "faces.rec", records)).identities == ("3", "7")


def altered(key: int, content: bytes) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        return write_records(root / "faces.rec", {**insightface(PEOPLE), key: content})

    return make


def with_index(change: Callable[[str], str]) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        file = write_records(root / "faces.rec", insightface(PEOPLE))
        index = file.with_suffix(".idx")
        index.write_text(change(index.read_text()))
        return file

    return make


def truncated(root: Path) -> Path:
    file = write_records(root / "faces.rec", insightface(PEOPLE))
    file.write_bytes(file.read_bytes()[:-40])  # record 0 is the last
    return file


def without_index(root: Path) -> Path:
    file = write_records(root / "faces.rec", insightface(PEOPLE))
    file.with_suffix(".idx").unlink()
    return file


def empty(root: Path) -> Path:
    (root / "faces.idx").write_text("0\t0\n")
    (root / "faces.rec").touch()
    return root / "faces.rec"


def two_sets(root: Path) -> Path:
    for name in ("faces-a.rec", "faces-b.rec"):
        write_records(root / name, insightface(PEOPLE))
    return root


LIES = {
    "an index that is missing": (without_index, "faces.idx is not beside it"),
    "an empty file": (empty, "faces.rec: an empty file"),
    "a truncated file": (truncated, "record 0 cannot be read (its record"),
    "an index of words": (with_index(lambda text: text + "x\ty\n"), "not lines of `key offset`"),
    "an index that ends early": (with_index(lambda text: text + "99"), "17 numbers, not lines"),
    "an empty index": (with_index(lambda text: ""), "0 numbers, not lines"),
    "a key twice": (with_index(lambda text: text + "3\t0\n"), "key 3 is in it twice"),
    "an offset beyond the end": (
        with_index(lambda text: text.replace("\n6\t", "\n6\t9")),
        "record 6 cannot be read (its record begins outside of the file)",
    ),
    "a negative offset": (
        with_index(lambda text: text.replace("\n6\t", "\n6\t-")),
        "record 6 cannot be read (its record begins outside of the file)",
    ),
    "the offset of another record": (
        with_index(lambda text: text.replace("\n6\t", "\n6\t0\n96\t")),
        "record 6: gives the range (7)",
    ),
    "a huge offset": (
        with_index(lambda text: text.replace("\n6\t", f"\n6\t{2**63 - 1}\n96\t")),
        "record 6 cannot be read (its record begins outside of the file)",
    ),
    "more labels than bytes": (
        altered(6, struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0)),
        "record 6 cannot be read (its record declares 4294967295 labels",
    ),
    "no header": (altered(6, b"short"), "record 6 cannot be read (its record is too short for a header)"),
    "ranges beyond the end": (altered(0, record([6.0, 1e9])), "record 0: gives the range (6, 1e+09)"),
    "ranges backwards": (altered(0, record([8.0, 6.0])), "record 0: gives the range (8, 6)"),
    "ranges that are no numbers": (altered(0, record([float("nan"), 8.0])), "record 0: gives the range (nan, 8)"),
    "an identity's range in another's": (altered(7, record([2.0, 4.0])), "record 7: its range has images of another"),
    "an identity's range beyond the images": (altered(7, record([3.0, 9.0])), "record 7: gives the range (3, 9)"),
    "a label that is no number": (altered(1, record(float("nan"), picture(1))), "its label nan is not a whole number"),
    "a label between numbers": (altered(1, record(0.5, picture(1))), "its label 0.5 is not a whole number"),
    "two sets in a folder": (two_sets, "has faces-a.rec, faces-b.rec; give one of them"),
}


@pytest.mark.parametrize("which", LIES)
def test_files_that_lie(tmp_path: Path, which: str) -> None:
    make, complaint = LIES[which]
    path = make(tmp_path)
    with pytest.raises(DataError) as told:
        opened(path)
    assert complaint in str(told.value)
    assert "faces" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_record_whose_length_lies_is_an_unreadable_image(tmp_path: Path) -> None:
    file = write_records(tmp_path / "faces.rec", insightface(PEOPLE))
    content = bytearray(file.read_bytes())
    second = len(framed(record(7.0, PEOPLE[7][0])))
    content[second + 4 : second + 8] = struct.pack("<I", 2**29 - 1)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"1 of 5 .* the first is 2 \(its record is longer than the file\)"):
        opened(file)
    content[second : second + 4] = b"nope"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"the first is 2 \(no record begins where it should\)"):
        opened(file)


def test_parts_without_an_end(tmp_path: Path) -> None:
    part = MAGIC + struct.pack("<I", 1 << 29 | 4) + b"abcd"
    file = tmp_path / "faces.rec"
    file.write_bytes(framed(record(1.0, picture(1))) + part)
    file.with_suffix(".idx").write_text(f"0\t0\n1\t{file.stat().st_size - len(part)}\n")
    with pytest.raises(DataError, match=r"record 1 cannot be read \(its record begins outside"):
        opened(file)
    file.write_bytes(file.read_bytes() + framed(b"a whole record in place of the next part"))
    with pytest.raises(DataError, match=r"record 1 cannot be read \(no record begins where it should\)"):
        opened(file)
