"""Files that are either whole or absent: write to a temporary name, flush to disk, rename."""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from personae.errors import Interrupted


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes the place of `path`, on failure it is removed.

    What is not `durable` survives the end of this process, but not that of the machine before it was `settled`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            _sync(path.parent)  # a rename is durable once its folder is
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Interrupted(f"{path}: the disk is full; free some space and resume") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def settle(paths: Iterable[Path]) -> None:
    """Make files durable that were written without: many at once take hardly longer than one."""
    for path in paths:
        if path.exists():
            _sync(path)
            _sync(path.parent)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def sweep(folder: Path) -> None:
    """Remove what writers that were killed half-way have left below a folder; nobody may be writing there now."""
    for leftover in folder.rglob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
