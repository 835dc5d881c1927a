"""The desk at which a client's work is done: one process with the faces, asked through a socket of this machine."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO

from personae.deployment.job import Job
from personae.errors import Interrupted, PersonaeError
from personae.runtime import frames
from personae.runtime.coding import Coding
from personae.runtime.host import ClientHost
from personae.runtime.transport import Failure, Request

LARGEST = 1 << 40  # a length beyond this is no length

Open = Callable[[Job], ClientHost]


class Desk:
    """Answers one request at a time. What a job needs is opened at its first request and kept for the next ones."""

    def __init__(self, path: Path, open_host: Open, notify: Callable[[str], None]) -> None:
        self._open, self._notify = open_host, notify
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
        except PersonaeError as error:
            self._notify(str(error))
            return frames.of_interruption(Interrupted(str(error)))
        except Exception as error:  # a desk outlives whatever one request does to it
            self._notify(f"{type(error).__name__}: {error}")
            return frames.of_interruption(Interrupted(f"{type(error).__name__}: {error}"))


class _AtWork:
    def __init__(self, job: Job, open_host: Open) -> None:
        self._job, self._coding = job, job.coder()
        self._host = open_host(job)

    def answer(self, content: bytes, notify: Callable[[str], None]) -> bytes:
        host, coding = self._host, self._coding
        request = frames.to_request(content, host.federation, host.backbone.layout, coding)
        notify(f"{request.stage}, round {request.round}: {request.task} as {request.client.name}")
        answer = host.handle(request)
        if isinstance(answer, Failure):
            notify(f"{request.stage}, round {request.round}: failed: {answer.reason}")
        return self._allowed(frames.of_answer(answer, request, coding), request, coding)

    def _allowed(self, answer: bytes, request: Request, coding: Coding) -> bytes:
        if len(answer) <= self._job.max_bytes:
            return answer
        reason = f"its answer holds {len(answer):,} bytes, and the server takes {self._job.max_bytes:,}"
        return frames.of_answer(Failure(request.client, reason), request, coding)


def _read(stream: IO[bytes]) -> bytes:
    size = int.from_bytes(stream.read(8), "little")
    content = stream.read(size) if size < LARGEST else b""
    if len(content) < size:
        raise ConnectionError("it ended in the middle")
    return content
