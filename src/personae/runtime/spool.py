"""A round's updates until all are in: a few in memory, the rest on disk, read back one by one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import Message
from personae.files import private_folder

MEMORY = 256 << 20  # bytes of updates kept in memory; a round of any size needs no more


class Spool:
    """Holds messages by client: whether an update is an outlier is known only when its round is complete."""

    def __init__(self, layout: Layout, folder: Path, memory: int = MEMORY) -> None:
        self._layout, self._folder, self._room = layout, folder, memory
        self._kept: dict[str, Message] = {}
        self._spilled: dict[str, tuple[type[Message], Path]] = {}

    def put(self, client: str, message: Message) -> None:
        size = sum(wire.payload_bytes(message).values())
        if size <= self._room:
            self._room -= size
            self._kept[client] = message
        else:
            path = self._folder / f"{len(self._spilled)}.safetensors"
            path.write_bytes(wire.to_bytes(wire.encode(message)))
            self._spilled[client] = type(message), path

    def look(self, client: str) -> Message:
        """The client's message, which stays here."""
        if client in self._kept:
            return self._kept[client]
        kind, path = self._spilled[client]
        return wire.decode(kind, wire.from_bytes(path.read_bytes()), self._layout)

    def take(self, client: str) -> Message:
        """The client's message, to be asked for once: its place is free then."""
        message = self.look(client)
        if self._kept.pop(client, None) is None:
            self._spilled.pop(client)[1].unlink()
        return message


@contextmanager
def spool(layout: Layout, folder: Path, memory: int = MEMORY) -> Iterator[Spool]:
    """A spool over a folder that is empty before and gone after."""
    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    try:
        yield Spool(layout, folder, memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
