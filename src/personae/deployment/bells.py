"""What two processes of a server tell each other: the one that asks clients, and the gate that they are connected to.

Flower keeps messages until somebody looks for them. Without a bell, each of the two would have to look again and again.
"""

import os
from pathlib import Path

ASKED, ANSWERED = "asked.bell", "answered.bell"  # in the folder of a run


class Bell:
    """A file that one process makes longer, and another looks at. It begins with what comes now."""

    def __init__(self, path: Path) -> None:
        self._path, self._heard = path, 0
        self.rung()

    def ring(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b".")
        finally:
            os.close(descriptor)

    def rung(self) -> bool:
        """Since this was last called."""
        try:
            before, self._heard = self._heard, self._path.stat().st_size
        except FileNotFoundError:
            return False
        return self._heard > before


class Bells:
    """`personae.runtime.flower.Bells`: the bell that this side rings, and the one that it hears."""

    def __init__(self, own: Path, others: Path) -> None:
        self._own, self._others = Bell(own), Bell(others)

    @classmethod
    def of_the_server(cls, run: Path) -> "Bells":
        return cls(run / ASKED, run / ANSWERED)

    @classmethod
    def of_the_gate(cls, run: Path) -> "Bells":
        return cls(run / ANSWERED, run / ASKED)

    def ring(self) -> None:
        self._own.ring()

    def rung(self) -> bool:
        return self._others.rung()
