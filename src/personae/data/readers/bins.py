"""The images of a pair file as a source of faces. Who they are is not known: each is an identity of its own."""

from contextlib import nullcontext
from pathlib import Path

from personae.data.images import MAX_BYTES, ImageError
from personae.data.readers.listing import Listing
from personae.data.readers.pickled import read_bin

SUFFIX = ".bin"


def list_bin(file: Path) -> Listing:
    images, _ = read_bin(file)
    names = tuple(str(position) for position in range(len(images)))

    def fetch(position: int) -> bytes:
        if len(images[position]) > MAX_BYTES:
            raise ImageError(f"more than {MAX_BYTES:,} bytes")
        return images[position]

    status = file.stat()
    stamp = repr((status.st_size, status.st_mtime_ns))
    return Listing(source=file, paths=names, labels=names, stamp=stamp, opened=lambda: nullcontext(fetch))
