"""Files that are either whole or absent: write to a temporary name, flush to disk, rename."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from personae.errors import Interrupted


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes the place of `path`, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Interrupted(f"{path}: the disk is full; free some space and resume") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def sweep(folder: Path) -> None:
    """Remove what writers that were killed half-way have left below a folder; nobody may be writing there now."""
    for leftover in folder.rglob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A rename is durable once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
