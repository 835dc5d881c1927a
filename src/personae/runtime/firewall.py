"""What the server refuses to average, on by default."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from personae.core.backbone import Backbone
from personae.core.finite import all_finite
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import (
    Aliases,
    ClassEmbeddings,
    Count,
    Gradient,
    ModelState,
    NetworkVector,
    Payload,
    PublicEmbeddings,
)
from personae.core.samples import Samples
from personae.words import counted


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """Checks on every update, and on how it compares with the others of its round.

    It keeps broken and crude updates out. It does not stop a patient attacker, who stays inside these bounds.
    """

    enabled: bool = True  # switched off, it still refuses models of another network: nothing could be done with them
    norm_multiple: float = 10.0  # an update may be this many times as long as the median of its round
    norm_floor: float = 0.05  # and this part of the model's own length in any case, where most clients hardly move
    samples_multiple: float = 1000.0  # and rest on this many times as many samples
    max_samples: int = 100_000_000  # more than this nobody may claim
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.norm_multiple <= 1 or self.samples_multiple <= 1 or self.max_samples < 1:
            raise ValueError("norm_multiple and samples_multiple must exceed 1, and max_samples must be positive")
        if not 0 <= self.norm_floor < 1:
            raise ValueError(f"norm_floor is {self.norm_floor}, it must be in [0, 1)")

    def problem(self, update: Message, backbone: Backbone, public: Samples | None = None) -> str | None:
        """What is wrong with this update on its own, in one phrase; `public` are the faces that everybody has."""
        people = public.classes if public else 0
        named = {len(payload.tokens) for payload in _payloads(update) if isinstance(payload, Aliases)}
        for payload in _payloads(update):
            if isinstance(payload, NetworkVector) and payload.layout != payload.part(backbone.layout):
                return _difference(payload.layout, payload.part(backbone.layout))
            if isinstance(payload, ClassEmbeddings) and payload.vectors.shape[1] != backbone.width:
                width = payload.vectors.shape[1]
                return f"its class embeddings hold {width} numbers, the network gives {backbone.width}"
            if isinstance(payload, ClassEmbeddings) and named - {len(payload.vectors)}:
                return f"it names {named.pop()} identities and sends {len(payload.vectors)} class embeddings"
            if isinstance(payload, PublicEmbeddings) and payload.vectors.shape != (people, backbone.width):
                rows, width = payload.vectors.shape
                return f"its public embeddings are {rows} rows of {width} numbers, not {people} of {backbone.width}"
            if not self.enabled:
                continue
            if not all(map(all_finite, payload.tensors)):
                return f"{type(payload).__name__} holds values that are not finite"
            if isinstance(payload, Count) and not 0 < payload.value <= self.max_samples:
                return f"it claims {counted(payload.value, 'sample')}"
        return None

    def outliers(self, measures: Mapping[str, "Measure"], length: float) -> dict[str, str]:
        """Clients whose update is out of proportion to the round's median, and why; `length` is that of the model."""
        if not self.enabled or not measures:
            return {}
        usual_norm = statistics.median(measure.norm for measure in measures.values())
        usual_gradient = statistics.median(measure.gradient for measure in measures.values())
        usual_samples = statistics.median(measure.samples for measure in measures.values())
        found = {}
        for client, measure in measures.items():
            if not math.isfinite(measure.norm):
                found[client] = "its update is too long to measure"
            elif measure.norm > max(self.norm_multiple * usual_norm, self.norm_floor * length) and usual_norm > 0:
                found[client] = f"its update is {measure.norm / usual_norm:.1f} times as long as the round's median"
            elif not measure.gradient <= self.norm_multiple * usual_gradient and usual_gradient > 0:
                found[client] = f"its gradient is {measure.gradient / usual_gradient:.1f} times the round's median"
            elif measure.samples > self.samples_multiple * usual_samples > 0:
                found[client] = f"it claims {measure.samples / usual_samples:.0f} times the round's median of samples"
        return found


@dataclass(frozen=True)
class Measure:
    """An update in numbers: how far it moves the model, on how many samples it rests, how long its gradients are."""

    norm: float
    samples: int
    gradient: float = 0.0

    @classmethod
    def of(cls, update: Message, model: ModelState) -> "Measure":
        norm, samples, gradient = 0.0, 0, 0.0
        for payload in _payloads(update):
            if isinstance(payload, Gradient):
                gradient = math.hypot(gradient, float(payload.flat.norm()))
            elif isinstance(payload, NetworkVector):
                norm = float(torch.dist(payload.flat, model.entries(payload.layout).to(payload.flat.device)))
            elif isinstance(payload, Count):
                samples = payload.value
        return cls(norm, samples, gradient)


def _payloads(update: Message) -> list[Payload]:
    return [value for name in update.hints() if isinstance(value := getattr(update, name), Payload)]


def _difference(found: Layout, expected: Layout) -> str:
    shapes = dict(zip(found.names, found.shapes, strict=True))
    return f"its model is of another network: {expected.mismatch(shapes) or 'its entries are in another order'}"
