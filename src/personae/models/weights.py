"""Weights from a file: read without running anything in it, matched to a network by names and shapes."""

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from personae.errors import ConfigError, DataError
from personae.files import replacing
from personae.models.network import MINIMUM_SIDE, NETWORKS, REDUCTION, Network

SAFETENSORS = ".safetensors"

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "arcface.", "encoder.", "net.", "network.")
"""What wrappers put before the names of a network: parallel training, compilation, a model around the backbone."""

BODY, CAST = "body.", "cast.weight"
"""Names in a network with a linear layer after its backbone."""

GLOBAL = (("GDC_dw.weight", "features.weight"), ("features.layers.0.layers.0.weight", "features.layers.2.weight"))
"""Of networks that end with a convolution over the whole last map: its name, and that of the layer after it."""

SHOWN = 4
"""How many mismatches an error message lists."""

MAX_VALUES = 2**27
"""Of all weights together: twice what the largest network has. A few bytes can declare a tensor of any size."""

MAX_HEADER = 2**23
"""Bytes of the header of a safetensors file: ten thousand names take one of these eight million."""

_NETWORK = "network"  # in the metadata of safetensors: which network the weights are of
_ADVICE = "Save `model.state_dict()` with torch.save or as safetensors"


class _Found(NamedTuple):
    """A set of weights in a file, and under which entry of a checkpoint it stands."""

    entry: str
    tensors: Mapping[str, Tensor]


def load_weights(path: str | Path, network: Network | None = None) -> tuple[Network, dict[str, Tensor]]:
    """The network that the weights in `path` fit (`network` itself if given), and its `state_dict`.

    `path` is a safetensors file or a PyTorch one (.pth, .pt), of which only tensors and plain containers are read. Of a
    checkpoint that holds more (a classification layer, an optimiser, entries of a wrapper), the weights are taken whose
    names are nearest to those of the network, without the prefix they share. Weights of lower precision become float32,
    and counters that are missing are zero.
    """
    path = Path(path)
    content, note = _read(path)
    if network is None and note is not None:
        network = _noted(path, note)
    tensors = _chosen(path, content, network)
    if network is None:
        network = _recognise(path, tensors)
    expected = network.layout().state_dict()
    if differences := _differences(tensors, expected):
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        guess = _guess(path, content, network)
        raise DataError(
            f"{path}: these are not the weights of {_described(network)}: {'; '.join(differences[:SHOWN])}{more}. "
            f"Name the network, embedding size and image size that they were trained with{guess}"
        )
    state = {
        name: tensors[name].to(like.dtype).contiguous() if name in tensors else torch.zeros_like(like, device="cpu")
        for name, like in expected.items()
    }
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise DataError(f"{path}: {name} holds values that are not finite; take weights from before it diverged")
    return network, state


def save_weights(path: Path, network: Network, state: Mapping[str, Tensor]) -> None:
    """As safetensors, with a note of the network."""
    note = TypeAdapter(Network).dump_json(network).decode()
    with replacing(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, temporary, {_NETWORK: note})


def _read(path: Path) -> tuple[object, str | None]:
    """What the file holds, and its note of the network, if it has one."""
    if path.exists() and not path.is_file():  # a pipe or a device never ends
        raise DataError(f"{path}: cannot be read (it is not a plain file); give the path of a weights file")
    try:
        with path.open("rb") as file:
            header, size = int.from_bytes(file.read(8), "little"), file.seek(0, 2)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a weights file") from error
    try:
        if path.suffix.lower() == SAFETENSORS:
            if header > min(MAX_HEADER, size):
                raise ValueError(f"a header of {header:,} bytes")
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, (file.metadata() or {}).get(_NETWORK)  # noqa: SIM118
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > size:  # torch.save does not compress
                raise ValueError(f"{unpacked:,} bytes packed into {size:,}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of how it was pickled: it can be read, or it cannot
            return torch.load(path, map_location="cpu", weights_only=True), None
    except Exception as error:  # damaged bytes can fail anywhere in the parsers
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise DataError(f"{path}: holds no weights that can be read safely ({why}). {_ADVICE}") from error


def _noted(path: Path, note: str) -> Network:
    try:
        network = TypeAdapter(Network).validate_json(note)
        network.check()
    except (ValidationError, ConfigError) as error:
        raise DataError(f"{path}: its note says of no known network what it is of; export the weights again") from error
    return network


def _chosen(path: Path, content: object, network: Network | None) -> Mapping[str, Tensor]:
    """The set of weights in the file whose names are nearest to those of the network, or of any."""
    found = list(_sets(content))
    if not found:
        raise DataError(f"{path}: holds no set of weights; save one `state_dict`, a mapping of names to tensors")
    wanted = [_floats(network)] if network else [_floats(candidate) for candidate in _candidates()]
    apart = [min(len(names ^ _body(each.tensors, network)) for names in wanted) for each in found]
    nearest = [each for each, distance in zip(found, apart, strict=True) if distance == min(apart)]
    entries = list(dict.fromkeys(each.entry for each in nearest))
    if len(entries) > 1:
        names = ", ".join(entries)
        raise DataError(f"{path}: holds {len(entries)} sets of weights ({names}); save one of them as a `state_dict`")
    tensors = nearest[0].tensors
    if (values := sum(tensor.numel() for tensor in tensors.values())) > MAX_VALUES:
        raise DataError(f"{path}: declares {values:,} values, more than {MAX_VALUES:,}; no network here is that large")
    return tensors


def _sets(content: object) -> Iterator[_Found]:
    """Every mapping of names to tensors: the file's whole content, an entry of it, or what is under a prefix."""
    if _is_state(content):
        yield from _below_prefixes(_Found("", content))
        return
    entries: Mapping[Any, object] = content if isinstance(content, Mapping) else {}
    for name, entry in entries.items():
        if _is_state(entry):
            yield from _below_prefixes(_Found(str(name), entry))


def _below_prefixes(found: _Found) -> Iterator[_Found]:
    yield found
    for prefix in PREFIXES:
        inside = {
            name.removeprefix(prefix): tensor for name, tensor in found.tensors.items() if name.startswith(prefix)
        }
        if inside:
            yield from _below_prefixes(_Found(found.entry, inside))


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items())
    )


