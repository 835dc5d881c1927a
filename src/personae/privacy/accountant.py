"""What a run spends of privacy: epsilon at delta, from its layers, its selection policies and its rounds.

A layer that adds noise says so by its `mechanism`, a policy says by `draw` how a cohort comes about, and
`dp-accounting` (an extra) does the sums. Two runs are neighbours if one client contributes to one of them and sends
nothing in the other. With C the bound of an update and z C the standard deviation of the noise on the sum:

    everybody, or everybody once in a pass   a Gaussian mechanism of sensitivity C, once a round or a pass
    each client drawn for itself             the same, amplified by Poisson sampling; PLD or RDP
    a fixed number drawn                     amplified by sampling without replacement (Wang, Balle and
                                             Kasiviswanathan, 2019), RDP alone. That is for one client in the place of
                                             another, so the sensitivity is 2 C; a client that sends nothing is one
                                             such case
    by what clients hold, or unknown         refused: whom a client displaces would have to be counted

Sampling helps against those who do not know who took part. It is not counted where `cohorts_known`, nor for noise that
a client adds against the server. There a client pays for every round in which it may be asked.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any, ClassVar, Literal

from personae.core.events import Event, PrivacySpent
from personae.core.layer import described
from personae.core.mechanism import Certain, Draw, Independent, Mechanism, Observer, Together, Unit
from personae.core.stage import Recipe, Stage
from personae.errors import ConfigError

Method = Literal["pld", "rdp"]
STEP = 1e-3  # of the grid of privacy losses: what rounding to it adds is counted, and is far below a percent
_Cost = tuple[Draw | None, float]  # how a client came into a round, and the multiplier of the noise; None: in any case


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend of differential privacy. It stops before it would spend more."""

    epsilon: float | None = None  # the most that all rounds and stages may spend together; no limit, if left out
    delta: float = 1e-5  # the probability with which epsilon may fail; below one over the number of clients
    accountant: Method = "pld"  # pld is tighter; draws of a fixed number of clients are always accounted for by rdp
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon is {self.epsilon}, it must be positive")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}, it must be in (0, 1)")


