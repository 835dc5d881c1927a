"""What the server refuses, draws back or leaves out, on by default."""

import math
import statistics
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.bounds import Bounded, NonNegativeInt, PositiveInt, above, within
from personae.core.message import Message
from personae.core.payload import Expectation, ModelState
from personae.core.quantities import GRADIENT, ROWS, SAMPLES, STATISTICS, UPDATE
from personae.core.samples import Samples
from personae.runtime.suspicion import FEWEST, FEWEST_TRIED, ROBUST, Ruling, draw, ruling, signs_of

STEPS = (UPDATE, GRADIENT)
DRAWN_BACK = (*STEPS, STATISTICS, SAMPLES)  # what can be made smaller and still be what it is
STRAYING = 4 / 3  # how much farther statistics of BatchNorm may go; a client with another camera goes twice as far
SAME_SIZE = 1.1  # up to so many times the median is credible even among clients that are all alike
SAME_LENGTH = 1.25  # and of lengths, which differ even then
FARTHEST = 700.0  # a logarithm of what is still a number
ABOUT = 1.25  # up to so many times the median is about the median, since no two clients have quite the same
DEFENCE = 2  # the version of what the server does about harmful updates, by default too: what was measured rests on it
REFUSED = 10.0  # of anything else, and among few clients, so many times the median is out of all proportion

Measures = Mapping[str, float]  # an update in numbers: how far it moves the model, on how many samples it rests, ...


@dataclass(frozen=True, kw_only=True)
class Firewall(Bounded):
    """Checks on every update, and on how it compares with the others of its round (docs/concepts/security.md).

    What is no possible model is refused. What is out of proportion is drawn back, so that an honest client is not lost
    for it: a long update to a shorter one in its direction, a large number of samples to a smaller weight. A step that
    is r times as long as its bound comes to 1/r of the bound: nobody gains by going beyond. Bounds are closer where the
    clients of a round are alike: nobody is believed to have three times the images of others who all have the same.
    Who goes against the sum of the others gains nothing by many samples. Who is suspected for the directions of its
    updates, or for what they do to rendered faces, is left out (`runtime/suspicion.py`).
    """

    enabled: bool = True  # switched off, it still refuses what does not fit, such as models of another network
    # an update longer than so many times the median of its round is drawn back
    norm_multiple: Annotated[float, above(1)] = 1.5
    # but this part of the model's own length is never too long, where most hardly move
    norm_floor: Annotated[float, within("[0, 1)")] = 0.05
    # a client counts for no more than so many times the median of samples
    samples_multiple: Annotated[float, above(1)] = 3.0
    # and for no more than so many deviations of its round make credible, in length too; inf: all
    credible: Annotated[float, above(0)] = 3.0
    # whose longest class embedding exceeds so many times the median one is refused
    rows_multiple: Annotated[float, above(1)] = 10.0
    # so many updates of a round, and as many of suspects, are tried on rendered faces; 0: none
    judged: NonNegativeInt = 10
    # the score above which updates of a client are left out; inf: of nobody
    suspicion: Annotated[float, above(0)] = 3.0
    max_samples: PositiveInt = 100_000_000  # more than this nobody may claim
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.judged < FEWEST_TRIED:
            raise ValueError(f"judged is {self.judged}, it must be 0 or at least {FEWEST_TRIED}")

    def problem(
        self,
        message: Message,
        backbone: Backbone,
        public: Samples | None = None,
        figures: tuple[str, ...] = ("*",),
        model: ModelState | None = None,
    ) -> str | None:
        """What is wrong with this message on its own, in one phrase.

        `public` are the faces that everybody has, `figures` the declared names of figures, `model` what was sent.
        """
        expected = Expectation(
            layout=backbone.layout,
            width=backbone.width,
            public_classes=public.classes if public else 0,
            figures=figures,
            max_samples=self.max_samples,
            model=model,
        )
        spoken_of = {type(part).__name__: part.identities for part in message.parts() if part.identities is not None}
        if len(set(spoken_of.values())) > 1:
            counts = " and ".join(f"{count} in {kind}" for kind, count in spoken_of.items())
            return f"it does not speak of the same number of identities everywhere: {counts}"
        for part in message.parts():
            if problem := part.misfit(expected) or (part.implausible(expected) if self.enabled else None):
                return problem
        return None

    def outliers(self, measures: Mapping[str, Measures]) -> dict[str, str]:
        """Clients whose update is out of all proportion, in what cannot be drawn back, and why."""
        found: dict[str, str] = {}
        for quantity, values in _by_quantity(measures).items() if self.enabled else ():
            usual = statistics.median(values.values())
            multiple = self.rows_multiple if quantity == ROWS else REFUSED
            for client, value in values.items():
                if not math.isfinite(value):
                    found.setdefault(client, f"its {quantity} is too large to measure")
                elif quantity not in DRAWN_BACK and value > multiple * usual > 0:
                    found.setdefault(client, f"its {quantity} is {value / usual:.1f} times the round's median")
        return found

    def excess(
        self, measures: Mapping[str, Measures], model: ModelState, against: Container[str] = ()
    ) -> dict[str, dict[str, float]]:
        """By client and quantity, the factor by which to draw it back; nothing for what is in proportion."""
        found: dict[str, dict[str, float]] = {}
        bounds = self.bounds(measures, model, against) if self.enabled else {}
        for client, each in bounds.items():
            for quantity, bound in each.items():
                value = measures[client][quantity]
                if value > bound and (bound > 0 or quantity == STATISTICS):
                    found.setdefault(client, {})[quantity] = (bound / value) ** (2 if quantity in STEPS else 1)
        return found

    def bounds(
        self, measures: Mapping[str, Measures], model: ModelState, against: Container[str] = ()
    ) -> dict[str, dict[str, float]]:
        """By client and quantity, up to where it is in proportion.

        Many samples give a client more weight and longer steps, as far as the others make them credible. To one whose
        update goes `against` the sum of the others they give neither: it counts as if it had about the median.
        """
        found: dict[str, dict[str, float]] = {client: {} for client in measures}
        least = self.norm_floor * float(model.flat[: model.layout.trainable_size].norm())
        by_quantity = _by_quantity(measures)
        samples = by_quantity.get(SAMPLES, {})
        believed = self._credible(samples.values(), self.samples_multiple, SAME_SIZE)
        most = {client: min(believed, ABOUT) if client in against else believed for client in measures}
        root = _allowances(samples, dict.fromkeys(measures, believed))
        allowance = _allowances(samples, most)
        for quantity, values in by_quantity.items():
            if quantity not in DRAWN_BACK:
                continue
            few = len(values) < FEWEST  # then nobody can say what is usual
            median = statistics.median(values.values())
            steps = [value / root[client] for client, value in values.items()]
            length = self._credible(steps, self.norm_multiple, SAME_LENGTH)
            for client in values:
                multiple = {SAMPLES: most[client], STATISTICS: STRAYING * self.norm_multiple}.get(quantity, length)
                bound = max(multiple, REFUSED if few else 0.0) * median
                if quantity == UPDATE:
                    bound = max(bound * allowance[client], least)
                elif quantity == STATISTICS and not few:  # who has many images knows them better, and counts for more
                    bound /= allowance[client]
                found[client][quantity] = bound
        return found

    def _credible(self, values: Collection[float], most: float, least: float) -> float:
        return min(most, max(least, credible(values, self.credible)))

    def drawn(self, prints: Mapping[str, Tensor]) -> list[str]:
        """Clients whose updates are tried alone."""
        return draw(prints, self.judged) if self.enabled else []

    def followed(self, scores: Mapping[str, float]) -> list[str]:
        """Suspects whose updates are tried besides: as many at the most, since each takes time."""
        return sorted(scores, key=lambda client: (-scores[client], client))[: self.judged]

    def ruling(
        self,
        prints: Mapping[str, Tensor],
        excess: Mapping[str, Measures],
        harms: Mapping[str, float],
        scores: Mapping[str, float],
    ) -> Ruling:
        """Whom the updates of a round give reason to suspect, after these scores of earlier rounds."""
        lengths = {client: each[UPDATE] ** -0.5 for client, each in excess.items() if UPDATE in each}
        return ruling(scores, signs_of(prints, lengths, harms) if self.enabled else {}, self.suspicion)


