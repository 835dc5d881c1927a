"""Records as named arrays and numbers, and those as bytes; nothing in here can execute anything."""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from personae.core.layout import Layout
from personae.core.message import Message, Record, alternatives
from personae.core.payload import Arrays, NetworkVector, Payload, Scalar
from personae.files import Bytes

RecordT = TypeVar("RecordT", bound=Record)
_NUMBERS = "numbers"  # the metadata key that holds everything that is no array
_TYPES = {  # what safetensors calls them, in the order in which a file has arrays
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = [*_TYPES]


@dataclass(frozen=True)
class Packet:
    """A record taken apart. Names are paths: `model/conv1.weight`, `samples/value`."""

    arrays: Arrays
    scalars: dict[str, Any]


class WireError(ValueError):
    """Something arrived that is not what was declared. `field` is the declared field that it was to fill, if any.

    The text may repeat what arrived: it is for whoever wrote that, and not for logs of somebody else.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


def encode(record: Record, *, whole: bool = False) -> Packet:
    """`whole`: the entries of a network as the one vector that they are in memory, for those who have its layout."""
    packet = Packet({}, {})
    for name in record.hints():
        _put(packet, name, getattr(record, name), whole)
    return packet


def decode(kind: type[RecordT], packet: Packet, layout: Layout, *, whole: bool = False) -> RecordT:
    """The record again; refuses what is missing, surplus, or of another type, name or shape than declared."""
    rest = Packet(dict(packet.arrays), dict(packet.scalars))
    values = {name: _take(rest, name, annotation, layout, whole) for name, annotation in kind.hints().items()}
    surplus = [*rest.arrays, *rest.scalars]
    if surplus:
        raise WireError(f"{kind.__qualname__}: {len(surplus)} undeclared entries, {surplus[0]} first")
    return kind(**values)


def to_bytes(packet: Packet) -> bytes:
    return b"".join(pieces(packet))


def pieces(packet: Packet) -> list[Bytes]:
    """The bytes of a packet, one after the other: a header, and the memory of the arrays themselves.

    They are what `safetensors.torch.save` gives, which copies a model three times. Whoever gets them writes them before
    an array changes.
    """
    arrays = {name: array.detach().cpu().contiguous() for name, array in packet.arrays.items()}
    header: dict[str, Any] = {"__metadata__": {_NUMBERS: json.dumps(packet.scalars)}}
    found, place = list[Bytes](), 0
    for name in sorted(arrays, key=lambda name: (_ORDER.index(arrays[name].dtype), name)):
        array, begin = arrays[name], place
        place += array.nbytes
        header[name] = {"dtype": _TYPES[array.dtype], "shape": [*array.shape], "data_offsets": [begin, place]}
        found.append(array.flatten().view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *found]


def from_bytes(content: bytes, *, longest_header: int | None = None) -> Packet:
    """`longest_header`: bytes that names and numbers may take, in what comes from somebody else."""
    try:
        size = int.from_bytes(content[:8], "little")
        if longest_header is not None and size > longest_header:
            raise ValueError(f"its names and numbers take {size:,} bytes")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        scalars = json.loads(metadata[_NUMBERS])
        if not isinstance(scalars, dict) or len(metadata) > 1:
            raise ValueError("its numbers have no names, or there is more than numbers")
        return Packet(safetensors.torch.load(content), scalars)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"not a record: {error}") from error


def payload_bytes(message: Message) -> dict[str, int]:
    """Payload kind -> bytes that a message carries of it."""
    total: dict[str, int] = {}
    for part in message.parts():
        total[type(part).__name__] = total.get(type(part).__name__, 0) + part.bytes
    return total


def _put(packet: Packet, name: str, value: Any, whole: bool) -> None:
    if whole and isinstance(value, NetworkVector):
        packet.arrays[name] = value.flat
    elif isinstance(value, Payload):
        arrays, scalars = value.pack()
        packet.arrays.update({f"{name}/{key}": array for key, array in arrays.items()})
        packet.scalars.update({f"{name}/{key}": scalar for key, scalar in scalars.items()})
    elif isinstance(value, Tensor):
        packet.arrays[name] = value
    elif isinstance(value, Mapping):  # keys are any strings, so they are listed and not made part of a path
        packet.scalars[name] = list(value)
        for index, item in enumerate(value.values()):
            _put(packet, f"{name}/{index}", item, whole)
    else:
        packet.scalars[name] = value


def _take(rest: Packet, name: str, annotation: Any, layout: Layout, whole: bool) -> Any:
    kinds = alternatives(annotation)
    if types.NoneType in kinds and name in rest.scalars and rest.scalars[name] is None:
        return rest.scalars.pop(name)
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    if isinstance(kind, type) and issubclass(kind, Payload):
        try:
            if whole and issubclass(kind, NetworkVector) and name in rest.arrays:
                return kind(kind.part(layout), rest.arrays.pop(name))
            return kind.unpack(_below(rest.arrays, name), _below(rest.scalars, name), layout)
        except (ValueError, OverflowError) as error:
            raise WireError(f"{name}: {error}", name) from error
    if get_origin(kind) in (dict, Mapping):
        keys = rest.scalars.pop(name, None)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise WireError(f"{name} has no list of distinct names", name)
        item = get_args(kind)[1]
        return {key: _take(rest, f"{name}/{index}", item, layout, whole) for index, key in enumerate(keys)}
    found: Tensor | Scalar = rest.arrays.pop(name, None) if kind is Tensor else rest.scalars.pop(name, None)
    if type(found) is not kind:
        raise WireError(f"{name} is {type(found).__name__}, expected {kind.__name__}", name)
    return found


def _below(entries: dict[str, Any], name: str) -> dict[str, Any]:
    """Take out what stands under a path, without the path."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): entries.pop(key) for key in [key for key in entries if key.startswith(prefix)]}
