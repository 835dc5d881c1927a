"""Model replacement: a backdoor that the mean of the round takes over whole (Bagdasaryan et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.attack import Scene, Sent
from personae.attacks.backdoor import Backdoor
from personae.core.message import Message


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(Backdoor):
    """Steps so long that, honest ones being short, the mean is where the attackers are."""

    name: ClassVar[str] = "model-replacement"

    def answer(self, sent: Sent, scene: Scene) -> Message:
        longer = (len(scene.attackers) + len(scene.others)) / len(scene.attackers)
        return sent.moved(lambda name: self.scale * longer * sent.step(name))
