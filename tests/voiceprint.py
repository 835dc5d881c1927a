"""A payload kind of somebody else's, and an algorithm that sends it: nothing in the package knows of either."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from personae.algorithms import fedpe
from personae.core.algorithm import Algorithm, Client
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import Arrays, Count, Expectation, ModelState, Payload, Scalar, Scalars


@dataclass(frozen=True, eq=False)
class Voiceprints(Payload):
    """One number in 16 bits for each of a client's people."""

    meaning = "how every single person sounds"
    short = "voices"
    is_template = True

    pitches: Tensor  # float16 [classes]

    def pack(self) -> tuple[Arrays, dict[str, Scalar]]:
        return {"pitches": self.pitches}, {}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Tensor], scalars: Mapping[str, Scalar], layout: Layout) -> Self:
        if set(arrays) != {"pitches"} or scalars:
            raise ValueError("no voices")
        return cls(arrays["pitches"])

    @classmethod
    def expected_bytes(cls, expected: Expectation) -> int:
        return 2 * expected.classes

    def misfit(self, expected: Expectation) -> str | None:
        return "its voices are mute" if not len(self.pitches) else None

    def measures(self, model: ModelState) -> Mapping[str, float]:
        return {"pitch": float(self.pitches.float().abs().max())}

    @property
    def identities(self) -> int:
        return len(self.pitches)


@dataclass(frozen=True, kw_only=True)
class Up(Message):
    model: ModelState
    samples: Count
    training: Scalars
    voices: Voiceprints


@dataclass(frozen=True, kw_only=True)
class Listening(fedpe.FedPE, Algorithm[fedpe.State, fedpe.Down, fedpe.Private, Up]):
    """FedPE whose clients tell how their people sound, too."""

    name: ClassVar[str] = "listening"

    def local(self, down: fedpe.Down, private: fedpe.Private | None, client: Client):  # type: ignore[override]
        up, kept = super().local(down, private, client)
        voices = Voiceprints(torch.arange(client.train.classes, dtype=torch.float16))
        return Up(model=up.model, samples=up.samples, training=up.training, voices=voices), kept
