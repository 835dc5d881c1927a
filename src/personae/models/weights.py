"""Weights from a file: read without running anything in it, matched to a network by names and shapes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors.torch import load_file
from torch import Tensor

from personae.errors import ConfigError, DataError
from personae.models.network import MINIMUM_SIDE, NETWORKS, REDUCTION, Network

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "arcface.")
"""What wrappers put before the names of a network: parallel training, compilation, a model around the backbone."""

BODY, CAST = "body.", "cast.weight"
"""Names in a network with a linear layer after its backbone."""

SHOWN = 4
"""How many mismatches an error message lists."""


def load_weights(path: Path, network: Network | None = None) -> tuple[Network, dict[str, Tensor]]:
    """The network that the weights in `path` fit (`network` itself if given), and its `state_dict`.

    `path` is a safetensors file or a PyTorch one (.pth, .pt), of which only tensors and plain containers are read. A
    checkpoint may hold the weights beside other things, and a prefix shared by all names is removed. Weights of lower
    precision become float32.
    """
    tensors = _without_prefix(_tensors(path, _read(path)))
    if network is None:
        network = _recognise(path, tensors)
    expected = network.layout().state_dict()
    if differences := _differences(tensors, expected):
        hidden = f", hidden {network.hidden}" if network.hidden else ""
        shape = f"{network.embedding}-d, {network.height}x{network.width}, norm {network.norm}{hidden}"
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise DataError(
            f"{path}: these are not the weights of {network.name} ({shape}): {'; '.join(differences[:SHOWN])}{more}. "
            "Name the network, embedding size and image size that they were trained with"
        )
    state = {name: tensors[name].to(like.dtype).contiguous() for name, like in expected.items()}
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise DataError(f"{path}: {name} holds values that are not finite; take weights from before it diverged")
    return network, state


def _read(path: Path) -> object:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of a weights file") from error
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can fail anywhere in the parsers
        raise DataError(
            f"{path}: holds no weights that can be read safely ({type(error).__name__}). "
            "Save `model.state_dict()` with torch.save or as safetensors"
        ) from error


def _tensors(path: Path, content: object) -> Mapping[str, Tensor]:
    """The mapping of names to tensors: the file's whole content, or the only such entry of a checkpoint."""
    if _is_state(content):
        return content
    entries: Mapping[Any, object] = content if isinstance(content, Mapping) else {}
    states = {name: entry for name, entry in entries.items() if _is_state(entry)}
    if len(states) != 1:
        found = f"{len(states)} sets of weights ({', '.join(map(str, states))})" if states else "no set of weights"
        raise DataError(f"{path}: holds {found}; save one `state_dict`, a mapping of names to tensors")
    return next(iter(states.values()))


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items())
    )


def _without_prefix(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            return _without_prefix({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    return tensors


def _recognise(path: Path, tensors: Mapping[str, Tensor]) -> Network:
    """The network whose names are nearest; the embedding and image sizes are read off its last layers."""
    if CAST in tensors:
        body = {name.removeprefix(BODY): tensor for name, tensor in tensors.items() if name.startswith(BODY)}
        found = _recognise(path, body)
        return replace(found, hidden=found.embedding, embedding=tensors[CAST].shape[0])
    smallest = Network(height=MINIMUM_SIDE, width=MINIMUM_SIDE)
    candidates = [replace(smallest, name=name, norm=norm) for name, kind in NETWORKS.items() for norm in kind.norms]
    layouts = {candidate: candidate.layout().state_dict() for candidate in candidates}
    nearest = min(candidates, key=lambda candidate: len(layouts[candidate].keys() ^ tensors.keys()))
    if len(layouts[nearest].keys() & tensors.keys()) < len(tensors) / 2:
        raise DataError(
            f"{path}: its names ({', '.join(list(tensors)[:SHOWN])}, ...) are those of no known network; "
            f"there are {', '.join(NETWORKS)}"
        )
    try:
        embedding, rows, columns = _sizes(tensors, layouts[nearest])
        network = replace(nearest, embedding=embedding, height=rows * REDUCTION, width=columns * REDUCTION)
        network.check()
    except (KeyError, ValueError, ConfigError) as error:
        raise DataError(
            f"{path}: looks like {nearest.name}, but its last layers do not tell the embedding and image sizes; "
            "name the network that the weights were trained with"
        ) from error
    return network


def _sizes(tensors: Mapping[str, Tensor], layout: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """The embedding size, and the rows and columns of the last map; `layout` is of the smallest images."""
    if "GDC_dw.weight" in layout:
        _, _, rows, columns = tensors["GDC_dw.weight"].shape
        return tensors["features.weight"].shape[0], rows, columns
    embedding, flattened = tensors["fc.weight"].shape
    channels = layout["fc.weight"].shape[1] // (MINIMUM_SIDE // REDUCTION) ** 2
    # A flattened map tells its area alone: take it for a square or, like the 7x6 of 112x96, one row taller than wide.
    columns = math.isqrt(flattened // channels)
    rows = columns if columns * columns * channels == flattened else columns + 1
    return embedding, rows, columns


def _differences(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in expected if name not in tensors]
    unknown = [f"{name} is not part of it" for name in tensors if name not in expected]
    unlike = [
        f"{name} is {_kind(tensors[name])} instead of {_kind(like)}"
        for name, like in expected.items()
        if name in tensors and _kind(tensors[name]) != _kind(like)
    ]
    return missing + unknown + unlike


def _kind(tensor: Tensor) -> str:
    """What has to agree: the shape, and whether the values are numbers or counts."""
    return f"{'float' if tensor.is_floating_point() else 'integer'} {list(tensor.shape)}"
