"""Arrays that two processes of one machine hand each other in memory that both see.

A model that goes through a pipe is copied several times on either side, and holds up whoever writes it until the other
side has read it. Here the pipe says where the model lies.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from personae.core.payload import Arrays
from personae.core.wire import Packet, WireError
from personae.runtime.coding import Coding

PLACE = ":place"  # what an array is called that says where another one lies
SMALLEST = 1 << 12  # numbers: what has fewer goes through the pipe
BOXES = 3  # one for requests, and two for answers: one is still read when the next is written
MEMORY = Path("/dev/shm")  # the file system of shared memory on Linux; containers often have little


@dataclass(frozen=True, kw_only=True)
class Shelf(Coding):
    """The coding of one connection, on which there is one request at a time. Each side has a copy of this object.

    `device` is where this side wants its arrays.
    """

    boxes: tuple[Tensor, ...]
    device: str = "cpu"
    whole: bool = True
    _answers: Iterator[int] = field(default_factory=lambda: cycle(range(1, BOXES)), repr=False, compare=False)

    def request(self, packet: Packet) -> Packet:
        return self._put(packet, 0)

    def answer(self, packet: Packet, request: Packet) -> Packet:  # noqa: ARG002
        return self._put(packet, next(self._answers))

    def restored(self, packet: Packet, request: Packet | None = None) -> Packet:  # noqa: ARG002
        arrays = {name: array for name, array in packet.arrays.items() if not name.endswith(PLACE)}
        for name in packet.arrays.keys() - arrays.keys():
            arrays[name.removesuffix(PLACE)] = self._taken(packet.arrays[name].tolist())
        return Packet(arrays, packet.scalars)

    def _put(self, packet: Packet, box: int) -> Packet:
        arrays: Arrays = {}
        begin = 0
        for name, array in packet.arrays.items():
            end = begin + array.numel()
            if array.dtype != torch.float32 or array.numel() < SMALLEST or end > len(self.boxes[box]):
                arrays[name] = array
                continue
            self.boxes[box][begin:end].copy_(array.flatten())
            arrays[name + PLACE] = torch.tensor([box, begin, *array.shape])
            begin = end
        return Packet(arrays, packet.scalars)

    def _taken(self, place: list[int]) -> Tensor:
        box, begin, *shape = place
        end = begin + torch.Size(shape).numel()
        if not 0 <= box < len(self.boxes) or not 0 <= begin <= end <= len(self.boxes[box]):
            raise WireError("an array lies outside of the memory for it")
        return self.boxes[box][begin:end].reshape(shape).to(self.device, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"boxes": self.boxes, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def shelves(count: int, size: int) -> list[tuple[Tensor, ...]]:
    """The boxes of so many connections, for arrays of so many numbers; without any room where memory is short."""
    if not MEMORY.is_dir() or 2 * 4 * count * BOXES * size > _free(MEMORY):
        size = 0
    return [tuple(_shared(size) for _ in range(BOXES)) for _ in range(count)]


def _shared(size: int) -> Tensor:
    shared: Tensor = torch.empty(size).share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
