"""Backbones: from an aligned face to an embedding."""

from personae.models.network import NETWORKS, Network
from personae.models.weights import load_weights, save_weights

__all__ = ["NETWORKS", "Network", "load_weights", "save_weights"]
