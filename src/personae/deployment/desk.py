"""The desk at which a client's work is done: one process with the faces, asked through a socket of this machine."""

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from personae.core.message import Message
from personae.deployment.job import Job
from personae.runtime import frames
from personae.runtime.host import ClientHost
from personae.runtime.problems import ProblemLog

LARGEST = 1 << 40  # a length beyond this is no length

Open = Callable[[Job], ClientHost]
Leaving = Callable[[Job, str, Message], None]  # what is about to leave in a stage, where no host could be opened


class Desk:
    """Answers one request at a time. What a job needs is opened at its first request and kept for the next ones."""

    def __init__(
        self,
        path: Path,
        open_host: Open,
        notify: Callable[[str], None],
        problems: ProblemLog,
        leaving: Leaving = lambda *_: None,
    ) -> None:
        self._open, self._notify, self._problems, self._leaving = open_host, notify, problems, leaving
        self._text, self._at_work = "", None  # type: tuple[str, _AtWork | None]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen()

    def serve(self) -> None:
        """Until the desk is closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as asked, connection.makefile("wb") as answered:
                try:
                    answer = self._answer(_read(asked).decode(), _read(asked))
                    answered.write(len(answer).to_bytes(8, "little") + answer)
                    answered.flush()
                except OSError as error:  # whoever asked is gone
                    self._notify(f"a request was not answered: {error}")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self, text: str, content: bytes) -> bytes:
        try:
            if self._at_work is None or text != self._text:
                self._at_work, self._text = _AtWork(Job.parse(text), self._open), text
            return self._at_work.answer(content, self._notify)
        except Exception as error:  # a desk outlives whatever one request does to it
            trouble = self._problems.report("a request", error)
            with suppress(Exception):  # a request that nobody understands is of no run
                self._leaving(Job.parse(text), frames.stage_of(content), trouble)
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


def _read(stream: IO[bytes]) -> bytes:
    size = int.from_bytes(stream.read(8), "little")
    content = stream.read(size) if size < LARGEST else b""
    if len(content) < size:
        raise ConnectionError("it ended in the middle")
    return content
