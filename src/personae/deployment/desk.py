"""The desk at which a client's work is done: one process with the faces, asked through a socket of this machine."""

import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from pathlib import Path

from personae.core.message import Message
from personae.deployment.job import Job
from personae.files import write_bytes
from personae.runtime import frames
from personae.runtime.host import ClientHost
from personae.runtime.problems import ProblemLog

KEY = ".key"  # what the file beside the socket is called after it, which has what an asker must know
PAUSE = 0.1  # seconds after a request that came to nothing

Open = Callable[[Job], ClientHost]
Leaving = Callable[[Job, str, Message], None]  # what is about to leave in a stage, where no host could be opened


class Desk:
    """Answers one request at a time. What a job needs is opened at its first request and kept for the next ones.

    Only bytes are read from a connection: `recv` of the same class would load a pickle.
    """

    def __init__(
        self,
        path: Path,
        open_host: Open,
        notify: Callable[[str], None],
        problems: ProblemLog,
        leaving: Leaving = lambda *_: None,
    ) -> None:
        self._open, self._notify, self._problems, self._leaving = open_host, notify, problems, leaving
        self._told, self._at_work = b"", None  # type: tuple[bytes, _AtWork | None]
        key, self._path, self._closed = secrets.token_bytes(32), str(path), False
        write_bytes(Path(self._path + KEY), key, private=True)
        self._listener = Listener(self._path, "AF_UNIX", authkey=key)
        path.chmod(0o600)

    def serve(self) -> None:
        """Until the desk is closed."""
        while not self._closed:
            try:
                with self._listener.accept() as connection:
                    connection.send_bytes(self._answer(connection.recv_bytes(), connection.recv_bytes()))
            except (OSError, EOFError, AuthenticationError) as error:  # whoever asked is gone, or nobody we know
                if not self._closed:
                    self._notify(f"a request was not answered: {str(error) or 'it ended in the middle'}")
                    time.sleep(PAUSE)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError), socket.socket(socket.AF_UNIX) as waking:
            waking.connect(self._path)
        with suppress(OSError):
            self._listener.close()

    def _answer(self, told: bytes, content: bytes) -> bytes:
        try:
            if self._at_work is None or told != self._told:
                self._at_work, self._told = _AtWork(Job.parse(told), self._open), told
            return self._at_work.answer(content, self._notify)
        except Exception as error:  # a desk outlives whatever one request does to it
            trouble = self._problems.report("a request", error)
            with suppress(Exception):  # a request that nobody understands is of no run
                self._leaving(Job.parse(told), frames.stage_of(content), trouble)
            return frames.of_trouble(trouble)


class _AtWork:
    def __init__(self, job: Job, open_host: Open) -> None:
        self._job, self._coding = job, job.coder()
        self._host = open_host(job)

    def answer(self, content: bytes, notify: Callable[[str], None]) -> bytes:
        host, coding = self._host, self._coding
        request = frames.to_request(content, host.federation, host.backbone.layout, coding)
        notify(str(request))
        return host.answer(request, coding, self._job.max_bytes)
