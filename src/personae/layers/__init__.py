"""Layers around any algorithm, by name: one file each."""

from personae.core.layer import Layer
from personae.core.registry import Registry
from personae.layers.carry import Carry
from personae.layers.clip import Clip

LAYERS: Registry[Layer] = Registry("personae.layers", Layer, (Carry, Clip))

__all__ = ["LAYERS", "Carry", "Clip"]
