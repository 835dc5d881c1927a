"""What two processes of a server tell each other: the one that asks clients, and the one that they are connected to.

Without it, each would have to look for requests and answers again and again: a client every few seconds, and a server
every half second for each of its clients.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ASKED, ANSWERED = "asked.bell", "answered.bell"  # in the folder of a run


class Bell:
    """A file of names, one a line, that one process writes and another reads. It begins with what comes now."""

    def __init__(self, path: Path) -> None:
        self._path, self._heard = path, path.stat().st_size if path.exists() else 0

    def ring(self, name: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{name}\n".encode())
        finally:
            os.close(descriptor)

    def rung(self) -> Iterator[str]:
        """The names since this was last called."""
        if not self._path.exists() or self._path.stat().st_size <= self._heard:
            return
        with self._path.open("rb") as file:
            file.seek(self._heard)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        self._heard += len(content)
        yield from content.decode().splitlines()


class ServersBells:
    """As the process that asks has them: `personae.runtime.flower.Bells`."""

    def __init__(self, run: Path) -> None:
        self._asked, self._answered = Bell(run / ASKED), Bell(run / ANSWERED)

    @classmethod
    def of(cls, run: Path) -> "ServersBells | None":
        """None where clients reach a SuperLink without our gate: then nobody listens."""
        return cls(run) if (run / ASKED).exists() else None

    def ask(self, client: str) -> None:
        self._asked.ring(client)

    def answered(self) -> Iterator[str]:
        return self._answered.rung()