def credible(values: Collection[float], deviations: float) -> float:
    """Up to how many times the median a value is credible: so many robust deviations of the logarithms of all.

    Where most are equal, nobody can have much more. Few cannot move a median and a median deviation far. Infinite where
    there are too few values to say.
    """
    logs = [math.log(value) for value in values if value > 0]
    if len(logs) < FEWEST or math.isinf(deviations):
        return math.inf
    middle = statistics.median(logs)
    deviation = ROBUST * statistics.median(abs(each - middle) for each in logs)
    return math.exp(min(deviations * deviation, FARTHEST))


def _allowances(samples: Mapping[str, float], most: Mapping[str, float]) -> dict[str, float]:
    """Whoever has more samples takes more steps: the root of how many times the median, as far as they count."""
    usual = statistics.median(samples.values()) if samples else 0.0
    shares = {client: samples[client] / usual if client in samples and usual > 0 else 1.0 for client in most}
    return {client: math.sqrt(min(max(share, 1.0), most[client])) for client, share in shares.items()}


def _by_quantity(measures: Mapping[str, Measures]) -> dict[str, dict[str, float]]:
    """What was measured, of every client that has it."""
    found: dict[str, dict[str, float]] = {}
    for client, each in measures.items():
        for quantity, value in each.items():
            found.setdefault(quantity, {})[client] = value
    return found


def measured(update: Message, model: ModelState) -> dict[str, float]:
    """An update in numbers; lengths of the same quantity add up as at right angles."""
    found: dict[str, float] = {}
    for part in update.parts():
        for quantity, value in part.measures(model).items():
            found[quantity] = math.hypot(found[quantity], value) if quantity in found else value
    return found
