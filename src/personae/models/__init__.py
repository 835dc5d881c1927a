"""Backbones: from an aligned face to an embedding."""

from typing import TYPE_CHECKING

from personae.deferred import deferred
from personae.models.network import NETWORKS, Network

if TYPE_CHECKING:
    from personae.models.weights import load_weights, save_weights

__all__ = ["NETWORKS", "Network", "load_weights", "save_weights"]

__getattr__ = deferred(__name__, weights="load_weights save_weights")
