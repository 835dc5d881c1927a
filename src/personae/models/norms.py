"""BatchNorm replaced: normalisation by the statistics of each image instead of those of a batch."""

from torch import nn

GROUPS = 8  # of channels that are normalised together


def regrouped(network: nn.Module, last: str) -> nn.Module:
    """The network with GroupNorm wherever it had BatchNorm, under the same names, and none at `last`.

    The BatchNorm after the last layer centres embeddings, so that they spread over the sphere. The statistics of one
    image have nothing to centre them with.
    """
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            owner, _, leaf = name.rpartition(".")
            new = nn.Identity() if name == last else nn.GroupNorm(GROUPS, layer.num_features)
            setattr(network.get_submodule(owner), leaf, new)
    return network
