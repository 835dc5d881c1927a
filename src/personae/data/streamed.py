"""Images that are decoded when they are asked for: for sets that are looked at once and would fill the cache."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from personae.data.align import similarity, template, warp
from personae.data.faces import Rows
from personae.data.images import ImageError, decode, decode_whole, size_of
from personae.data.pixels import Pixels
from personae.data.readers.listing import path_inside, read_file
from personae.data.samples import FaceSamples
from personae.data.shapes import refuse_unaligned
from personae.errors import DataError, Unreadable


@dataclass(frozen=True, eq=False)
class StreamedStore:
    """Files below a folder. With landmarks, [N, 5, 2], images are aligned; with boxes, [N, 4], they are cut out."""

    root: Path
    paths: tuple[str, ...]
    height: int
    width: int
    landmarks: NDArray[np.float64] | None = None
    boxes: NDArray[np.float64] | None = None
    """Left, top, width and height; where they are not finite, the whole image is taken."""
    as_they_are: bool = False
    """Whether whole images may have any size."""

    @cached_property
    def digest(self) -> str:
        """Of names, sizes and times rather than of a million files."""
        digest = hashlib.sha256(repr((str(self.root), self.height, self.width)).encode())
        for path in self.paths:
            try:
                status = (self.root / path).stat()
            except OSError as error:
                raise DataError(
                    f"{self.root / path}: cannot be read ({error.strerror}); complete the images"
                ) from error
            digest.update(repr((path, status.st_size, status.st_mtime_ns)).encode())
        for extra in (self.landmarks, self.boxes):
            digest.update(b"none" if extra is None else extra.tobytes())
        return digest.hexdigest()

    def take(self, rows: Rows) -> Pixels:
        return np.stack([self._one(int(row)) for row in rows])

    def on(self, device: torch.device) -> None:
        """They are never all there."""

    def _one(self, row: int) -> Pixels:
        try:
            encoded = read_file(self.root / self.paths[row])
            if self.landmarks is not None:
                matrix = similarity(self.landmarks[row], template(self.height, self.width))
                return warp(decode_whole(encoded), matrix, self.height, self.width)
            if self.boxes is not None and np.isfinite(self.boxes[row]).all():
                return self._cut(decode_whole(encoded), self.boxes[row])
            if self.boxes is None and not self.as_they_are:
                sizes = {self._first_size: 1, size_of(encoded): 1}
                refuse_unaligned(sizes, self.height, self.width, str(self.root / self.paths[row]))
            return decode(encoded, self.height, self.width, upright=False)
        except ImageError as why:
            raise Unreadable(f"{self.root / self.paths[row]}: cannot be used ({why}); repair the image") from why

    @cached_property
    def _first_size(self) -> tuple[int, int]:
        return size_of(read_file(self.root / self.paths[0]))

    def _cut(self, pixels: Pixels, box: NDArray[np.float64]) -> Pixels:
        left, top, width, height = box
        scale = np.array([self.width / max(width, 1), self.height / max(height, 1)])
        return warp(pixels, np.column_stack([np.diag(scale), -scale * [left, top]]), self.height, self.width)


def streamed(store: StreamedStore, labels: Rows) -> FaceSamples:
    """The images as samples, in their order; `labels` may be any numbers."""
    for path in store.paths:
        path_inside(path, str(store.root))
    names, codes = np.unique(labels, return_inverse=True)
    return FaceSamples(
        tuple(map(str, names.tolist())), torch.from_numpy(codes.astype(np.int64)), store, np.arange(len(store.paths))
    )
