"""Images a second out of every layout, on one core, beside a plain loop over files with Pillow:
`python benchmarks/readers.py [images] [--size N]`.

All hold the same faces, rendered and saved as JPEG of quality 95. The plain loop is what a data set of a few lines
does: open a file, decode, convert, make an array. The others fetch and decode what a listing has, one after the other,
as the cache is filled; a pack is read as training does, in batches of 64 in random order. Passes are interleaved, so
that whatever else the machine does falls on all alike, and medians compared. Files are in the page cache.
"""

import argparse
import io
import os
import statistics
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from personae.data import open_faces, pack_faces, synthetic_faces
from personae.data.images import decode
from personae.data.readers import read_listing

BATCH = 64
REPEATS = 7
QUALITY = 95
TARGETS = {"pack": 20.0, "rec": 2.0}


def encoded(count: int, size: int, cache: Path) -> list[tuple[int, bytes]]:
    """Who is on it, and the file."""
    people = -(-count // 20)
    faces = synthetic_faces(identities=people, images=20, size=size, cache=cache)
    found = []
    for row, pixels in enumerate(faces.images(np.arange(count))):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=QUALITY)
        found.append((int(faces.identity[row]), stream.getvalue()))
    return found


def write_folders(root: Path, images: Sequence[tuple[int, bytes]]) -> Path:
    for number, (person, content) in enumerate(images):
        file = root / "folders" / f"{person:05}" / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root / "folders"


def write_list(root: Path, images: Sequence[tuple[int, bytes]]) -> Path:
    lines = [f"folders/{person:05}/{number:06}.jpg {person}\n" for number, (person, _) in enumerate(images)]
    (root / "list.txt").write_text("".join(lines))
    return root / "list.txt"


def write_zip(root: Path, images: Sequence[tuple[int, bytes]]) -> Path:
    with zipfile.ZipFile(root / "faces.zip", "w") as archive:
        for number, (_, content) in enumerate(images):
            archive.writestr(f"images/{number:06}.jpg", content)
        lines = [f"{number:06}.jpg,{person}\n" for number, (person, _) in enumerate(images)]
        archive.writestr("labels.csv", "path,identity\n" + "".join(lines))
    return root / "faces.zip"


def write_rec(root: Path, images: Sequence[tuple[int, bytes]]) -> Path:
    """Records without ranges; a JPEG that holds the word of the frame would have to be split, and none does."""
    magic, places = struct.pack("<I", 0xCED7230A), []
    with (root / "train.rec").open("wb") as stream:
        for number, (person, content) in enumerate(images):
            assert magic not in content
            places.append(f"{number}\t{stream.tell()}\n")
            record = struct.pack("<IfQQ", 0, person, number, 0) + content
            stream.write(magic + struct.pack("<I", len(record)) + record + bytes(-len(record) % 4))
    (root / "train.idx").write_text("".join(places))
    return root / "train.rec"


def write_parquet(root: Path, images: Sequence[tuple[int, bytes]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(
        {
            "image": [{"bytes": content, "path": None} for _, content in images],
            "label": [person for person, _ in images],
        }
    )
    pyarrow.parquet.write_table(table, root / "faces.parquet", row_group_size=100)
    return root / "faces.parquet"


def plain_loop(folder: Path) -> Callable[[], None]:
    files = sorted(folder.rglob("*.jpg"))

    def work() -> None:
        for file in files:
            np.asarray(Image.open(file).convert("RGB"))

    return work


def through_listing(path: Path, size: int) -> Callable[[], None]:
    listing = read_listing(path)

    def work() -> None:
        with listing.opened() as fetch:
            for position in range(len(listing.paths)):
                decode(fetch(position), size, size, upright=listing.upright)

    return work


def through_pack(path: Path, root: Path, size: int) -> Callable[[], None]:
    pack_faces(path, root / "set.faces", height=size, width=size)
    faces = open_faces(root / "set.faces", height=size, width=size)
    batches = np.array_split(np.random.default_rng(0).permutation(len(faces)), -(-len(faces) // BATCH))

    def work() -> None:
        for rows in batches:
            faces.images(rows)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=int, nargs="?", default=2000)
    parser.add_argument("--size", type=int, default=112)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        images = encoded(options.images, options.size, root / "cache")
        folders = write_folders(root, images)
        listed = {"folders": folders, "list": write_list(root, images), "zip": write_zip(root, images)}
        listed |= {"rec": write_rec(root, images), "parquet": write_parquet(root, images)}
        ways = {"plain loop": plain_loop(folders)}
        ways |= {name: through_listing(path, options.size) for name, path in listed.items()}
        ways["pack"] = through_pack(folders, root, options.size)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(1 + REPEATS):
            for name, work in ways.items():
                began = time.process_time()
                work()
                seconds[name].append(time.process_time() - began)
    average = sum(len(content) for _, content in images) / len(images)
    print(f"{len(images)} images of {options.size} x {options.size}, {average:,.0f} bytes each, one core")
    print(f"{'':12}{'images/s':>12}{'x plain loop':>14}{'from':>8}{'to':>8}")
    for name, taken in seconds.items():
        ratios = [plain / own for plain, own in zip(seconds["plain loop"][1:], taken[1:], strict=True)]
        speed, ratio = len(images) / statistics.median(taken[1:]), statistics.median(ratios)
        target = f"   target {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{name:12}{speed:12,.0f}{ratio:14.2f}{min(ratios):8.2f}{max(ratios):8.2f}{target}")


if __name__ == "__main__":
    main()
