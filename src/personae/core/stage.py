"""A stage is an algorithm run for some rounds; a recipe is a tuple of stages."""

import re
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Literal, get_args

from personae.core.aggregation import Aggregation, Mean
from personae.core.algorithm import AnyAlgorithm
from personae.core.bounds import Bounded, NonNegativeInt, up_to, within
from personae.core.layer import Layer, described, layers_of
from personae.core.payload import Count, Scalars
from personae.core.selection import Everybody, Selection
from personae.core.server_step import ServerStep
from personae.errors import ConfigError

Side = Literal["all", "source", "targets"]


@dataclass(frozen=True, kw_only=True)
class StageOptions(Bounded):
    """What a stage is told. An experiment file has these keys, and those of `Stage` by name."""

    name: str  # of the stage; its model becomes models/NAME.safetensors
    rounds: Annotated[int, up_to(1, 1_000_000)] = 1  # how many rounds
    after: str | None = None  # the stage it continues from; by default the one before it; "" for none, from scratch
    clients: Side = "all"  # who takes part, where there are domains: the source client, or the target clients
    quorum: Annotated[float, within("(0, 1]")] = 0.5  # share of the asked that must return an acceptable update
    patience: NonNegativeInt = 0  # how many rounds in a row may miss the quorum and change nothing, before the run ends
    evaluate_every: NonNegativeInt = 0  # rounds between evaluations; 0: only after the last
    label: str = ""  # how tables call it
    server: ServerStep = field(default_factory=ServerStep)  # how far the server goes towards the merged model

    @property
    def title(self) -> str:
        return self.label or self.name


@dataclass(frozen=True, kw_only=True)
class Stage(StageOptions):
    """One step of an experiment: what it is told, and the parts that it is made of."""

    algorithm: AnyAlgorithm  # with its layers around it
    selection: Selection = field(default_factory=Everybody)  # which of its clients are asked in a round
    aggregation: Aggregation = field(default_factory=Mean)  # how their vectors become one

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigError(f"stage {self.name}: {error}") from error
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):  # it becomes the name of files
            raise ConfigError(
                f"stage {self.name!r}: a name begins with a letter or digit, goes on with these, '.', '_' and '-', and "
                "has no more than 100 characters"
            )
        if self.clients not in get_args(Side):
            raise ConfigError(f"stage {self.name}: clients is {self.clients!r}; there are {', '.join(get_args(Side))}")
        self._check_selection()
        self._check_aggregation()
        if self.patience >= self.rounds:
            raise ConfigError(
                f"stage {self.name}: patience is {self.patience}, it must be less than rounds ({self.rounds}); "
                "otherwise the stage could end without a single update"
            )
        if not self.algorithm.federated and self.server != ServerStep():
            raise ConfigError(
                f"stage {self.name}: server steps go with federated stages; {self.algorithm.name} is none"
            )

    def _check_selection(self) -> None:
        """A policy uses what clients say of themselves anyway; it is no reason for them to say more."""
        algorithm = self.algorithm
        if not algorithm.federated and self.selection != Everybody():
            raise ConfigError(f"stage {self.name}: selection is for federated stages; {algorithm.name} is none")
        said = {kind for name, kind in algorithm.types.up.payloads().items() if name not in algorithm.withheld}
        for knowledge in sorted(self.selection.learns):
            kind = {"samples": Count, "loss": Scalars}[knowledge].__name__
            if kind not in said:
                raise ConfigError(
                    f"stage {self.name}: selection {self.selection.name} needs the {knowledge} of clients, "
                    f"which {described(algorithm)} does not disclose (it sends no {kind}); choose another policy"
                )

    def _check_aggregation(self) -> None:
        algorithm = self.algorithm
        hiding = [layer.name for layer in self.layers if layer.hides_single_updates]
        if self.aggregation == Mean() or (algorithm.federated and algorithm.aggregates == "vectors" and not hiding):
            return
        if not algorithm.federated or algorithm.aggregates == "nothing":
            reason = f"{algorithm.name} aggregates nothing"
        elif hiding:
            reason = f"it looks at single updates, which layer {hiding[0]} hides from the server; take the plain mean"
        else:
            reason = f"{described(algorithm)} is defined by weighted means"
        raise ConfigError(f"stage {self.name}: aggregation {self.aggregation.name} cannot be used, since {reason}")

    def require_enough(self, eligible: int) -> None:
        """That the rule and the layers get the updates they take from as many clients as are asked in a round."""
        if not self.algorithm.federated:
            return
        fewest = min(self.selection.count(eligible, round_, self.rounds) for round_ in range(1, self.rounds + 1))
        if fewest < self.aggregation.least:
            raise ConfigError(
                f"stage {self.name}: aggregation {self.aggregation.name} takes at least {self.aggregation.least} "
                f"updates, and {fewest} of {eligible} clients are asked in a round; ask more, or change its settings"
            )
        for layer in self.layers:
            if fewest < layer.least:
                raise ConfigError(
                    f"stage {self.name}: layer {layer.name} takes at least {layer.least} clients, and {fewest} of "
                    f"{eligible} are asked in a round; ask more"
                )

    def needed(self, asked: int) -> int:
        """How many of those who are asked must return an acceptable update."""
        return max(1, ceil(self.quorum * asked - 1e-9))  # 0.28 x 25 is a little more than 7 in floating point

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What is around its algorithm, the innermost first."""
        return layers_of(self.algorithm)

    @property
    def judges_alone(self) -> bool:
        """Whether an update counts or not whatever those of other clients are like."""
        return any(layer.judges_alone for layer in self.layers)

    def remark(self, eligible: int) -> str | None:
        """What to tell somebody who asks for more clients than there are."""
        most = self.selection.most
        if not self.algorithm.federated or most is None or most <= eligible:
            return None
        return f"stage {self.name}: selection {self.selection.name} names {most} clients, and there are {eligible}"

    def takes(self, source: bool) -> bool:
        """Whether a client of the source, or of a target, takes part."""
        return self.clients == "all" or source == (self.clients == "source")

    def evaluates(self, round_: int) -> bool:
        """Whether the model is evaluated after this round."""
        return round_ == self.rounds or (self.evaluate_every > 0 and round_ % self.evaluate_every == 0)


Recipe = tuple[Stage, ...]


def predecessors(recipe: Recipe) -> dict[str, str | None]:
    """Which stage each one continues from; names are unique and `after` points backwards."""
    found: dict[str, str | None] = {}
    for position, stage in enumerate(recipe):
        if stage.name in found:
            raise ConfigError(f"two stages are called {stage.name}; give each a name of its own")
        if stage.after and stage.after not in found:
            raise ConfigError(f"stage {stage.name}: after = {stage.after!r} is not an earlier stage")
        before = recipe[position - 1].name if position else None
        found[stage.name] = before if stage.after is None else stage.after or None
    return found
