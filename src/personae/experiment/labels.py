"""Which stages need to know who is on the faces of their clients, and which clients cannot tell."""

from collections.abc import Mapping

from personae.algorithms import ALGORITHMS
from personae.core.algorithm import AnyAlgorithm
from personae.core.stage import Recipe
from personae.data import PartitionPlan
from personae.errors import ConfigError

Unlabelled = Mapping[bool, str]
"""By side, True for the source and False for the targets: what is unlabelled there, in words."""


def require_labels(recipe: Recipe, unlabelled: Unlabelled) -> None:
    """Refuse a stage that needs labels of clients that have none."""
    for stage in recipe:
        for source, what in unlabelled.items():
            takes_part = stage.takes(source) or stage.algorithm.personalizes
            if takes_part and _needs(stage.algorithm, source):
                able = [name for name, kind in ALGORITHMS.items() if not _needs(kind(), source)]
                raise ConfigError(
                    f"stage {stage.name}: {_described(stage.algorithm, able)} has to know who is on the faces of its "
                    f"clients, and {what} is unlabelled; these need no labels there: {', '.join(able)}"
                )


def unlabelled_sides(parts: Mapping[str, bool], plan: PartitionPlan) -> Unlabelled:
    """Of the parts of the private faces: whether each is unlabelled. Without domains, all clients are targets."""
    bare = [name for name, unlabelled in parts.items() if unlabelled]
    labelled = [name for name in parts if name not in bare]
    if bare and labelled and plan.by != "domain":
        raise ConfigError(
            f"{_place(bare[0])} is unlabelled and {_place(labelled[0])} is not, and no client may have both; "
            "divide them with [partition] by = 'domain'"
        )
    sides: dict[bool, str] = {}
    for name in bare:
        sides.setdefault(plan.by == "domain" and name == plan.source, _place(name))
    return sides


def _place(part: str) -> str:
    return f"data.private.parts.{part}" if part else "data.private"


def _needs(algorithm: AnyAlgorithm, source: bool) -> bool:
    return algorithm.needs_labels_of == "all" or (source and algorithm.needs_labels_of == "source")


def _described(algorithm: AnyAlgorithm, able: list[str]) -> str:
    return f"{algorithm.name} with these options" if algorithm.name in able else algorithm.name