def _candidates() -> list[Network]:
    """Every network, at the size that is quickest to lay out: its names are the same at any."""
    smallest = Network(height=MINIMUM_SIDE, width=MINIMUM_SIDE)
    return [replace(smallest, name=name, norm=norm) for name, kind in NETWORKS.items() for norm in kind.norms]


@cache
def _floats(network: Network) -> frozenset[str]:
    """The names that weights must have. Integers only count batches, and old files lack them."""
    return frozenset(_float_names(network.layout().state_dict()))


def _float_names(tensors: Mapping[str, Tensor]) -> set[str]:
    return {name for name, tensor in tensors.items() if tensor.is_floating_point()}


def _body(tensors: Mapping[str, Tensor], network: Network | None) -> set[str]:
    """The names to compare with those of networks; with a linear layer after an unknown backbone, the latter's."""
    names = _float_names(tensors)
    if network is not None or CAST not in names:
        return names
    return {name.removeprefix(BODY) for name in names if name.startswith(BODY)}


def _recognise(path: Path, tensors: Mapping[str, Tensor]) -> Network:
    """The network whose names are nearest; the embedding and image sizes are read off its last layers."""
    if CAST in tensors:
        body = {name.removeprefix(BODY): tensor for name, tensor in tensors.items() if name.startswith(BODY)}
        found = _recognise(path, body)
        return replace(found, hidden=found.embedding, embedding=tensors[CAST].shape[0] if tensors[CAST].ndim else 1)
    names, candidates = _float_names(tensors), _candidates()
    nearest = min(candidates, key=lambda candidate: len(_floats(candidate) ^ names))
    if len(_floats(nearest) & names) < len(names) / 2:
        raise DataError(
            f"{path}: its names ({', '.join(list(tensors)[:SHOWN])}, ...) are those of no known network; "
            f"there are {', '.join(NETWORKS)}"
        )
    try:
        embedding, rows, columns = _sizes(tensors, nearest.layout().state_dict())
        network = replace(nearest, embedding=embedding, height=rows * REDUCTION, width=columns * REDUCTION)
        network.check()
    except (LookupError, ValueError, ConfigError) as error:
        raise DataError(
            f"{path}: looks like {nearest.name}, but its last layers do not tell the embedding and image sizes; "
            "name the network that the weights were trained with"
        ) from error
    return network


def _described(network: Network) -> str:
    hidden = f", hidden {network.hidden}" if network.hidden else ""
    return f"{network.name} ({network.embedding}-d, {network.height}x{network.width}, norm {network.norm}{hidden})"


def _guess(path: Path, content: object, network: Network) -> str:
    """What the weights look like instead, if anything is known by them."""
    try:
        other = _recognise(path, _chosen(path, content, None))
    except DataError:
        return ""
    return "" if other == network else f"; they look like {_described(other)}"


def _sizes(tensors: Mapping[str, Tensor], layout: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """The embedding size, and the rows and columns of the last map; `layout` is of the smallest images."""
    for kernel, last in GLOBAL:
        if kernel in layout:
            _, _, rows, columns = tensors[kernel].shape
            return tensors[last].shape[0], rows, columns
    embedding, flattened = tensors["fc.weight"].shape
    channels = layout["fc.weight"].shape[1] // (MINIMUM_SIDE // REDUCTION) ** 2
    # A flattened map tells its area alone: take it for a square or, like the 7x6 of 112x96, one row taller than wide.
    columns = math.isqrt(flattened // channels)
    rows = columns if columns * columns * channels == flattened else columns + 1
    return embedding, rows, columns


def _differences(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    missing = [
        f"{name} is missing" for name, like in expected.items() if like.is_floating_point() and name not in tensors
    ]
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