@dataclass(frozen=True)
class Accountant:
    """The accounts of one run. To make one is to check that its privacy can be accounted for at all."""

    recipe: Recipe
    clients: Mapping[str, int]  # by stage: how many may be asked
    budget: Budget = Budget()
    cohorts_known: bool = False  # whether those who get models may know who was asked

    def __post_init__(self) -> None:
        for stage in self.recipe:
            if _mechanism(stage):
                self._check(stage)
            elif self.budget.epsilon is not None and _uncovered(stage):
                raise ConfigError(
                    f"budget: stage {stage.name} sends {', '.join(_uncovered(stage))} without noise, which no epsilon "
                    "bounds; put a layer around it that adds noise, or take the budget out"
                )
        drawn = {type(draw) for stage in self.recipe if _amplified(stage) for draw in self._draws(stage)}
        if drawn >= {Independent, Together} and not self.cohorts_known:
            raise ConfigError(
                "epsilon cannot be stated: one stage draws each client for itself (poisson), and another a fixed "
                "number; no accountant has both. Use one of them in all stages with noise"
            )
        if self.budget.epsilon is not None:
            for stage in self.recipe:
                if not self.affordable(stage):
                    raise ConfigError(
                        f"budget: nothing of epsilon {self.budget.epsilon:g} is left for stage {stage.name}, whose "
                        "first round would exceed it; raise the budget or the noise, or ask fewer clients in a round"
                    )

    def _check(self, stage: Stage) -> None:
        if _amplified(stage) and None in self._draws(stage):
            raise ConfigError(
                f"stage {stage.name}: epsilon cannot be stated, since selection {stage.selection.name} may choose by "
                "what clients hold; take poisson, count, share, growing, passes or all"
            )

    def _draws(self, stage: Stage) -> list[Draw | None]:
        eligible = self.clients[stage.name]
        return [stage.selection.draw(eligible, round_, stage.rounds) for round_ in range(1, stage.rounds + 1)]

    def affordable(self, stage: Stage) -> int:
        """How many rounds of a stage the budget allows, after what the stages before it may have spent."""
        limit = self.budget.epsilon
        if limit is None or not _mechanism(stage):
            return stage.rounds
        fits, exceeds = 0, stage.rounds + 1
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            within = all(each.epsilon <= limit for each in self.spent(stage, middle))
            fits, exceeds = (middle, exceeds) if within else (fits, middle)
        return fits

    def remark(self, stage: Stage) -> str | None:
        """Why a stage ends before its time, if it does."""
        last = self.affordable(stage)
        if last == stage.rounds:
            return None
        now, then = (max(each.epsilon for each in self.spent(stage, round_)) for round_ in (last, last + 1))
        return (
            f"stage {stage.name} stops after round {last} of {stage.rounds}: the budget is epsilon "
            f"{self.budget.epsilon:g} at delta {self.budget.delta:g}, {now:.3g} are spent, and one more round would "
            f"make it {then:.3g}"
        )

    def outlook(self) -> list[str]:
        """What the whole run will have spent, in words, and which of its stages will end before their time."""
        last = self.recipe[-1]
        ended_early = [remark for stage in self.recipe if (remark := self.remark(stage))]
        return [*map(in_words, self.spent(last, self.affordable(last))), *ended_early]

    def spent(self, stage: Stage, round_: int) -> list[PrivacySpent]:
        """What can be said after this round of this stage, by unit and observer; nothing, where no layer adds noise."""
        done = {each.name: each.rounds for each in self.recipe[: self.recipe.index(stage)]}
        if self.budget.epsilon is not None:
            done = {each.name: self.affordable(each) for each in self.recipe if each.name in done}
        done[stage.name] = round_
        begun = [each for each in self.recipe if each.name in done]
        found: dict[tuple[Unit, Observer], list[Stage]] = {}
        for each in begun:
            if mechanism := _mechanism(each):
                found.setdefault((mechanism.unit, mechanism.against), []).append(each)
        return [
            self._stated(stage, round_, [(each, done[each.name]) for each in stages], begun, unit, against)
            for (unit, against), stages in found.items()
        ]

    def _stated(
        self,
        stage: Stage,
        round_: int,
        rounds: Sequence[tuple[Stage, int]],
        begun: Sequence[Stage],
        unit: Unit,
        against: Observer,
    ) -> PrivacySpent:
        costs: Counter[_Cost] = Counter()
        kinds: set[str] = set()
        for each, done in rounds:
            costs.update(self._costs(each, done))
            kinds |= {kind.__name__ for name, kind in each.algorithm.types.up.kinds().items() if name in _covered(each)}
        fixed = any(isinstance(draw, Together) for draw, _ in costs)
        method: Method = "rdp" if fixed else self.budget.accountant
        epsilon = _epsilon(frozenset(costs.items()), self.budget.delta, method, fixed)
        if not isfinite(epsilon):
            raise ConfigError(f"stage {stage.name}: no finite epsilon follows from so little noise; raise multiplier")
        own = {each.name for each, _ in rounds}
        return PrivacySpent(
            stage=stage.name,
            round=round_,
            epsilon=epsilon,
            delta=self.budget.delta,
            unit=unit,
            against=against,
            covers=tuple(sorted(kinds)),
            complete=not any(_uncovered(each) or (_sends(each) and each.name not in own) for each in begun),
            secret=all(noise.secret for each, _ in rounds if (noise := _mechanism(each))),
            accountant=method,
        )

    def _costs(self, stage: Stage, rounds: int) -> Iterable[_Cost]:
        """One entry for every time that a client may have to pay."""
        mechanism = _mechanism(stage)
        assert mechanism is not None
        if mechanism.against == "server":
            return [(None, mechanism.multiplier)] * rounds
        draws = [draw for draw in self._draws(stage)[:rounds] if draw is not None]
        if self.cohorts_known:
            turns = {draw.turn if isinstance(draw, Certain) else number for number, draw in enumerate(draws)}
            return [(None, mechanism.multiplier)] * len(turns)
        certain = {draw.turn for draw in draws if isinstance(draw, Certain)}
        sampled = [(draw, mechanism.multiplier) for draw in draws if not isinstance(draw, Certain)]
        return [*sampled, *[(None, mechanism.multiplier)] * len(certain)]


