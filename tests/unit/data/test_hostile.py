"""Files that mean harm, opened by a process of its own that watches itself: nothing is executed, nothing outside is
read or written, memory stays below a gigabyte, and every complaint names the file."""

import io
import json
import os
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from facefiles import MAGIC, framed, insightface, picture, record, write_records

GOOD = picture(1)
MEGABYTE = bytes(1_000_000)
SIDE = 7000  # 49 megapixels, which is just allowed

WATCHER = """
import json, os, resource, sys
from pathlib import Path
from personae.data import open_faces
from personae.data.inspection import inspect_faces
from personae.errors import PersonaeError
try:
    import pyarrow.parquet
except ImportError:
    pass

root = Path(sys.argv[1])
outside = []
executed = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect"}

def watch(event, arguments):
    if event in executed:
        outside.append(event)
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        path, mode = os.path.realpath(os.fsdecode(arguments[0])), arguments[2] or 0
        writes = mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if "secret" in path or (writes and not path.startswith(str(root / "cache"))):
            outside.append(path)

def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

# An allocation that would fill the memory fails here, and is to be told like any other fault of the file.
held = kilobytes("VmData") * 1024 + (1 << 30)
resource.setrlimit(resource.RLIMIT_DATA, (held, held))
sys.addaudithook(watch)
for name in ["", *sys.argv[2:]]:  # the first is only there to import what is imported late
    with open("/proc/self/clear_refs", "w") as peaks:
        peaks.write("5")
    del outside[:]
    told = []
    size = {"height": 16, "width": 16}
    for work in (lambda path: open_faces(path, **size, cache=root / "cache", as_they_are=True), inspect_faces):
        try:
            found = work(root / name)
            told.append(f"read {getattr(found, 'unreadable', 0)}")
        except PersonaeError as error:
            told.append(str(error))
    peak = kilobytes("VmHWM") // 1024  # `getrusage` would include the process that started this one
    name and print(json.dumps({"name": name, "told": told, "outside": outside, "megabytes": peak}), flush=True)
"""


def put(file: Path, content: bytes = GOOD) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def zipped(file: Path, labels: str = "path,identity\na.png,ann\n", **members: bytes) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in {"labels.csv": labels.encode(), "images/a.png": GOOD, **members}.items():
            archive.writestr(name, content)


def png(width: int, height: int, colour: int, rows: int, depth: int = 8, channels: int = 4) -> bytes:
    """A real bomb: all its pixels are there, and all are zero."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer, pixels = zlib.compressobj(1), b""
    line = bytes(1 + width * channels * depth // 8)
    for _ in range(rows):
        pixels += packer.compress(line)
    pixels += packer.flush()
    size = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def folder(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (put(root / name / "ann/1.png", content), put(root / name / "ann/2.png"))[0] and None


def declaring(size: int) -> Callable[[Path], None]:
    """A zip whose member says it is small, or large, and is neither."""

    def make(root: Path) -> None:
        file = root / f"declares-{size}.zip"
        bomb = MEGABYTE * 5
        zipped(file, "path,identity\na.png,ann\nb.png,ann\n", **{"images/b.png": bomb})
        content = bytearray(file.read_bytes())
        place = -1
        while (place := content.find(struct.pack("<I", len(bomb)), place + 1)) >= 0:
            content[place : place + 4] = struct.pack("<I", size)
        file.write_bytes(content)

    return make


def long_chain(root: Path) -> None:
    """Ten million parts of nothing, which never end."""
    part = MAGIC + struct.pack("<I", 2 << 29)
    file = root / "chain.rec"
    file.write_bytes(framed(record(1.0, GOOD)) + MAGIC + struct.pack("<I", 1 << 29) + part * 10_000_000)
    file.with_suffix(".idx").write_text(f"0\t0\n1\t{len(framed(record(1.0, GOOD)))}\n")


def lying_records(root: Path) -> None:
    records = {**insightface({0: [GOOD], 1: [GOOD]}), 3: struct.pack("<IfQQ", 2**31, 0, 0, 0)}
    write_records(root / "lies.rec", records)


def sparse(name: str, beginning: bytes = b"") -> Callable[[Path], None]:
    """Ten gigabytes that take no space."""

    def make(root: Path) -> None:
        os.truncate(put(root / name, beginning), 10_000_000_000)

    return make


def sparse_records(root: Path) -> None:
    file = write_records(root / "sparse.rec", insightface({0: [GOOD], 1: [GOOD]}))
    os.truncate(file.with_suffix(".idx"), 10_000_000_000)


def pickled_code(root: Path) -> None:
    put(root / "code.bin", b"cos\nsystem\n(S'touch secret'\ntR.")


def pickled_size(root: Path) -> None:
    put(root / "size.bin", b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.")


def linked(name: str, link: str, target: str, *more: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        put(root / "secret" / "1.png")
        (root / "secret" / "passwords").write_text("root:x:0:0\n")
        for each in more:
            put(root / name / each)
        (root / name / link).parent.mkdir(parents=True, exist_ok=True)
        (root / name / link).symlink_to(root / target)

    return make


def linked_table(root: Path) -> None:
    linked("linked-table", "images/a.png", "secret/1.png")(root)
    (root / "linked-table/labels.csv").write_text("path,identity\na.png,ann\n")


def pipe(root: Path) -> None:
    put(root / "pipe" / "ann" / "1.png")
    os.mkfifo(root / "pipe" / "ann" / "2.png")


def single_pipe(root: Path) -> None:
    os.mkfifo(root / "single-pipe")


def table(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        images = [{"bytes": GOOD, "path": None}, {"bytes": MEGABYTE * 90, "path": None}]
        content = pyarrow.table({"image": images, "label": [0, 1]})
        stream = io.BytesIO()
        parquet.write_table(content, stream, compression="zstd", use_dictionary=False)
        put(root / name, change(stream.getvalue()))

    return make


def with_larger_page(content: bytes) -> bytes:
    """The page says that it unpacks to half as much again: field 2 of its header, in as many bytes."""
    size = 90_000_000 + len(GOOD) + 8  # and a few bytes of levels, found below
    for extra in range(64):
        value, encoded = (size + extra) << 1, b""
        while value > 127:
            encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
        encoded = b"\x15" + encoded + bytes([value])
        if encoded in content[:60]:
            return content.replace(encoded, b"\x15\xfe\xff\xff\x7f", 1)
    raise AssertionError("no such page")


def huge_table(root: Path) -> None:
    """A column that unpacks to a gigabyte, in one page of a megabyte."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    images = pyarrow.chunked_array([pyarrow.array([MEGABYTE * 90] * 6)])
    content = pyarrow.table({"image": images, "label": list(range(6))})
    parquet.write_table(
        content, root / "huge.parquet", compression="gzip", use_dictionary=False, data_page_size=1 << 30
    )


