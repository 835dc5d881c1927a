"""Faces with the pairs to compare: pairs.txt in folders and zips, and the field's pair files."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from personae.core.backbone import Backbone
from personae.data import open_faces, read_pairs
from personae.data.pairsets import lfw_pairs
from personae.data.readers.pickled import read_bin, write_bin
from personae.errors import DataError
from personae.evaluation.suite import evaluate
from personae.experiment.benchmarks import Setting, open_protocol
from personae.models import Network
from personae.parts.embedding import BackboneEmbedder

PAIRS = """2 2
ann 1 2
ann 1 3
ann 2 bob 1
bob 2 cem 1
bob 1 2
cem 2 3
cem 1 ann 1
bob 3 ann 3
"""


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def people() -> dict[str, bytes]:
    return {
        f"{name}/{name}_{number:04}.png": png(10 * at + number)
        for at, name in enumerate(("ann", "bob", "cem"))
        for number in (1, 2, 3)
    }


def folder(root: Path, pairs: str | None = PAIRS) -> Path:
    for path, encoded in people().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encoded)
    if pairs is not None:
        (root / "pairs.txt").write_text(pairs)
    return root


def archive(file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as packed:
        labels = "".join(f"{path},{path.split('/')[0]}\n" for path in people())
        packed.writestr("labels.csv", "path,identity\n" + labels)
        packed.writestr("pairs.txt", PAIRS)
        for path, encoded in people().items():
            packed.writestr(f"images/{path}", encoded)
    return file


def opened(path: Path, cache: Path):
    faces = open_faces(path, height=32, width=32, cache=cache)
    return faces, read_pairs(path, faces)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_pairs_as_lfw_writes_them(tmp_path, kind):
    path = folder(tmp_path / "lfw") if kind == "folder" else archive(tmp_path / "lfw.zip")
    faces, pairs = opened(path, tmp_path / "cache")
    assert pairs.folds == 2
    assert pairs.named
    assert pairs.same.tolist() == [True, True, False, False] * 2
    paths = faces.columns["path"]
    assert (paths[pairs.left[3]], paths[pairs.right[3]]) == ("bob/bob_0002.png", "cem/cem_0001.png")
    assert (paths[pairs.left[1]], paths[pairs.right[1]]) == ("ann/ann_0001.png", "ann/ann_0003.png")


def test_faces_without_pairs(tmp_path):
    assert opened(folder(tmp_path / "faces", pairs=None), tmp_path / "cache")[1] is None
    (tmp_path / "list.txt").write_text("faces/ann/ann_0001.png ann\nfaces/bob/bob_0001.png bob\n")
    assert opened(tmp_path / "list.txt", tmp_path / "cache")[1] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is ''"),
        ("ten 300\n", "the first line is 'ten 300'"),
        ("0 3\n", "the first line is '0 3'"),
        ("2 2\nann 1 2\n", "1 pair, but the first line says 2 folds of 2"),
        ("1 1\nann 1\n", "line 2: 2 words"),
        ("1 1\nann 1 2\nann one bob 2\n", "line 3: 'one' is not the number"),
        ("1 1\nann 1 2\nann 1 dan 2\n", "line 3: there is no image dan/dan_0002"),
    ],
)
def test_pairs_that_are_wrong(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        opened(folder(tmp_path / "lfw", text), tmp_path / "cache")


def test_pairs_that_are_no_text(tmp_path):
    path = folder(tmp_path / "lfw")
    (path / "pairs.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="not text in UTF-8"):
        opened(path, tmp_path / "cache")


encoded_images = st.integers(1, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.binary(min_size=1, max_size=300), min_size=2 * count, max_size=2 * count),
        st.lists(st.booleans(), min_size=count, max_size=count),
    )
)


@given(encoded_images, st.sampled_from([2, 3, 4, 5]), st.booleans())
def test_pickles_of_every_protocol_are_read(tmp_path_factory, content, protocol, tuples):
    file = tmp_path_factory.mktemp("bin") / "set.bin"
    file.write_bytes(pickle.dumps(tuple(map(tuple, content)) if tuples else content, protocol=protocol))
    assert read_bin(file) == content


@given(encoded_images)
def test_what_is_written_is_read_by_all(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("bin") / "set.bin"
    write_bin(file, *content)
    assert read_bin(file) == content
    assert pickle.loads(file.read_bytes(), encoding="bytes") == content


def test_a_file_of_python_2(tmp_path):
    # pickle.dumps((["a\xff", "b" * 300], [True]), 2) there: short and long byte strings, with what they are memoised as
    long = b"T" + (300).to_bytes(4, "little") + b"b" * 300
    program = b"\x80\x02]q\x00(U\x02a\xffq\x01" + long + b"q\x02e]q\x03\x88a\x86q\x04."
    (tmp_path / "old.bin").write_bytes(program)
    assert read_bin(tmp_path / "old.bin") == ([b"a\xff", b"b" * 300], [True])


arrays = {
    "of a file": lambda encoded: np.frombuffer(encoded, np.uint8),
    "of a file, standing": lambda encoded: np.frombuffer(encoded, np.uint8)[:, None],
    "of pixels": lambda encoded: np.asarray(Image.open(io.BytesIO(encoded))),
    "of pixels, Fortran's": lambda encoded: np.asfortranarray(Image.open(io.BytesIO(encoded))),
}


@pytest.mark.parametrize("kind", arrays)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_images_that_are_arrays(tmp_path, kind, protocol):
    encoded = [png(seed) for seed in range(4)]
    content = [arrays[kind](image) for image in encoded], np.array([True, False])
    (tmp_path / "set.bin").write_bytes(pickle.dumps(content, protocol=protocol))
    images, same = read_bin(tmp_path / "set.bin")
    assert same == [True, False]
    for found, expected in zip(images, encoded, strict=True):
        assert np.array_equal(Image.open(io.BytesIO(found)), Image.open(io.BytesIO(expected)))
    faces = open_faces(tmp_path / "set.bin", height=16, width=16, cache=tmp_path / "cache")
    assert np.array_equal(faces.images(np.array([2]))[0], Image.open(io.BytesIO(encoded[2])))


def test_arrays_as_older_versions_name_their_functions(tmp_path):
    written = pickle.dumps(([np.frombuffer(png(1), np.uint8)] * 2, [np.bool_(True)]), protocol=2)
    assert b"numpy._core.multiarray" in written
    older = written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    (tmp_path / "old.bin").write_bytes(older)
    images, same = read_bin(tmp_path / "old.bin")
    assert (images, same) == ([png(1)] * 2, [True])


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("pwned"),))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(([Evil()], [True])), "asks for 'pathlib"),
        (pickle.dumps(([Evil()], [True]), protocol=2), "asks for"),
        (pickle.dumps({"images": []}), "instruction EMPTY_DICT"),
        (pickle.dumps(([b"a", b"b", b"c"], [True])), "3 images cannot be 1 pair"),
        (pickle.dumps(([], [])), "0 images cannot be 0 pairs"),
        (pickle.dumps(([1, 2], [True])), "no list of encoded images"),
        (pickle.dumps(([b"a", b"b"], [2])), "no list of true and false"),
        (pickle.dumps(([np.zeros(3)] * 2, [True])), "array of 'f8'"),
        (pickle.dumps(([np.array([Evil()])] * 2, [True])), "array of 'O8'|asks for 'pathlib"),
        (pickle.dumps(([np.zeros((4, 5), np.uint8)] * 2, [True])), "an array of 4 x 5; files or RGB"),
        (pickle.dumps(([np.zeros(3, bool)] * 2, [True])), "no list of encoded images"),
        (pickle.dumps(([np.zeros(3, np.uint8)] * 2, [np.float64(1)])), "array of 'f8'"),
        (pickle.dumps(([np.dtype("u1")] * 2, [True])), "no list of encoded images"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls something else"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)RK\x01b.", "damaged"),
        (b"\x80\x02]K\x01b.", "builds something else"),
        (pickle.dumps(([b"a", b"b"], ["yes"])), "no list of true and false"),
        (pickle.dumps(([b"a", b"b"], [True]))[:-4], "damaged"),
        (b"\x80\x03e.", "damaged"),
        (b"\x80\x03\x88\x88R.", "calls something else"),
        (b"not a pickle", "damaged"),
        (b"", "damaged"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "set.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_bin(tmp_path / "set.bin")


def test_only_whole_pairs_are_written(tmp_path):
    with pytest.raises(DataError, match="1 image cannot be 1 pair"):
        write_bin(tmp_path / "set.bin", [b"a"], [True])


def evaluate_on(backbone: Backbone, path: Path):
    protocol = open_protocol("it", path, Setting(height=32, width=32, fars=(0.25,)))
    return evaluate(BackboneEmbedder(backbone), [protocol]).results["it"]


def test_evaluation_uses_the_pairs_that_come_with_the_faces(tmp_path, monkeypatch):
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    network = Network(name="small", embedding=8, height=32, width=32)
    backbone = Backbone(network.build(), network.embedding)
    faces, pairs = opened(folder(tmp_path / "lfw"), tmp_path / "cache")
    order = np.stack([pairs.left, pairs.right], axis=1).ravel()
    write_bin(tmp_path / "lfw.bin", [people()[faces.columns["path"][row]] for row in order], pairs.same.tolist())
    of_folder = evaluate_on(backbone, tmp_path / "lfw")
    assert list(of_folder.metrics) == ["accuracy", "accuracy_std", "tar@2.5e-01", "rank1"]
    assert (of_folder.genuine_pairs, of_folder.impostor_pairs) == (9, 27)
    # Of a .bin nobody knows how many folds it has; there are ten.
    with pytest.raises(DataError, match="8 pairs cannot be divided into 10 folds"):
        evaluate_on(backbone, tmp_path / "lfw.bin")
    images, same = read_bin(tmp_path / "lfw.bin")
    write_bin(tmp_path / "more.bin", images * 5, same * 5)
    of_bin = evaluate_on(backbone, tmp_path / "more.bin")
    assert list(of_bin.metrics) == ["accuracy", "accuracy_std", "tar@2.5e-01"]
    assert (of_bin.genuine_pairs, of_bin.impostor_pairs) == (20, 20)
    assert json.loads(json.dumps(of_bin.metrics)) == of_bin.metrics


def test_a_list_that_is_damaged_in_a_zip_is_named(tmp_path: Path):
    file = tmp_path / "lfw.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pairs.txt", "1 1\nann 1 1\nann 1 bob 1\n")
    file.write_bytes(file.read_bytes().replace(b"1 1\nann", b"7 1\nann"))
    with pytest.raises(DataError, match=r"lfw\.zip: pairs\.txt is damaged in the zip \(Bad CRC-32.*pack it again"):
        lfw_pairs(file)
