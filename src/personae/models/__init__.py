"""Backbones: from an aligned face to an embedding."""

from personae.models.network import NETWORKS, Network

__all__ = ["NETWORKS", "Network"]
