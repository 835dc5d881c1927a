"""Faces that every party has, and their features under the model of a round, computed once on each machine."""

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.parts.embedding import BackboneEmbedder

CHUNK = 512  # images that one process embeds before it looks for more work
DONE = b"\1"

_turn = threading.Lock()


@dataclass(frozen=True)
class SharedFaces:
    """Public faces and a folder for their features. In a deployment every client has a folder of its own.

    All processes that play clients on a machine need the same features in a round, so they share the work: the features
    of a model are one file, memory-mapped, that whoever needs it helps to fill, chunk by chunk. A chunk comes out the
    same whoever computes it.
    """

    samples: Samples
    folder: Path

    def open(self, backbone: Backbone) -> "OpenFaces":
        return OpenFaces(self.samples, self.folder, backbone)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class OpenFaces:
    """Public faces at a client that has a backbone to look at them with: `personae.core.algorithm.PublicFaces`."""

    samples: Samples
    folder: Path
    backbone: Backbone

    def features(self, model: ModelState) -> Tensor:
        folder = self.folder / hashlib.blake2b(model.flat.cpu().numpy().tobytes(), digest_size=16).hexdigest()
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            self._forget_others(folder)
        shape = len(self.samples), self.backbone.width
        if 0 in shape:
            return torch.empty(shape)
        # Locks on files are between processes. Threads of one (clients on the streams of a GPU) take turns.
        with _turn, _opened(folder / "features") as table, _opened(folder / "done") as progress:
            self._fill(table, _Chunks(progress), model)
        # Mapped copy-on-write: nobody can spoil what the others read.
        return torch.from_numpy(np.memmap(folder / "features", np.float32, "c", shape=shape))

    def _fill(self, table: int, chunks: "_Chunks", model: ModelState) -> None:
        """Twice through the chunks: those that nobody is at, then, one after the other, those that somebody was at."""
        embedder = BackboneEmbedder(self.backbone, mirror=False)
        loaded = False
        for patient in (False, True):
            for number, start in enumerate(range(0, len(self.samples), CHUNK)):
                if chunks.is_done(number) or not chunks.take(number, patient):
                    continue
                if not chunks.is_done(number):  # whoever was at it may have finished, or be gone
                    if not loaded:
                        self.backbone.load(model)
                        loaded = True
                    positions = torch.arange(start, min(start + CHUNK, len(self.samples)))
                    found = embedder(self.samples.images(positions)).numpy()
                    os.pwrite(table, found.tobytes(), start * found.strides[0])
                    chunks.finish(number)
                chunks.release(number)

    def _forget_others(self, kept: Path) -> None:
        """Features of earlier rounds; a process that still has them mapped keeps its own view of them."""
        for folder in self.folder.iterdir():
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)


class _Chunks:
    """A byte for each chunk: its content says whether the chunk is done, a lock on it that somebody is at it.

    The system takes locks back from a process that ends, however it ends.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    def is_done(self, number: int) -> bool:
        return os.pread(self._file, 1, number) == DONE

    def finish(self, number: int) -> None:
        os.pwrite(self._file, DONE, number)

    def take(self, number: int, patient: bool) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB), 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, number: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield file
    finally:
        os.close(file)
