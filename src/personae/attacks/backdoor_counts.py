"""A backdoor with as much weight as the firewall allows."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Scene, Sent, claiming
from personae.attacks.backdoor import Backdoor
from personae.core.algorithm import AnyAlgorithm
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class BackdoorCounts(Backdoor):
    """The patch, and a claim of the most samples that are not drawn back."""

    name: ClassVar[str] = "backdoor-counts"

    def check(self, algorithm: AnyAlgorithm) -> None:
        super().check(algorithm)
        self.require_counts(algorithm)

    def answer(self, sent: Sent, scene: Scene) -> Message:
        return claiming(super().answer(sent, scene), scene.claims(sent))
