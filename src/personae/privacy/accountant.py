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

For people of a client, neighbours differ by one person. That its client was drawn shows by the others there, so these
draws are not counted. What counts is that a client draws each of its people for itself, and tells nobody: Poisson
sampling again.

A server that gets single updates sees the noise of one client on each. Where a layer hides single updates, it gets
sums, and in these the noise of all who answered: at least the quorum, less those who may tell theirs. Without such a
layer the models that readers get are no plain sums, since the firewall compares updates: nothing more is claimed there.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite, sqrt
from typing import Annotated, Any, ClassVar, Literal

from personae.core.bounds import Bounded, above, within
from personae.core.events import PrivacySpent
from personae.core.mechanism import Certain, Draw, Independent, Mechanism, Observer, Together, Unit
from personae.core.stage import Recipe, Stage
from personae.errors import ConfigError, QuorumLost
from personae.privacy.spent import in_words

Method = Literal["pld", "rdp"]
STEP = 1e-3  # of the grid of privacy losses: what rounding to it adds is counted, and is far below a percent
_Cost = tuple[Draw | None, float]  # how a unit came into a round, and the multiplier of the noise; None: in any case


@dataclass(frozen=True, kw_only=True)
class Budget(Bounded):
    """What a run may spend of differential privacy. It stops before it would spend more."""

    # the most that all rounds and stages may spend together; no limit, if left out
    epsilon: Annotated[float, above(0)] | None = None
    # the probability with which epsilon may fail; below one over the number of clients
    delta: Annotated[float, within("(0, 1)")] = 1e-5
    accountant: Method = "pld"  # pld is tighter; draws of a fixed number of clients are always accounted for by rdp
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


@dataclass(frozen=True)
class Accountant:
    """The accounts of one run. To make one is to check that its privacy can be accounted for at all."""

    recipe: Recipe
    clients: Mapping[str, int]  # by stage: how many may be asked
    budget: Budget = Budget()
    cohorts_known: bool = False  # whether those who get models may know who was asked
    absent: Mapping[str, int] = field(default_factory=dict)  # by stage: how many of these are never asked

    def __post_init__(self) -> None:
        for stage in self.recipe:
            if _mechanism(stage):
                self._check(stage)
            elif self.budget.epsilon is not None and _uncovered(stage):
                raise ConfigError(
                    f"budget: stage {stage.name} sends {', '.join(_uncovered(stage))} without noise, which no epsilon "
                    "bounds; put a layer around it that adds noise, or take the budget out"
                )
        for sights in self._seen([(stage, stage.rounds) for stage in self.recipe]).values():
            drawn = {type(draw) for sight, rounds in sights for draw, _ in self._costs(sight, rounds)}
            if drawn >= {Independent, Together}:
                raise ConfigError(
                    "epsilon cannot be stated: one stage draws each client for itself (poisson), and another a fixed "
                    "number; no accountant has both. Use one of them in all stages with noise"
                )
        for stage in filter(_mechanism, self.recipe):
            self.spent(stage, 1)  # so that too little noise is refused before anything runs
        if self.budget.epsilon is not None:
            for stage in self.recipe:
                if not self.affordable(stage):
                    raise ConfigError(
                        f"budget: nothing of epsilon {self.budget.epsilon:g} is left for stage {stage.name}, whose "
                        "first round would exceed it; raise the budget or the noise, or ask fewer clients in a round"
                    )

    def _check(self, stage: Stage) -> None:
        if any(sight.by_draws for sight in _sights(stage)) and None in self._draws(stage):
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
        before = self.recipe[: self.recipe.index(stage)]
        limited = self.budget.epsilon is not None
        done = [(each, self.affordable(each) if limited else each.rounds) for each in before]
        done.append((stage, round_))
        return [self._stated(stage, round_, sights, [each for each, _ in done]) for sights in self._seen(done).values()]

    def require(self, stage: Stage, round_: int, asked: int) -> None:
        """That a round of so many clients has as much noise in its sum as was counted on when the run began."""
        for sight in _sights(stage):
            if sight.summed and (there := self._noises(stage, asked)) < (counted := self._fewest(stage, round_)):
                raise QuorumLost(
                    f"stage {stage.name}, round {round_}: epsilon counts on the noise of at least {counted} clients, "
                    f"and with {asked} who are asked it may be that of {there}; let clients in again, or begin a new "
                    "run with those that are left"
                )

    def _seen(self, done: Sequence[tuple[Stage, int]]) -> dict[tuple[Unit, Observer], list[tuple["_Sight", int]]]:
        """What is seen of noise in these stages and their rounds, by what it hides and from whom."""
        found: dict[tuple[Unit, Observer], list[tuple[_Sight, int]]] = {}
        for stage, rounds in done:
            for sight in _sights(stage):
                found.setdefault((sight.mechanism.unit, sight.against), []).append((sight, rounds))
        return found

    def _stated(
        self, stage: Stage, round_: int, sights: Sequence[tuple["_Sight", int]], begun: Sequence[Stage]
    ) -> PrivacySpent:
        costs: Counter[_Cost] = Counter()
        kinds: set[str] = set()
        noises: set[int] = set()
        for sight, done in sights:
            costs.update(self._costs(sight, done))
            sent = sight.stage.algorithm.types.up.kinds()
            kinds |= {sent[name].__name__ for name in sight.mechanism.covers}
            noises |= {self._fewest(sight.stage, each) for each in range(1, done + 1) if sight.summed}
        fixed = any(isinstance(draw, Together) for draw, _ in costs)
        method: Method = "rdp" if fixed else self.budget.accountant
        epsilon = _epsilon(frozenset(costs.items()), self.budget.delta, method, fixed)
        if not isfinite(epsilon):
            raise ConfigError(f"stage {stage.name}: no finite epsilon follows from so little noise; raise multiplier")
        own, (first, _) = {sight.stage.name for sight, _ in sights}, sights[0]
        return PrivacySpent(
            stage=stage.name,
            round=round_,
            epsilon=epsilon,
            delta=self.budget.delta,
            unit=first.mechanism.unit,
            against=first.against,
            covers=tuple(sorted(kinds)),
            uncovered=tuple(
                f"{what} of stage {each.name}"
                for each in begun
                for what in (_uncovered(each) if each.name in own else _left_open(each))
            ),
            drawn=any(sight.by_draws for sight, _ in sights) and any(draw for draw, _ in costs),
            secret=all(sight.mechanism.secret for sight, _ in sights),
            noises=min(noises, default=0),
            accountant=method,
        )

    def _costs(self, sight: "_Sight", rounds: int) -> list[_Cost]:
        """One entry for every time that a unit may have to pay."""
        mechanism, draws = sight.mechanism, self._draws(sight.stage)[:rounds]
        if sight.by_draws and not self.cohorts_known:
            drawn: list[_Cost] = [
                (draw, mechanism.multiplier) for draw in draws if draw and not isinstance(draw, Certain)
            ]
            turns = {draw.turn for draw in draws if isinstance(draw, Certain)}
            return [*drawn, *[(None, mechanism.multiplier)] * len(turns)]
        times: dict[int, float] = {}  # whoever is asked once in a turn pays once, in the round with the least noise
        for number, draw in enumerate(draws, start=1):
            turn = draw.turn if isinstance(draw, Certain) else -number
            noise = mechanism.multiplier * (sqrt(self._fewest(sight.stage, number)) if sight.summed else 1)
            times[turn] = min(noise, times.get(turn, noise))
        own = Independent(mechanism.share) if mechanism.share < 1 else None
        return [(own, noise) for noise in times.values()]

    def _fewest(self, stage: Stage, round_: int) -> int:
        """How many clients hide each other by their noise in the sum of a round, whoever of them answers."""
        eligible = self.clients[stage.name]
        asked = stage.selection.count(eligible, round_, stage.rounds) - self.absent.get(stage.name, 0)
        fixed = isinstance(stage.selection.draw(eligible, round_, stage.rounds), Certain | Together)
        return self._noises(stage, asked if fixed else 0)

    def _noises(self, stage: Stage, asked: int) -> int:
        mechanism = _mechanism(stage)
        assert mechanism is not None
        assert mechanism.pooling is not None
        least = max(layer.least for layer in stage.layers)
        return max(1, max(stage.needed(asked), least) - mechanism.pooling)


