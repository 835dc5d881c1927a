"""A client that keeps, in its own home, what it needs to use its models without the server."""

import threading

from personae.core.backbone import Backbone
from personae.core.message import ClientEvaluation, Message
from personae.experiment.home import OwnRun
from personae.files import settle
from personae.runtime.coding import Coding
from personae.runtime.federation import Federation
from personae.runtime.host import ClientHost
from personae.runtime.problems import ProblemLog
from personae.runtime.transport import Answer, Request


class OwnHost(ClientHost):
    """Writes down what came before it works on it, and what leaves before it does."""

    def __init__(
        self,
        own: OwnRun,
        federation: Federation,
        backbone: Backbone,
        turn: threading.RLock,
        *,
        problems: ProblemLog | None = None,
    ) -> None:
        super().__init__(federation, backbone=backbone, problems=problems)
        self._own, self._turn = own, turn

    def handle(self, request: Request) -> Answer:
        self._own.receive(request)
        with self._turn:
            try:
                answer = super().handle(request)
            finally:
                self._evaluated = None  # the next model is another one, and many clients may share this memory
        settle([self._store(request).path(request.stage, request.round)])  # the others need not wait for the disk
        return answer

    def leaving(self, request: Request, message: Message, coding: Coding) -> None:
        self._own.records.sent(request.stage, coding.bytes(message, request.down))
        if isinstance(message, ClientEvaluation):
            self._own.records.evaluated(request.stage, request.round, message.metrics.values)
