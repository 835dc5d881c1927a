"""Attacks by name: one file each. They exist for `personae attack` alone, and nothing else imports this package."""

from personae.attacks.alie import LittleIsEnough
from personae.attacks.attack import Attack
from personae.attacks.backdoor import Backdoor
from personae.attacks.backdoor_accessory import BackdoorAccessory
from personae.attacks.backdoor_counts import BackdoorCounts
from personae.attacks.backdoor_split import BackdoorSplit
from personae.attacks.backdoor_victim import BackdoorVictim
from personae.attacks.bounded_counts import BoundedCounts
from personae.attacks.equal_updates import EqualUpdates
from personae.attacks.free_rider import FreeRider
from personae.attacks.hidden_flip import HiddenFlip
from personae.attacks.impossible_statistics import ImpossibleStatistics
from personae.attacks.inflated_counts import InflatedCounts
from personae.attacks.inner_product import InnerProduct
from personae.attacks.label_flip import LabelFlip
from personae.attacks.model_replacement import ModelReplacement
from personae.attacks.noise import Noise
from personae.attacks.poisoned_rows import PoisonedRows
from personae.attacks.replay import Replay
from personae.attacks.sign_flip import SignFlip
from personae.attacks.skewed_statistics import SkewedStatistics
from personae.attacks.stale import Stale
from personae.core.registry import Registry

ATTACKS: Registry[Attack] = Registry(
    "personae.attacks",
    Attack,
    (
        SignFlip,
        Noise,
        LabelFlip,
        InflatedCounts,
        BoundedCounts,
        HiddenFlip,
        ImpossibleStatistics,
        SkewedStatistics,
        EqualUpdates,
        LittleIsEnough,
        InnerProduct,
        ModelReplacement,
        Backdoor,
        BackdoorCounts,
        BackdoorSplit,
        BackdoorAccessory,
        BackdoorVictim,
        FreeRider,
        Replay,
        Stale,
        PoisonedRows,
    ),
)

__all__ = ["ATTACKS", "Attack"]
