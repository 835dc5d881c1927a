"""A stage is an algorithm run for some rounds; a recipe is a tuple of stages."""

from dataclasses import dataclass, field

from personae.core.algorithm import AnyAlgorithm
from personae.core.server_step import ServerStep
from personae.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of an experiment, with the way its clients are asked."""

    name: str
    algorithm: AnyAlgorithm
    rounds: int
    after: str | None = None  # the stage it continues from; by default the one before it; "" for none, from scratch
    participation: float = 1.0  # share of the clients asked in a round
    quorum: float = 0.5  # share of the asked that must return an acceptable update
    evaluate_every: int = 0  # rounds between evaluations; 0: only after the last
    label: str = ""  # how tables call it
    server: ServerStep = field(default_factory=ServerStep)  # how far the server goes towards the merged model

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"stage {self.name}: rounds is {self.rounds}, it must be at least 1")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"stage {self.name}: participation is {self.participation}, it must be in (0, 1]")
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"stage {self.name}: quorum is {self.quorum}, it must be in (0, 1]")
        if self.evaluate_every < 0:
            raise ConfigError(f"stage {self.name}: evaluate_every is {self.evaluate_every}, it must not be negative")
        if not self.algorithm.federated and self.server != ServerStep():
            raise ConfigError(
                f"stage {self.name}: server steps go with federated stages; {self.algorithm.name} is none"
            )

    @property
    def title(self) -> str:
        return self.label or self.name

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
            raise ConfigError(f"stage {stage.name}: after = {stage.after!r} is no earlier stage")
        before = recipe[position - 1].name if position else None
        found[stage.name] = before if stage.after is None else stage.after or None
    return found
