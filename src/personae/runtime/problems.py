"""What went wrong at a client: the details stay in its own log, and a code out of a closed list leaves it."""

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from personae.core.message import Trouble, Undeclared
from personae.core.payload import FailureCode
from personae.core.problem import Problem
from personae.core.wire import WireError
from personae.errors import (
    ConfigError,
    DataError,
    Diverged,
    Interrupted,
    PersonaeError,
    Refused,
    Unkept,
    Unreadable,
    lacks_memory,
    lacks_space,
)
from personae.progress import unheard

PROBLEMS = "problems.log"

_CODES: tuple[tuple[type[Exception], Problem], ...] = (  # the first that fits
    (Diverged, Problem.DIVERGED),
    (Unreadable, Problem.UNREADABLE),
    (DataError, Problem.DATA),
    (ConfigError, Problem.CONFIGURATION),
    (Refused, Problem.REFUSED),
    (Unkept, Problem.UNKEPT),
    (Interrupted, Problem.DISK_FULL),
    (WireError, Problem.REQUEST),
    (Undeclared, Problem.UNDECLARED),
    (OSError, Problem.UNREADABLE),
)


def problem_of(error: Exception) -> Problem:
    """The code that says the most about an error."""
    if lacks_space(error):
        return Problem.DISK_FULL
    if lacks_memory(error):
        return Problem.MEMORY
    return next((problem for kind, problem in _CODES if isinstance(error, kind)), Problem.INTERNAL)


@dataclass(frozen=True)
class ProblemLog:
    """A file that only its owner can read. `notify` is heard by people at the client alone."""

    path: Path
    notify: Callable[[str], None] = unheard

    def report(self, work: str, error: Exception, problem: Problem | None = None) -> Trouble:
        """Keep the details of a failure, and give what may be told of it."""
        problem = problem or problem_of(error)
        when, details = datetime.now().astimezone(), "".join(traceback.format_exception(error))
        self._append(f"{when.isoformat(' ', 'seconds')} {work}: {problem.words}\n{details}\n")
        self.notify(f"{work}: {_line(error)}; the server is told {problem.value!r} and no more, details: {self.path}")
        return Trouble(failure=FailureCode(problem))

    def _append(self, text: str) -> None:
        """One write for each, since several processes may share the file; a full disk is no second failure."""
        content = text.encode(errors="backslashreplace")  # the name of a file may be any bytes
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, PersonaeError) else f"{type(error).__name__}: {text}"
