"""Decoded pixels on disk: written once, whole or not at all, and memory-mapped ever after."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from personae.data.shapes import Sizes
from personae.errors import ConfigError, DataError, Interrupted
from personae.files import lock, private_folder, replacing, write_text

if TYPE_CHECKING:  # whoever only looks at files does without PyTorch, which takes a second or two to import
    import torch
    from torch import Tensor

Pixels = NDArray[np.uint8]
Append = Callable[[Pixels], None]

_FORMAT = 2
_PIXELS, _INDEX, _LOCK = "pixels.u8", "index.json", "lock"
_USERS = "users"  # locked, together, by all who use the pixels
_UPLOAD = 256 << 20  # bytes that go to a GPU in one copy
_uploading = threading.Lock()


@dataclass(frozen=True)
class Filled:
    """What a source says once all its pixels are written."""

    digest: str
    missing: tuple[tuple[int, str], ...] = ()
    """Images that are not in the store, by position, and why."""
    faceless: frozenset[int] = frozenset()
    """Those of the missing in which no face was found."""
    sizes: Sizes = field(default_factory=dict)
    """Of the images as they were, where they were taken whole."""
    plain: int = 0
    """How many were taken whole because no face was found in them."""


class Store(Protocol):
    """Images of one size, by position."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def digest(self) -> str:
        """Names the content, whichever machine it was decoded on."""

    def take(self, rows: NDArray[np.int64]) -> Pixels: ...

    def on(self, device: "torch.device") -> "Tensor | None":
        """All of them, on a GPU; None if they would take more than half of the memory that is free there."""


