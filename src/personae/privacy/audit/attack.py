"""An attack: what the attacker has, what it tries, and the figure that says how far it gets."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder
from personae.core.message import Message
from personae.core.payload import ModelState
from personae.parts.embedding import BackboneEmbedder
from personae.privacy.audit.finding import Described, Finding


class Unmeasurable(Exception):
    """An attack cannot be made here; the text says why, as the end of a sentence that begins with "not measured"."""


@dataclass(frozen=True)
class Person:
    """Photographs of one person. The attacker may have the `photos`, which no party has trained on."""

    name: str
    photos: Tensor  # uint8 [N, height, width, 3]
    client: str = ""  # who trained on the person; empty where nobody did
    trained: Tensor | None = None  # the photographs that were trained on


@dataclass(frozen=True)
class Received:
    """What the server received from a client in one round, and the model that it had sent before."""

    client: str
    round: int
    begin: ModelState
    message: Message


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is there to attack in one stage of a run. Each attack takes from it what its attacker has."""

    stage: str
    algorithm: AnyAlgorithm
    backbone: Backbone  # to load models into
    model: ModelState  # after the stage
    begin: ModelState | None = None  # before it, where that is known
    people: Sequence[Person] = ()  # whom clients trained on
    shadows: Sequence[Person] = ()  # whom nobody trained on, captured in the same way
    templates: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """By kind of payload and client: rows that stand for people, as the server has them."""
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By client: whom each row stands for."""
    received: Sequence[Received] = ()
    mirror: bool = True
    made_up: bool = False  # all faces are synthetic: they may be shown
    delta: float = 1e-5
    folder: Path | None = None  # where pictures may go
    seed: int = 0

    def embedder(self, model: ModelState | None = None) -> Embedder:
        """With the model after the stage, or another. One at a time: they share the backbone."""
        self.backbone.load(model or self.model)
        return BackboneEmbedder(self.backbone, self.mirror)

    def rows_by_person(self, kind: str) -> dict[str, Tensor]:
        """The rows of a kind by whom they stand for, of clients that have one for each of their people."""
        sent = {each.__name__: each for each in self.algorithm.types.up.kinds().values()}
        if kind in sent and not sent[kind].is_template:
            return {}
        return {
            person: row
            for client, vectors in self.templates[kind].items()
            if len(vectors) == len(self.rows.get(client, ()))
            for person, row in zip(self.rows[client], vectors, strict=True)
        }

    @cached_property
    def gallery(self) -> tuple[tuple[str, ...], Tensor]:
        """The people of all clients by name, with a vector of the attacker's photographs of each."""
        known = {person.name: person for person in self.people if len(person.photos)}
        if len(known) < 2:
            raise Unmeasurable("there are no photographs of people that were kept out of training")
        return tuple(known), means(self.embedder(), [person.photos for person in known.values()])


class PrivacyAttack(ABC):
    """A frozen dataclass of settings. The words say what it assumes, so that nobody takes its figure for more."""

    name: ClassVar[str]
    has: ClassVar[str]  # what the attacker has
    tries: ClassVar[str]  # what it tries
    strength: ClassVar[str]  # how strong the attack is beside what is known
    figure: ClassVar[str]  # what is counted
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    @abstractmethod
    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        """One figure for each thing that is attacked; raises Unmeasurable where there is nothing to attack."""

    def findings(self, evidence: Evidence) -> tuple[Finding, ...]:
        """The same, with a reason in the place of what cannot be measured."""
        try:
            return tuple(self.measure(evidence))
        except Unmeasurable as error:
            return (Finding(attack=self.name, stage=evidence.stage, target="–", figure=self.figure, reason=str(error)),)

    @classmethod
    def described(cls) -> Described:
        return Described(name=cls.name, has=cls.has, tries=cls.tries, strength=cls.strength)


def trained(person: Person) -> Tensor:
    """The photographs that somebody trained on; none of a person whom nobody did."""
    return person.photos[:0] if person.trained is None else person.trained


def means(embedder: Embedder, people: Sequence[Tensor]) -> Tensor:
    """The mean direction of each person's photographs, of length one."""
    vectors = embedder(torch.cat(list(people)))
    owner = torch.arange(len(people)).repeat_interleave(torch.tensor([len(photos) for photos in people]))
    total = torch.zeros(len(people), vectors.shape[1]).index_add_(0, owner, vectors)
    return torch.nn.functional.normalize(total, dim=1)
