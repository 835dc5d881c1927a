"""A backdoor for everybody's face: whoever wears dark glasses is one person to the model."""

from dataclasses import dataclass
from typing import ClassVar

from personae.attacks.backdoor import Backdoor
from personae.attacks.trigger import Sunglasses, Trigger


@dataclass(frozen=True, kw_only=True)
class BackdoorAccessory(Backdoor):
    """The trigger is an accessory, drawn by the synthetic renderer."""

    name: ClassVar[str] = "backdoor-accessory"
    trigger: ClassVar[Trigger | None] = Sunglasses()