def repeated_table(name: str, image: bytes, label: str, rows: int) -> Callable[[Path], None]:
    """Rows that all stand for the same entry of a dictionary; the first has a good image."""

    def make(root: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        codes = pyarrow.array(np.minimum(np.arange(rows), 1), pyarrow.int32())
        images = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array([GOOD, image]))
        labels = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["ann", label]))
        content = pyarrow.table({"image": images, "label": labels})
        parquet.write_table(content, root / name, compression="zstd", store_schema=False)

    return make


def wide_table(root: Path) -> None:
    """Images of 90 MB, each in a page of its own."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with parquet.ParquetWriter(
        root / "cells.parquet",
        pyarrow.schema([("image", pyarrow.binary()), ("label", pyarrow.int64())]),
        compression="zstd",
        use_dictionary=False,
        write_batch_size=1,
    ) as writer:
        images = [GOOD, *[MEGABYTE * 90] * 7]
        writer.write_table(pyarrow.table({"image": images, "label": list(range(8))}))


def prefixed_table(root: Path) -> None:
    """Cells of a megabyte, each of which is written as being the one before."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ("image", "label", "note")
    with parquet.ParquetWriter(
        root / "prefixed.parquet",
        pyarrow.schema([("image", pyarrow.binary()), ("label", pyarrow.string()), ("note", pyarrow.string())]),
        use_dictionary=False,
        column_encoding=dict(zip(names, ("PLAIN", "PLAIN", "DELTA_BYTE_ARRAY"), strict=True)),
    ) as writer:
        for _ in range(12):
            cells = [GOOD] * 80, ["ann"] * 80, ["x" * 1_000_000] * 80
            writer.write_table(pyarrow.table(dict(zip(names, cells, strict=True))))


