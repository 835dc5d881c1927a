"""One question to many clients: what is sent, what comes back, and what each of them let across."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from personae.core.algorithm import ClientInfo
from personae.core.events import Transfer
from personae.core.message import Message, ServerState, Trouble
from personae.core.problem import Problem
from personae.core.stage import Stage
from personae.runtime.coding import EXACT, Coding
from personae.runtime.transport import Answer, Failure, Request, Transport


class Exchange:
    """Asks clients for one task of one round, with the questions that belong to it.

    It counts the bytes by payload kind, direction and client.
    """

    def __init__(self, transport: Transport, task: str, stage: Stage, round_: int, coding: Coding = EXACT) -> None:
        self._transport, self._task, self._stage, self._round = transport, task, stage, round_
        self._coding = coding
        self._crossed: dict[ClientInfo, list[Transfer]] = defaultdict(list)
        self._asked: dict[ClientInfo, Message] = {}

    def ask(self, state: ServerState, clients: Iterable[ClientInfo]) -> Iterator[Answer | Failure]:
        """Answers as they come; a client that tells of trouble has failed."""
        algorithm = self._stage.algorithm
        yield from self._put(self._task, ((client, algorithm.send(state, client)) for client in clients))

    def besides(self, question: str, state: ServerState, cohort: Sequence[ClientInfo]) -> Iterator[Answer | Failure]:
        """The same of another question of the round."""
        algorithm = self._stage.algorithm
        yield from self._put(question, ((client, algorithm.ask(question, state, client, cohort)) for client in cohort))

    def _put(self, task: str, downs: Iterable[tuple[ClientInfo, Message]]) -> Iterator[Answer | Failure]:
        for answer in self._transport.exchange(self._requests(task, downs)):
            if isinstance(answer, Answer):
                self._count(answer.client, "up", answer.message, self._asked.get(answer.client))
                if isinstance(answer.message, Trouble):
                    yield self._failure(answer.client, answer.message.failure.value)
                    continue
            yield answer

    def ledger(self) -> Iterator[Transfer]:
        """What crossed, in the order of the clients and not of their answers."""
        for client in sorted(self._crossed, key=lambda client: client.index):
            yield from self._crossed[client]

    def _failure(self, client: ClientInfo, problem: Problem) -> Failure:
        return Failure(client, problem.words, problem is Problem.DIVERGED, self._transport.problems)

    def _requests(self, task: str, downs: Iterable[tuple[ClientInfo, Message]]) -> Iterator[Request]:
        for client, down in downs:
            self._count(client, "down", down)
            self._asked[client] = down
            yield Request(task, self._stage.name, self._round, client, down)

    def _count(
        self,
        client: ClientInfo,
        direction: Literal["down", "up"],
        message: Message,
        answers: Message | None = None,
    ) -> None:
        for payload, size in self._coding.bytes(message, answers).items():
            transfer = Transfer(
                stage=self._stage.name,
                round=self._round,
                client=client.name,
                direction=direction,
                payload=payload,
                bytes=size,
            )
            self._crossed[client].append(transfer)
