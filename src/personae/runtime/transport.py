"""The seam between the engine and the clients: requests in, answers out, as they come."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from personae.core.algorithm import ClientInfo
from personae.core.message import Message

TRAIN, EVALUATE = "train", "evaluate"


@dataclass(frozen=True)
class Request:
    """Work for one client in one round."""

    task: str  # TRAIN, EVALUATE, or a question that the stage's algorithm declares
    stage: str
    round: int
    client: ClientInfo
    down: Message

    def __str__(self) -> str:
        return f"{self.stage}, round {self.round}: {self.task} as {self.client.name}"


@dataclass(frozen=True)
class Answer:
    """What a client sends back: an update after training, figures after an evaluation, or a code of its trouble."""

    client: ClientInfo
    message: Message


@dataclass(frozen=True)
class Failure:
    """A client without a usable answer, in the words of whoever asked it: nothing that a client chose is repeated.

    A failure is data: the round may go on without the client.
    """

    client: ClientInfo
    reason: str
    diverged: bool = False
    details: str = ""  # where there is more to read, for people and not for the records

    def __str__(self) -> str:
        return f"{self.reason}; the details are in {self.details}" if self.details else self.reason


class Transport(Protocol):
    """One way to reach clients. Requests are taken lazily and in order; answers come in any order."""

    problems: str  # where clients keep the details of their failures

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]: ...

    def settle(self) -> None:
        """Return when all that clients have kept so far would survive a loss of power."""

    def close(self) -> None: ...