def spent(events: Iterable[Event]) -> list[PrivacySpent]:
    """What a run has spent, as its records say it: the last word on each unit and observer.

    An empty list stands for **none**: no layer of the run adds noise, and nothing bounds what models say of a client.
    """
    latest = {(event.unit, event.against): event for event in events if isinstance(event, PrivacySpent)}
    return list(latest.values())


def in_words(spent: PrivacySpent) -> str:
    """One sentence for people."""
    from_whom = {
        "readers": "from whoever gets the models, as long as the server is trusted and nobody knows who took part",
        "server": "from the server, too",
    }[spent.against]
    sentence = f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g} for each {spent.unit}, {from_whom}"
    if not spent.complete:
        sentence += f"; of {', '.join(spent.covers)} alone, for the rest that leaves: none"
    return sentence if spent.secret else f"{sentence}; a simulation, whose noise follows from the seed"


def _mechanism(stage: Stage) -> Mechanism | None:
    """The noise of a stage: layers see to it that there is no more than one."""
    return next((each for layer in stage.layers if (each := layer.mechanism)), None)


def _amplified(stage: Stage) -> bool:
    mechanism = _mechanism(stage)
    return mechanism is not None and mechanism.against == "readers"


def _covered(stage: Stage) -> tuple[str, ...]:
    mechanism = _mechanism(stage)
    return mechanism.covers if mechanism else ()


def _sends(stage: Stage) -> list[str]:
    """The fields of what clients send in it, but for figures."""
    algorithm = stage.algorithm
    kinds = algorithm.types.up.kinds() if algorithm.federated else {}
    return [name for name, kind in kinds.items() if not kind.is_figure and name not in algorithm.withheld]


def _uncovered(stage: Stage) -> list[str]:
    """What no noise covers: kinds of payload, or the faces themselves."""
    if stage.algorithm.pools_faces:
        return [f"the faces of all clients ({described(stage.algorithm)})"]
    kinds = stage.algorithm.types.up.payloads()
    return [kinds[name] for name in _sends(stage) if name not in _covered(stage)]


@cache  # a round asks what the search for the last one has asked
def _epsilon(costs: frozenset[tuple[_Cost, int]], delta: float, method: Method, fixed: bool) -> float:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp
    except ImportError as error:
        raise ConfigError(
            "dp-accounting is not installed, and without it nobody knows what noise is worth: "
            "pip install 'personae[privacy]'"
        ) from error
    logging.getLogger("absl").setLevel(logging.ERROR)  # RDP leaves out orders that do not converge, which is safe
    relation = dp_accounting.NeighboringRelation
    least = min(multiplier for (_, multiplier), _ in costs)
    accountant: Any
    if method == "pld":  # with little noise losses are large, and the grid may be coarser
        accountant = pld.PLDAccountant(value_discretization_interval=STEP * max(1.0, (0.3 / least) ** 2))
    else:
        accountant = rdp.RdpAccountant(
            neighboring_relation=relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE
        )
    for (draw, multiplier), count in sorted(costs, key=str):
        match draw:
            case Independent(rate) if rate < 1:
                event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
            case Together(cohort, of) if cohort < of:
                event = dp_accounting.SampledWithoutReplacementDpEvent(
                    of, cohort, dp_accounting.GaussianDpEvent(multiplier / 2)
                )
            case _:
                event = dp_accounting.GaussianDpEvent(multiplier)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
