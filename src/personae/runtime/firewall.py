"""What the server refuses to average or to record, on by default."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from personae.core.backbone import Backbone
from personae.core.message import Message
from personae.core.payload import ROWS, SAMPLES, UPDATE, Expectation, ModelState
from personae.core.samples import Samples

Measures = Mapping[str, float]  # an update in numbers: how far it moves the model, on how many samples it rests, ...


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """Checks on every update, and on how it compares with the others of its round.

    It keeps broken and crude updates out. It does not stop a patient attacker, who stays inside these bounds.
    """

    enabled: bool = True  # switched off, it still refuses what does not fit, such as models of another network
    norm_multiple: float = 10.0  # an update may be this many times as long as the median of its round
    norm_floor: float = 0.05  # and this part of the model's own length in any case, where most clients hardly move
    samples_multiple: float = 1000.0  # and rest on this many times as many samples
    rows_multiple: float = 10.0  # and its longest class embedding may be this many times as long as the median one
    max_samples: int = 100_000_000  # more than this nobody may claim
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if min(self.norm_multiple, self.samples_multiple, self.rows_multiple) <= 1 or self.max_samples < 1:
            raise ValueError("all multiples must exceed 1, and max_samples must be positive")
        if not 0 <= self.norm_floor < 1:
            raise ValueError(f"norm_floor is {self.norm_floor}, it must be in [0, 1)")

    def problem(
        self,
        message: Message,
        backbone: Backbone,
        public: Samples | None = None,
        figures: tuple[str, ...] = ("*",),
    ) -> str | None:
        """What is wrong with this message on its own, in one phrase.

        `public` are the faces that everybody has, `figures` the declared names of figures.
        """
        expected = Expectation(
            layout=backbone.layout,
            width=backbone.width,
            public_classes=public.classes if public else 0,
            figures=figures,
            max_samples=self.max_samples,
        )
        spoken_of = {type(part).__name__: part.identities for part in message.parts() if part.identities is not None}
        if len(set(spoken_of.values())) > 1:
            counts = " and ".join(f"{count} in {kind}" for kind, count in spoken_of.items())
            return f"it does not speak of the same number of identities everywhere: {counts}"
        for part in message.parts():
            if problem := part.misfit(expected) or (part.implausible(expected) if self.enabled else None):
                return problem
        return None

    def outliers(self, measures: Mapping[str, Measures], length: float) -> dict[str, str]:
        """Clients whose update is out of proportion to the round's median, and why; `length` is that of the model."""
        found: dict[str, str] = {}
        quantities = dict.fromkeys(name for each in measures.values() for name in each) if self.enabled else {}
        for quantity in quantities:
            values = {client: each.get(quantity, 0.0) for client, each in measures.items()}
            usual = statistics.median(values.values())
            multiple = {SAMPLES: self.samples_multiple, ROWS: self.rows_multiple}.get(quantity, self.norm_multiple)
            bound = multiple * usual
            if quantity == UPDATE:
                bound = max(bound, self.norm_floor * length)
            for client, value in values.items():
                if not math.isfinite(value):
                    found.setdefault(client, f"its {quantity} is too large to measure")
                elif value > bound and usual > 0:
                    found.setdefault(client, f"its {quantity} is {value / usual:.1f} times the round's median")
        return found


def measured(update: Message, model: ModelState) -> dict[str, float]:
    """An update in numbers; lengths of the same quantity add up as at right angles."""
    found: dict[str, float] = {}
    for part in update.parts():
        for quantity, value in part.measures(model).items():
            found[quantity] = math.hypot(found[quantity], value) if quantity in found else value
    return found
