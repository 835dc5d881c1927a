"""Packs: what goes in comes out, from one file, and a changed byte is found."""

import errno
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_readers import as_folders, as_list, as_zip

from facefiles import insightface, picture, write_records
from personae.data import FaceSet, open_faces, pack_faces, read_pairs
from personae.data.packs import Table, check_pack, is_pack, open_pack, write_pack
from personae.data.pixels import Append
from personae.errors import ConfigError, DataError, Interrupted


def as_records(root: Path) -> Path:
    people = {0: [picture(1), picture(2)], 4: [picture(3)]}
    return write_records(root / "faces.rec", insightface(people))


def packed(root: Path, source: Path, **options: bool) -> Path:
    pack_faces(source, root / "set.faces", height=8, width=6, **options)
    return root / "set.faces"


@pytest.mark.parametrize("layout", [as_folders, as_zip, as_list, as_records])
def test_a_pack_has_the_faces_of_its_source(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    source = layout(tmp_path)
    file = packed(tmp_path, source)
    faces = open_faces(source, height=8, width=6, cache=tmp_path / "cache")
    again = open_faces(file, height=8, width=6)
    rows = np.arange(len(faces))
    np.testing.assert_array_equal(again.images(rows), faces.images(rows))
    assert (again.name, again.identities, again.size) == (faces.name, faces.identities, faces.size)
    assert list(again.columns) == list(faces.columns)
    for name, values in faces.columns.items():
        assert (again.columns[name].tolist(), again.columns[name].dtype.kind) == (values.tolist(), values.dtype.kind)
    # A run on the one can be resumed on the other.
    assert again.fingerprint == faces.fingerprint
    check_pack(file)


def test_it_is_a_plain_safetensors_file_that_is_mapped(tmp_path: Path) -> None:
    file = packed(tmp_path, as_zip(tmp_path))
    faces = open_pack(file)
    tensors = load_file(file)
    np.testing.assert_array_equal(tensors["pixels"], faces.images(np.arange(6)))
    np.testing.assert_array_equal(tensors["identity"], faces.identity)
    assert faces.pixels.offset % 4096 == 0
    taken = pickle.loads(pickle.dumps(faces.pixels))  # as a worker gets it
    np.testing.assert_array_equal(taken.take(np.array([3, 1])), faces.images(np.array([3, 1])))
    assert len(pickle.dumps(faces.pixels)) < 1000


@pytest.mark.parametrize("name", ["set.zip", "pairs.bin", "set.faces"])
def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Tests may run as a user who may read everything, so the system's refusal is played."""
    (tmp_path / name).write_bytes(b"something")

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(DataError, match=rf"{name}: cannot be read \(Permission denied\); check"):
        open_faces(tmp_path / name, height=8, width=8, cache=tmp_path / "cache")


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    packed(tmp_path, as_zip(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces.zip", "set.faces"]


def test_an_interrupted_pack_is_not_there(tmp_path: Path) -> None:
    def fill(append: Append) -> Table:
        append(np.zeros((5, 8, 6, 3), dtype=np.uint8))
        raise Interrupted("stop")

    with pytest.raises(Interrupted):
        write_pack(tmp_path / "set.faces", "set", 8, 6, 1, fill)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    source = as_zip(tmp_path)
    file = packed(tmp_path, source)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"set.faces: is there already"):
        packed(tmp_path, source)
    with pytest.raises(DataError, match=r"set.faces: this is a pack already"):
        pack_faces(file, tmp_path / "other.faces", height=8, width=6)
    assert file.read_bytes() == before


def test_unreadable_images_are_left_out_only_if_told(tmp_path: Path) -> None:
    source = as_folders(tmp_path)
    (source / "eve" / "0.png").write_bytes(b"bad")
    with pytest.raises(DataError, match=r"1 of 6 images cannot be used, the first is eve/0.png"):
        packed(tmp_path, source)
    assert not (tmp_path / "set.faces").exists()
    faces = open_pack(packed(tmp_path, source, skip_unreadable=True))
    assert (len(faces), faces.unreadable) == (5, 1)


def test_another_size_is_refused(tmp_path: Path) -> None:
    file = packed(tmp_path, as_zip(tmp_path))
    with pytest.raises(DataError, match=r"set.faces: its images are 6 x 8, and 8 x 8 are asked for; pack them at that"):
        open_faces(file, height=8, width=8)
    with pytest.raises(ConfigError, match="crop them when they are packed"):
        open_faces(file, height=8, width=6, crop="haar")


def test_many_columns_fit_into_the_header(tmp_path: Path) -> None:
    columns = {f"attribute number {n} with a long name" * 3: np.arange(4) % 2 == n % 2 for n in range(200)}
    columns |= {f"text {n}": np.array(["a", "ü", "", "a"]) for n in range(200)}

    def fill(append: Append) -> Table:
        append(np.full((4, 2, 2, 3), 7, dtype=np.uint8))
        return Table(("ann",), np.zeros(4, dtype=np.int64), columns, "digest")

    faces = write_pack(tmp_path / "set.faces", "set", 2, 2, len(columns), fill)
    assert len(faces.columns) == 400
    assert faces.columns["text 7"].tolist() == ["a", "ü", "", "a"]
    assert (faces.images(np.arange(4)) == 7).all()


def header_of(content: bytes) -> tuple[int, dict]:
    (length,) = struct.unpack("<Q", content[:8])
    return length, json.loads(content[8 : 8 + length])


def rewritten(content: bytes, change: Callable[[dict], None]) -> bytes:
    length, header = header_of(content)
    change(header)
    new = json.dumps(header).encode()
    assert len(new) <= length
    return content[:8] + new.ljust(length) + content[8 + length :]


def metadata(name: str, value: str) -> Callable[[bytes], bytes]:
    return lambda content: rewritten(content, lambda header: header["__metadata__"].update({name: value}))


def tensor(name: str, **values: object) -> Callable[[bytes], bytes]:
    return lambda content: rewritten(content, lambda header: header[name].update(values))


def flipped(name: str) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        length, header = header_of(content)
        place = 8 + length + header[name]["data_offsets"][0]
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return change


DAMAGES = {
    "cut off": (lambda content: content[:-1], "a damaged pack"),
    "cut in the pixels": (lambda content: content[:5000], "a damaged pack"),
    "cut in the header": (lambda content: content[:300], "a damaged pack"),
    "something behind the end": (lambda content: content + b"x", "a damaged pack"),
    "a huge header": (lambda content: struct.pack("<Q", 2**62) + content[8:], "a damaged pack"),
    "a longer header": (lambda content: struct.pack("<Q", len(content)) + content[8:], "a damaged pack"),
    "another version": (metadata("version", "9"), "a pack of version 9, and 1 is read"),
    "digests that are no JSON": (metadata("sha256", "{"), "whose header contradicts itself"),
    "no digests": (metadata("sha256", "{}"), "whose header contradicts itself"),
    "columns that are not there": (metadata("columns", '["ghost"]'), "a damaged pack"),
    "offsets outside": (tensor("pixels", data_offsets=[0, 10**15]), "a damaged pack"),
    "a shape that lies": (tensor("pixels", shape=[2**40, 8, 6, 3]), "a damaged pack"),
    "another shape": (tensor("pixels", shape=[3, 16, 6, 3]), "has 3 images and labels for others"),
    "two colours": (tensor("pixels", shape=[9, 8, 6, 2]), "not bytes of three colours"),
    "other labels": (flipped("identity"), "'identity' in it is not what was packed"),
    "other names": (flipped("identities"), "'identities' in it is not what was packed"),
    "other paths": (flipped("codes of path"), "'codes of path' in it is not what was packed"),
}


@pytest.mark.parametrize("which", DAMAGES)
def test_damaged_packs_are_refused(tmp_path: Path, which: str) -> None:
    damage, complaint = DAMAGES[which]
    file = packed(tmp_path, as_zip(tmp_path))
    file.write_bytes(damage(file.read_bytes()))
    assert is_pack(file)
    with pytest.raises(DataError) as told:
        open_faces(file, height=8, width=6)
    assert complaint in str(told.value)
    assert "set.faces" in str(told.value)
    assert "\n" not in str(told.value)


def test_changed_pixels_are_found_when_asked_for(tmp_path: Path) -> None:
    file = packed(tmp_path, as_zip(tmp_path))
    file.write_bytes(flipped("pixels")(file.read_bytes()))
    open_faces(file, height=8, width=6)
    with pytest.raises(DataError, match=r"set.faces: its pixels are not those that were packed"):
        check_pack(file)


def test_labels_beyond_the_names_are_refused(tmp_path: Path) -> None:
    def fill(append: Append) -> Table:
        append(np.zeros((2, 2, 2, 3), dtype=np.uint8))
        return Table(("ann",), np.array([0, 1]), {}, "digest")

    with pytest.raises(DataError, match="labels without a name"):
        write_pack(tmp_path / "set.faces", "set", 2, 2, 0, fill)


def test_pairs_come_along(tmp_path: Path) -> None:
    for name in ("Ann_Lee", "Bob_Ray"):
        for number in range(1, 5):
            file = tmp_path / "lfw" / name / f"{name}_{number:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(number))
    lines = ["Ann_Lee 1 2", "Ann_Lee 1 Bob_Ray 4", "Bob_Ray 3 4", "Ann_Lee 2 Bob_Ray 1"]
    (tmp_path / "lfw" / "pairs.txt").write_text("2\t1\n" + "\n".join(lines) + "\n")
    faces = pack_faces(tmp_path / "lfw", tmp_path / "set.faces", height=8, width=8)
    there, here = (read_pairs(path, faces) for path in (tmp_path / "lfw", tmp_path / "set.faces"))
    assert there is not None
    assert here is not None
    for name in ("left", "right", "same"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert (here.folds, here.alone) == (2, False)
    assert read_pairs(packed(tmp_path / "b", as_zip(tmp_path)), faces) is None


def test_a_model_is_no_pack(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"pixels": np.zeros(3, dtype=np.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"model.safetensors: not a layout that is known"):
        open_faces(tmp_path / "model.safetensors", height=8, width=8)


def test_a_selection_of_a_pack_shares_its_pixels(tmp_path: Path) -> None:
    faces = open_pack(packed(tmp_path, as_zip(tmp_path)))
    some = faces.slice_identities(1, 1)
    assert isinstance(some, FaceSet)
    assert some.pixels is faces.pixels
    assert replace(some).identity.tolist() == [1, 1]
