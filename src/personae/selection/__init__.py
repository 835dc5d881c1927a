"""Policies of who is asked in a round, by name: one file each."""

from personae.core.registry import Registry
from personae.core.selection import Everybody, Selection
from personae.selection.by_loss import HighestLoss
from personae.selection.by_samples import BySamples
from personae.selection.count import FixedCount
from personae.selection.growing import Growing
from personae.selection.passes import Passes
from personae.selection.poisson import Poisson
from personae.selection.share import Share

SELECTIONS: Registry[Selection] = Registry(
    "personae.selections", Selection, (Everybody, Share, FixedCount, Poisson, Growing, Passes, BySamples, HighestLoss)
)

__all__ = [
    "SELECTIONS",
    "BySamples",
    "Everybody",
    "FixedCount",
    "Growing",
    "HighestLoss",
    "Passes",
    "Poisson",
    "Share",
]
