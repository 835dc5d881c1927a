"""Layers around any algorithm, by name: one file each."""

from personae.core.layer import Layer
from personae.core.registry import Registry
from personae.layers.canaries import Canaries
from personae.layers.carry import Carry
from personae.layers.centres import Centres
from personae.layers.clip import Clip
from personae.layers.local_noise import LocalNoise
from personae.layers.noise import Noise
from personae.layers.secret_sum import SecretSum
from personae.layers.top_k import TopK

LAYERS: Registry[Layer] = Registry(
    "personae.layers", Layer, (Canaries, Carry, Clip, Noise, LocalNoise, Centres, SecretSum, TopK)
)
EXAMPLES: tuple[Layer, ...] = (  # settings that differ in what leaves a client, for tables
    Carry(momentum="client"),
    Carry(momentum="server"),
    Carry(control_variates=True),
    Carry(batch_norm="statistics"),
    Carry(batch_norm="all"),
    Clip(norm=1.0),
    Noise(norm=1.0, multiplier=1.0),
    Noise(norm=1.0, multiplier=1.0, quantile=0.5),
    LocalNoise(norm=1.0, multiplier=10.0),
    Centres(clusters=4, multiplier=1.0),
    SecretSum(),
    TopK(),
)

__all__ = ["EXAMPLES", "LAYERS", "Canaries", "Carry", "Centres", "Clip", "LocalNoise", "Noise", "SecretSum", "TopK"]
