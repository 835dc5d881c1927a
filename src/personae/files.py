"""Files that are either whole or absent: write to a temporary name, flush to disk, rename."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from personae.errors import ConfigError, DataError, Interrupted, lacks_space

T = TypeVar("T")
Bytes = bytes | memoryview


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True, private: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it takes the place of `path`, on failure it is removed.

    What is not `durable` survives the end of this process, but not that of the machine before it was `settled`.
    What is `private` nobody but its owner can read.
    """
    private_folder(path.parent) if private else path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if private:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600, exist_ok=False)
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            _sync(path.parent)  # a rename is durable once its folder is
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if lacks_space(error):
            raise Interrupted(f"{path}: the disk is full; free some space and resume") from error
        raise


@contextlib.contextmanager
def together(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Files of one folder that appear together: give paths of the same names in a folder that nobody looks into.

    On success all are brought to their places, the first of them last; on failure nothing of them is left.
    """
    with tempfile.TemporaryDirectory(dir=paths[0].parent, prefix=f".{paths[0].name}.") as folder:
        made = tuple(Path(folder) / path.name for path in paths)
        yield made
        settle(made)
        for temporary, path in reversed(list(zip(made, paths, strict=True))):
            temporary.replace(path)
        _sync(paths[0].parent)


def private_folder(path: Path) -> Path:
    """A folder that nobody but its owner can look into, unless it was there before."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def lock(path: Path) -> FileLock:
    """A lock on a file that is there for nothing else. The system takes it back from a process, however that ends.

    On a disk without locks there is none: a file that stays after its process was killed would keep everybody out.
    """
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def hold(path: Path, taken: str) -> FileLock:
    """Lock a file for this process; `taken` is what to say where another one has it."""
    held = lock(path)
    try:
        held.acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(taken) from error
    except OSError as error:
        raise ConfigError(f"{path.parent}: cannot be written ({error.strerror}); choose another place") from error
    return held


@contextlib.contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Whatever keeps a run from writing down where it stands, or what happened, interrupts it."""
    try:
        yield
    except OSError as error:
        full = "the disk is full; free some space"
        why = full if lacks_space(error) else f"cannot be written ({error.strerror}); repair that"
        raise Interrupted(f"{path}: {why} and resume") from error


def write_bytes(path: Path, *content: Bytes, durable: bool = True, private: bool = False) -> None:
    """All of the content, in this order."""
    with replacing(path, durable=durable, private=private) as temporary:
        _fill(temporary, content)


def _fill(path: Path, content: Iterable[Bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(content)


def from_json(content: str | bytes) -> Any:
    """What JSON says. Of what is nested too deep, the error is the same as of what is no JSON."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_json(path: Path, use: Callable[[Any], T], advice: str = "restore it from a copy") -> T:
    """What is made of the JSON in a file. Whatever is wrong there is one line that names the file."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device never ends
            raise ValueError("it is not a plain file")
        return use(from_json(path.read_bytes()))
    except OSError as error:
        raise DataError(f"{path}: this file cannot be read ({error.strerror}); {advice}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        match error:
            case KeyError():
                why = f"{error} is missing"
            case ValidationError():
                first = error.errors(include_url=False)[0]
                why = ": ".join([".".join(map(str, first["loc"])), first["msg"]])
            case _:
                why = str(error)
        raise DataError(f"{path}: this file is damaged ({why}); {advice}") from error


def require_place(path: Path) -> None:
    """That a file cannot be written is said before the work is done that it is for."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file in it")


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