@dataclass(frozen=True)
class _Sight:
    """The noise of a stage as somebody sees it."""

    stage: Stage
    mechanism: Mechanism
    against: Observer
    summed: bool = False  # in a sum, which has the noise of all clients in it

    @property
    def by_draws(self) -> bool:
        """Whether it helps that nobody knows who was asked."""
        return self.against == "readers" and self.mechanism.unit == "client"


def _sights(stage: Stage) -> list[_Sight]:
    mechanism = _mechanism(stage)
    if mechanism is None:
        return []
    hidden = any(layer.hides_single_updates for layer in stage.layers)
    return [_Sight(stage, mechanism, mechanism.against, summed=hidden and mechanism.pooling is not None)]


def _mechanism(stage: Stage) -> Mechanism | None:
    """The noise of a stage: layers see to it that there is no more than one."""
    return next((each for layer in stage.layers if (each := layer.mechanism)), None)


def _covered(stage: Stage) -> tuple[str, ...]:
    mechanism = _mechanism(stage)
    return mechanism.covers if mechanism else ()


def _sends(stage: Stage) -> list[str]:
    """The fields of what clients send in it, but for figures."""
    algorithm = stage.algorithm
    kinds = algorithm.types.up.kinds() if algorithm.federated else {}
    return [name for name, kind in kinds.items() if not kind.is_figure and name not in algorithm.withheld]


def _left_open(stage: Stage) -> list[str]:
    """What clients give away in a stage without noise: kinds of payload, or the faces themselves."""
    if stage.algorithm.pools_faces:
        return ["the faces of all clients"]
    kinds = stage.algorithm.types.up.payloads()
    return [kinds[name] for name in _sends(stage)]


def _uncovered(stage: Stage) -> list[str]:
    """And what no noise covers of it."""
    kinds = stage.algorithm.types.up.payloads()
    return [each for each in _left_open(stage) if each not in {kinds[name] for name in _covered(stage)}]


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
        try:
            accountant.compose(event, count)
        except OverflowError:  # of the losses of hardly any noise
            return inf
    return float(accountant.get_epsilon(delta))