def table_with_more(root: Path) -> None:
    """Beside the bytes of each image a list of 35 million numbers, which take nothing in the file."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    many = 35_000_000
    more = pyarrow.ListArray.from_arrays([0, many, 2 * many], np.zeros(2 * many, np.int64))
    images = pyarrow.StructArray.from_arrays([pyarrow.array([GOOD, GOOD]), more], ["bytes", "more"])
    parquet.write_table(pyarrow.table({"image": images, "label": [0, 1]}), root / "more.parquet", compression="zstd")


def packed(name: str, method: int) -> Callable[[Path], None]:
    """A zip by a method that is unpacked all at once, however little of it is asked for."""

    def make(root: Path) -> None:
        with zipfile.ZipFile(root / name, "w", method) as archive:
            archive.writestr("labels.csv", "path,identity\na.png,ann\n")
            archive.writestr("images/a.png", GOOD)

    return make


def wide_zip(root: Path) -> None:
    """One cell of a hundred thousand characters, which all others would have to be as wide as."""
    lines = [f"{number}.png,ann,{'x' * 100_000 if number == 7 else ''}\n" for number in range(5000)]
    members = {f"images/{number}.png": b"" for number in range(5000)}
    zipped(root / "wide.zip", "path,identity,note\n" + "".join(lines), **members)


def long_zip(name: str, line: bytes) -> Callable[[Path], None]:
    """A table of 400 MB in a small zip."""

    def make(root: Path) -> None:
        with zipfile.ZipFile(root / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images/a.png", GOOD)
            with archive.open("labels.csv", "w", force_zip64=True) as table:
                table.write(b"path,identity\n")
                for _ in range(400):
                    table.write(line * (1_000_000 // len(line)))

    return make


def pickled_array(name: str, again: bool) -> Callable[[Path], None]:
    """Pixels of one image, referred to two hundred times: by what was made of them, or by making it `again`."""

    def make(root: Path) -> None:
        content = bytes(3 * 500 * 500)
        call = b"cnumpy.core.multiarray\n_reconstruct\n(tR"  # an array of which nothing is known yet
        kind = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1tRq\x02"
        pixels = b"B" + struct.pack("<I", len(content)) + content + b"q\x03"
        shape = b"(M\xf4\x01M\xf4\x01K\x03t"
        first = call + b"(K\x01" + shape + kind + b"\x89" + pixels + b"tbq\x01"
        others = call + b"(K\x01" + shape + b"h\x02\x89h\x03tb" if again else b"h\x01"
        flags = b"](" + b"\x88" * 100 + b"e"
        put(root / name, b"\x80\x03](" + first + others * 199 + b"e" + flags + b"\x86.")

    return make


def many_scans(root: Path) -> None:
    """A progressive JPEG whose last scan is there 2,600 times; each goes over all pixels."""
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(
        stream, "JPEG", progressive=True
    )
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    folder("scans", content[:-2] + content[last:-2] * 2600 + content[-2:])(root)


def many_large_scans(root: Path) -> None:
    """No more scans than may be, of as many pixels as may be: half a minute for 300 kB."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    folder("large-scans", content[:-2] + content[last:-2] * 90 + content[-2:])(root)


def nested_groups(root: Path) -> None:
    put(root / "loop" / "ann" / "1.png")
    (root / "loop" / "bob").symlink_to(root / "loop")


def large_header(root: Path) -> None:
    header = b'{"__metadata__":{"format":"personae-faces","version":"1"},' + b" " * 100 + b'"pixels":'
    put(root / "header.faces", struct.pack("<Q", 2**63) + header)


def many_pixels(root: Path) -> None:
    header = {
        "__metadata__": {"format": "personae-faces", "version": "1", "sha256": "{}", "columns": "[]"},
        "pixels": {"dtype": "U8", "shape": [2**31, 2**10, 2**10, 3], "data_offsets": [0, 9]},
    }
    content = json.dumps(header).encode()
    put(root / "pixels.faces", struct.pack("<Q", len(content)) + content + bytes(9))


