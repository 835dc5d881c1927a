"""Parquet as `datasets` writes it, and what is refused of it."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from facefiles import picture, pixels_of
from personae.data import FaceSet, open_faces
from personae.data.readers import pages, recognise, tables
from personae.errors import ConfigError, DataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

IMAGES = [picture(number) for number in range(6)]
STRUCTS = [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(IMAGES)]


def write(file: Path, features: dict | None = None, rows: int = 100, **columns: list) -> Path:
    table = pyarrow.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, file, row_group_size=rows)
    return file


def opened(path: Path, **options: bool) -> FaceSet:
    return open_faces(path, height=16, width=16, cache=path.parent / "cache", **options)


def people(faces: FaceSet) -> list[str]:
    return [faces.identities[code] for code in faces.identity]


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("images", [STRUCTS, IMAGES], ids=["structs", "plain bytes"])
def test_one_file(tmp_path: Path, images: list, rows: int) -> None:
    faces = opened(write(tmp_path / "faces.parquet", rows=rows, image=images, label=[0, 0, 1, 1, 2, 2]))
    assert people(faces) == ["0", "0", "1", "1", "2", "2"]
    assert all((faces.images(np.array([row]))[0] == pixels_of(image)).all() for row, image in enumerate(IMAGES))


def test_classes_have_names_and_columns_become_attributes(tmp_path: Path) -> None:
    file = write(
        tmp_path / "faces.parquet",
        {"photo": {"_type": "Image"}, "who": {"_type": "ClassLabel", "names": ["ann", "bob"]}},
        photo=STRUCTS,
        who=[0, 1, 0, 1, 0, 1],
        Male=[False, True] * 3,
        Young=[1, 0, 1, 0, 1, 0],
        domain=["day"] * 6,
        age=[20, 30, 20, 30, 20, 30],
        boxes=[[1, 2]] * 6,
    )
    faces = opened(file)
    assert people(faces) == ["ann", "bob"] * 3
    assert faces.columns["Male"].tolist() == [False, True] * 3
    assert faces.columns["Young"].tolist() == [True, False] * 3
    assert faces.columns["domain"].tolist() == ["day"] * 6
    assert faces.columns["age"].tolist() == ["20", "30"] * 3
    assert "boxes" not in faces.columns


@pytest.mark.parametrize("layout", ["data/{split}-0000{n}-of-00002.parquet", "{split}/{n}.parquet"])
def test_a_folder_of_shards_tells_the_split(tmp_path: Path, layout: str) -> None:
    shards = [("train", 0, 0), ("train", 1, 2), ("validation", 0, 4)]
    for split, number, start in shards:
        name = layout.format(split=split, n=number)
        write(tmp_path / "hub" / name, image=STRUCTS[start : start + 2], identity=["ann", "bob"])
    faces = opened(tmp_path / "hub")
    assert faces.columns["split"].tolist() == ["train"] * 4 + ["val"] * 2
    assert people(faces) == ["ann", "bob"] * 3
    assert all((faces.images(np.array([row]))[0] == pixels_of(image)).all() for row, image in enumerate(IMAGES))


@pytest.mark.parametrize("held", [1, 2, 64])
def test_rows_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(tables, "_ROWS", held)
    for name in ("a", "b"):
        write(tmp_path / "hub" / f"{name}.parquet", rows=4, image=STRUCTS, label=[0] * 6)
    _, listing = recognise(tmp_path / "hub")
    order = (5, 0, 3, 4, 1, 2, 11, 6, 9, 8, 0)
    with listing.opened() as fetch:
        assert [fetch(row) for row in order] == [IMAGES[row % 6] for row in order]


def test_rows_without_an_image_are_unreadable(tmp_path: Path) -> None:
    images = [*STRUCTS[:4], {"bytes": None, "path": "elsewhere.png"}, STRUCTS[5]]
    file = write(tmp_path / "faces.parquet", image=images, label=[0] * 6)
    with pytest.raises(DataError, match=r"1 of 6 .* faces.parquet/4 \(its row holds no bytes of an image\)"):
        opened(file)
    assert len(opened(file, skip_unreadable=True)) == 5


def test_tables_that_do_not_say_who(tmp_path: Path) -> None:
    for name, columns, complaint in (
        ("a", {"image": STRUCTS}, "no column of identities among image; name it 'identity'"),
        ("b", {"a": IMAGES, "b": IMAGES, "label": [0] * 6}, "no column of images among a, b, label; name it 'image'"),
        ("c", {"image": STRUCTS, "label": [0, 1, None, 0, 1, 0]}, "the column 'label' is empty in row 2"),
        ("d", {"image": [], "label": []}, "d.parquet"),
    ):
        with pytest.raises(DataError) as told:
            opened(write(tmp_path / f"{name}.parquet", **columns))
        assert complaint in str(told.value)


def test_a_label_without_a_name(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["ann"]}}
    with pytest.raises(DataError, match=r"faces.parquet: label 1 has no name among the 1"):
        opened(write(tmp_path / "faces.parquet", features, image=STRUCTS, label=[0, 1] * 3))


def test_shards_of_two_kinds(tmp_path: Path) -> None:
    write(tmp_path / "hub/a.parquet", image=STRUCTS, label=[0] * 6)
    write(tmp_path / "hub/b.parquet", image=STRUCTS, identity=["ann"] * 6)
    with pytest.raises(DataError, match=r"b.parquet: has the columns image, identity, and the first file image, label"):
        opened(tmp_path / "hub")


@pytest.mark.parametrize("cut", [4, 30, 200, -6])
def test_truncated_files(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path / "faces.parquet", image=STRUCTS, label=[0] * 6)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"faces.parquet: not a readable Parquet file \("):
        opened(file)


def test_pages_that_declare_more_than_fits(tmp_path: Path) -> None:
    """The size of the first page, a zigzag number behind its type, is made huge."""
    file = write(tmp_path / "faces.parquet", image=STRUCTS, label=[0] * 6)
    content = bytearray(file.read_bytes())
    assert content[4:6] == b"\x15\x04"  # field 1: a dictionary page
    content[6:9] = b"\x15\xff\xff"  # field 2 goes on where the rest of the header stood
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"faces.parquet: a page of it cannot be right"):
        opened(file)


def test_a_page_larger_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "faces.parquet", image=STRUCTS, label=[0] * 6)
    monkeypatch.setattr(pages, "MAX_PAGE", 500)
    with pytest.raises(DataError, match=r"faces.parquet: a page .* declares [\d,]+ bytes, and more than 500 are not"):
        opened(file)


def test_a_page_that_is_longer_than_its_column(tmp_path: Path) -> None:
    """A header of Thrift by hand: kind 0, so many bytes unpacked and packed, in a column of twenty bytes."""
    (tmp_path / "page").write_bytes(b"\x15\x00" + b"\x15\x14" + b"\x15\x14" + b"\x00" + bytes(30))

    class Column:
        path_in_schema = "image"
        has_dictionary_page, data_page_offset, total_compressed_size = False, 0, 17

    class Metadata:
        num_row_groups = num_columns = 1

        def row_group(self, number: int) -> "Metadata":
            return self

        def column(self, number: int) -> type[Column]:
            return Column

    pages.check_pages(tmp_path / "page", Metadata())  # seven bytes of header and ten of content
    for size, complaint in ((16, "it is longer than its column"), (99, "it lies outside of the file")):
        Column.total_compressed_size = size
        with pytest.raises(DataError, match=f"page: a page of it cannot be right .{complaint}"):
            pages.check_pages(tmp_path / "page", Metadata())


def test_links_that_leave_the_folder(tmp_path: Path) -> None:
    outside = write(tmp_path / "secret.parquet", image=STRUCTS, label=[0] * 6)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "a.parquet").symlink_to(outside)
    with pytest.raises(DataError, match="is a link that leaves"):
        opened(tmp_path / "hub")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "faces.parquet", image=STRUCTS, label=[0] * 6)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"personae\[parquet\]"):
        opened(file)


def test_numbers_of_thrift() -> None:
    for value in (0, 1, -1, 63, -64, 300, 2**31 - 1, -(2**31)):
        folded = (value << 1) ^ (value >> 63)
        encoded = b""
        while folded > 127:
            encoded, folded = encoded + bytes([folded & 127 | 128]), folded >> 7
        encoded += bytes([folded])
        assert pages._zigzag(encoded + struct.pack("<I", 7), 0) == (value, len(encoded))