@dataclass(frozen=True)
class PixelStore:
    """`count` images of one size in one file. Opened on first use, so that sending a store sends a path."""

    path: Path
    count: int
    height: int
    width: int
    digest: str
    offset: int = 0
    """Where in the file they begin."""
    filled: Filled = field(default_factory=lambda: Filled(""), compare=False)
    """What the source said when it was decoded; of a pack, nothing."""

    def take(self, rows: NDArray[np.int64]) -> Pixels:
        return self._mapped.take(rows, axis=0)

    def on(self, device: "torch.device") -> "Tensor | None":
        with _uploading:
            if device not in self._copies:
                self._copies[device] = self._upload(device)
        return self._copies[device]

    def _upload(self, device: "torch.device") -> "Tensor | None":
        import torch

        if 2 * self._mapped.nbytes > torch.cuda.mem_get_info(device)[0]:
            return None
        resident = torch.empty(self._mapped.shape, dtype=torch.uint8, device=device)
        at_once = max(1, _UPLOAD // max(1, self.height * self.width * 3))
        for start in range(0, self.count, at_once):
            resident[start : start + at_once].copy_(torch.from_numpy(np.array(self._mapped[start : start + at_once])))
        torch.cuda.synchronize(device)  # other streams will read it
        return resident

    @cached_property
    def _copies(self) -> "dict[torch.device, Tensor | None]":
        return {}

    @cached_property
    def _mapped(self) -> Pixels:
        shape = (self.count, self.height, self.width, 3)
        try:
            return np.memmap(self.path, dtype=np.uint8, mode="r", offset=self.offset, shape=shape).view(np.ndarray)
        except (FileNotFoundError, ValueError) as error:
            raise DataError(f"{self.path}: the cached pixels are gone; start again to decode the faces") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_mapped", "_copies")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a store is made from. A new `state` of the same `source` takes the place of the older one."""

    name: str
    source: str
    state: str
    count: int
    height: int
    width: int

    @property
    def family(self) -> str:
        readable = re.sub(r"[^A-Za-z0-9_]+", "_", self.name)[:40]
        return f"{readable}-{_short(self.source, self.height, self.width)}"

    @property
    def folder(self) -> str:
        return f"{self.family}-{_short(_FORMAT, self.state)}"

    @property
    def bytes(self) -> int:
        return self.count * self.height * self.width * 3


def default_cache() -> Path:
    """$PERSONAE_CACHE, or `personae` in the user's cache folder."""
    if chosen := os.environ.get("PERSONAE_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "personae"


def cached_pixels(cache: Path, recipe: Recipe, fill: Callable[[Append], Filled]) -> PixelStore:
    """The store made by `recipe`: found in the cache, or filled now, by one of the processes that ask."""
    folder = cache / recipe.folder
    try:
        while (store := _in_use(folder)) is None:
            with _alone_in(folder):
                if _complete(folder) is None:
                    _build(folder, recipe, fill)
                (folder / _USERS).touch()
        return store
    except PermissionError as error:
        advice = "choose a folder of your own with PERSONAE_CACHE"
        raise ConfigError(f"{cache}: the cache cannot be written ({error.strerror}); {advice}") from error
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise ConfigError(
                f"{cache}: not a folder that can be written; choose another with PERSONAE_CACHE"
            ) from error
        raise


def _in_use(folder: Path) -> PixelStore | None:
    """The store in a folder if it is complete; nobody removes its pixels as long as it is referred to."""
    try:
        users = os.open(folder / _USERS, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(users, fcntl.LOCK_SH)
    store = _complete(folder) if _is_still(users, folder / _USERS) else None
    if store is None:
        os.close(users)
        return None
    weakref.finalize(store, os.close, users)  # other processes get at the pixels by way of this one
    return store


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at this path, and not one that was removed since."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _build(folder: Path, recipe: Recipe, fill: Callable[[Append], Filled]) -> None:
    for leftover in folder.glob(".*.tmp"):  # of a process that was killed; we hold the lock
        leftover.unlink()
    (folder / _INDEX).unlink(missing_ok=True)
    if (free := shutil.disk_usage(folder).free) < recipe.bytes:
        need, have = recipe.bytes / 1e6, free / 1e6
        advice = "free some space, or choose another disk with PERSONAE_CACHE, and start again"
        raise Interrupted(
            f"{folder}: the disk is too full for the decoded faces ({need:,.0f} MB of {have:,.0f}); {advice}"
        )
    count = 0
    # Plain writes rather than a writable map: a full disk is then an error to report and not a fatal signal.
    with replacing(folder / _PIXELS, private=True) as temporary, temporary.open("wb") as file:

        def append(block: Pixels) -> None:
            nonlocal count
            file.write(np.ascontiguousarray(block).data)
            count += len(block)

        filled = fill(append)
    index = {"format": _FORMAT, "count": count, "height": recipe.height, "width": recipe.width}
    sizes = [[*size, images] for size, images in filled.sizes.items()]
    told = {"digest": filled.digest, "missing": filled.missing, "faceless": sorted(filled.faceless)}
    write_text(folder / _INDEX, json.dumps(index | told | {"sizes": sizes, "plain": filled.plain}))
    _forget_older_states(folder, recipe)


def _complete(folder: Path) -> PixelStore | None:
    """The index is written last; what it promises is checked against the file, in case somebody tidied up."""
    pixels = folder / _PIXELS
    try:
        index = json.loads((folder / _INDEX).read_text())
        count, height, width = (int(index[key]) for key in ("count", "height", "width"))
        missing = tuple((int(position), str(why)) for position, why in index["missing"])
        sizes = {(int(rows), int(columns)): int(images) for rows, columns, images in index["sizes"]}
        faceless = frozenset(map(int, index["faceless"]))
        filled = Filled(str(index["digest"]), missing, faceless, sizes, int(index["plain"]))
        if pixels.stat().st_size != count * height * width * 3:
            return None
        return PixelStore(pixels, count, height, width, filled.digest, filled=filled)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _forget_older_states(folder: Path, recipe: Recipe) -> None:
    """But those that somebody uses: the next state finds them."""
    for sibling in folder.parent.glob(f"{recipe.family}-*"):
        if sibling != folder and (sibling / _INDEX).exists():
            with suppress(OSError), (sibling / _USERS).open("w") as users:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(sibling, ignore_errors=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    private_folder(folder)
    with lock(folder / _LOCK):
        yield


def _short(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