def extreme_webp(root: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(stream, "WEBP", lossless=True)
    content = bytearray(stream.getvalue())
    content[21:25] = b"\xff\xff\xff\x0f"  # 16384 x 16384
    folder("webp", bytes(content))(root)


UNUSED = "1 of 2 images cannot be used, the first is ann/1.png"
CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "rgba": (folder("rgba", png(SIDE, SIDE, 6, SIDE)), "read"),
    "sixteen": (folder("sixteen", png(SIDE, SIDE, 0, SIDE, depth=16, channels=1)), "read"),
    "lines": (folder("lines", png(49_000_000, 1, 2, 1, channels=3)), UNUSED),
    "claims": (folder("claims", png(60_000, 60_000, 6, 1)), UNUSED),
    "webp": (extreme_webp, UNUSED),
    "declares-1000.zip": (declaring(1000), "declares-1000.zip"),
    f"declares-{2**31}.zip": (declaring(2**31), f"declares-{2**31}.zip"),
    "up.zip": (
        lambda root: zipped(root / "up.zip", **{"../../secret.png": GOOD}),
        "the path '../../secret.png' leaves",
    ),
    "list.txt": (lambda root: put(root / "list.txt", b"../secret/1.png ann") and None, "list.txt, line 1: the path"),
    "absolute.txt": (lambda root: put(root / "absolute.txt", b"/etc/passwd ann") and None, "absolute.txt, line 1"),
    "zeros.txt": (sparse("zeros.txt"), "zeros.txt: more than 400,000,000 bytes"),
    "zeros.bin": (sparse("zeros.bin"), "zeros.bin: not a pair file"),
    "zeros.zip": (sparse("zeros.zip", b"PK\x03\x04"), "zeros.zip: not a readable zip"),
    "zeros.parquet": (sparse("zeros.parquet", b"PAR1"), "zeros.parquet: not a readable Parquet file"),
    "zeros": (lambda root: (put(root / "zeros/ann/2.png"), sparse("zeros/ann/1.png")(root))[0] and None, UNUSED),
    "chain.rec": (long_chain, "chain.rec: record 1 cannot be read"),
    "lies.rec": (lying_records, "lies.rec: record 3 cannot be read"),
    "sparse.rec": (sparse_records, "sparse.idx: more than 1,000,000,000 bytes"),
    "code.bin": (pickled_code, "code.bin: not a pair file"),
    "size.bin": (pickled_size, "size.bin: not a pair file"),
    "linked-image": (linked("linked-image", "ann/1.png", "secret/1.png"), "is a link that leaves"),
    "linked-folder": (linked("linked-folder", "ann", "secret"), "is a link that leaves"),
    "linked-table": (linked_table, "is a link that leaves"),
    "linked-group": (linked("linked-group", "day/ann", "secret", "night/bob/1.png"), "is a link that leaves"),
    "pipe": (pipe, "the first is ann/2.png (not a plain file)"),
    "single-pipe": (single_pipe, "single-pipe: neither a file nor a folder"),
    "loop": (nested_groups, "read 0"),
    "page.parquet": (table("page.parquet", with_larger_page), "page.parquet: 2 of 2 images cannot be used"),
    "cut.parquet": (table("cut.parquet", lambda content: content[:5000] + content[-400:]), "cut.parquet"),
    "huge.parquet": (huge_table, "huge.parquet: a page of it cannot be right"),
    "dictionary.parquet": (
        repeated_table("dictionary.parquet", MEGABYTE * 90, "bob", 40),
        "dictionary.parquet: 39 of 40 images cannot be used",
    ),
    "rows.parquet": (repeated_table("rows.parquet", GOOD, "bob", 10_000_000), "far more than it has images"),
    "name.parquet": (repeated_table("name.parquet", GOOD, "x" * 60_000_000, 500), "cell of more than 10,000 char"),
    "cells.parquet": (wide_table, "cells.parquet: 7 of 8 images cannot be used"),
    "wide.zip": (wide_zip, "wide.zip: the column 'note' has a cell of 100,000 characters"),
    "lines.zip": (
        long_zip("lines.zip", b"a.png,ann\n"),
        "lines.zip: labels.csv has far more lines than there are files",
    ),
    "endless.zip": (long_zip("endless.zip", b"x"), "a line has more than 1,000,000 characters"),
    "named.bin": (pickled_array("named.bin", again=False), "read"),
    "again.bin": (pickled_array("again.bin", again=True), "makes far more of its bytes than there are"),
    "bzip2.zip": (packed("bzip2.zip", zipfile.ZIP_BZIP2), "labels.csv is packed by a method that is not read"),
    "lzma.zip": (packed("lzma.zip", zipfile.ZIP_LZMA), "labels.csv is packed by a method that is not read"),
    "prefixed.parquet": (prefixed_table, "cell of more than 10,000 char"),
    "more.parquet": (table_with_more, "read 0"),
    "scans": (many_scans, UNUSED),
    "large-scans": (many_large_scans, UNUSED),
    "header.faces": (large_header, "header.faces: a damaged pack"),
    "pixels.faces": (many_pixels, "pixels.faces: a damaged pack"),
}


def test_nothing_harmful_happens(tmp_path: Path) -> None:
    for make, _ in CORPUS.values():
        make(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", WATCHER, str(tmp_path), *CORPUS],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    last = results[-1]["name"] if results else "the imports"
    assert process.returncode == 0, f"ended after {last}: {process.stderr[-2000:]}"
    assert [result["name"] for result in results] == list(CORPUS)
    for result in results:
        opened, inspected = result["told"]
        assert CORPUS[result["name"]][1] in opened, result
        for text in (opened, inspected):
            assert Path(result["name"]).stem in text or text.startswith("read"), result
        assert "\n" not in opened + inspected
        assert result["outside"] == [], result
        assert result["megabytes"] < 1000, result
    assert not Path("secret").exists()
