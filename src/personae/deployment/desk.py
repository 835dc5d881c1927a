"""The desk at which a client's work is done: bytes of a request in, bytes of an answer out."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from personae.core.backbone import Backbone
from personae.core.message import Message
from personae.deployment.job import Job
from personae.files import Bytes
from personae.runtime import frames
from personae.runtime.federation import Federation
from personae.runtime.host import ClientHost
from personae.runtime.problems import ProblemLog

Open = Callable[[Job], ClientHost]
Leaving = Callable[[Job, str, Message], None]  # what is about to leave in a stage, where no host could be opened


@dataclass
class Workshop:
    """What all clients of a process share. One of them works at a time, and a run's network is in memory once.

    Who only reads or writes messages and files does not need the turn: others work while a disk is waited for.
    """

    turn: threading.RLock = field(default_factory=threading.RLock)
    shown: set[str] = field(default_factory=set)  # digests of plans that a person has seen here
    _run: str = ""
    _backbone: Backbone | None = None

    def backbone(self, run: str, federation: Federation, device: str) -> Backbone:
        """The network of this run: another one's makes room for it."""
        if self._backbone is None or run != self._run:
            self._run, self._backbone = run, federation.backbone(device)
        return self._backbone


class Desk:
    """Answers one request after the other. What a job needs is opened once and kept for the next ones."""

    def __init__(
        self,
        open_host: Open,
        notify: Callable[[str], None],
        problems: ProblemLog,
        leaving: Leaving = lambda *_: None,
        workshop: Workshop | None = None,
    ) -> None:
        self._open, self._notify, self._problems, self._leaving = open_host, notify, problems, leaving
        self._workshop = workshop or Workshop()
        self._told, self._at_work = b"", None  # type: tuple[bytes, _AtWork | None]

    def open(self, told: bytes) -> None:
        """What a job needs, before it is asked for: that something is missing shows at once."""
        if self._at_work is None or told != self._told:
            with self._workshop.turn:
                self._at_work, self._told = _AtWork(Job.parse(told), self._open), told

    def answer(self, told: bytes, content: Bytes) -> bytes:
        try:
            self.open(told)
            assert self._at_work is not None
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

    def answer(self, content: Bytes, notify: Callable[[str], None]) -> bytes:
        host, coding = self._host, self._coding
        request = frames.to_request(content, host.federation, host.backbone.layout, coding)
        notify(str(request))
        return host.answer(request, coding, self._job.max_bytes)
