"""How arrays travel: as they are, or over a network in half the bytes with an error that is stated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.core.message import Message
from personae.core.payload import Arrays, Payload
from personae.core.wire import Packet
from personae.errors import ConfigError


@dataclass(frozen=True)
class Coding:
    """Float32 arrays as they are, or rounded to 16 bits.

    Rounding a value moves it by at most `error` of itself. With `delta` an answer's array is sent as its difference
    from the array of the same name in the request, where there is one: then the error is a share of the difference,
    and what the server sends stays exact. All else (tokens, counts, figures) is exact always.

    `whole`: a network's entries are one array, in the order of its layout, which both sides have to share.
    """

    dtype: torch.dtype = torch.float32
    delta: bool = False
    whole: bool = False

    @property
    def error(self) -> float:
        """Of a value that is no smaller than the type's smallest normal number: the share that rounding moves it by."""
        return 0.0 if self.dtype == torch.float32 else torch.finfo(self.dtype).eps / 2

    def request(self, packet: Packet) -> Packet:
        return packet if self.delta else self._rounded(packet, {})

    def answer(self, packet: Packet, request: Packet) -> Packet:
        return self._rounded(packet, request.arrays if self.delta else {})

    def restored(self, packet: Packet, request: Packet | None = None) -> Packet:
        """What was sent, as float32 again; `request` is what an answer was given to."""
        base = request.arrays if request is not None and self.delta else {}
        if self.dtype == torch.float32:
            return packet
        arrays = {
            name: _plus(array.float(), base.get(name)) if array.dtype == self.dtype else array
            for name, array in packet.arrays.items()
        }
        return Packet(arrays, packet.scalars)

    def bytes(self, message: Message, *, answer: bool) -> dict[str, int]:
        """Payload kind -> bytes that cross of it."""
        saved = 0 if self.delta and not answer else 4 - self.dtype.itemsize
        total: dict[str, int] = {}
        for part in message.parts():
            size = part.bytes - (saved * _floats(part) if saved else 0)
            total[type(part).__name__] = total.get(type(part).__name__, 0) + size
        return total

    def _rounded(self, packet: Packet, base: Arrays) -> Packet:
        if self.dtype == torch.float32:
            return packet
        arrays = {name: self._round(name, array, base.get(name)) for name, array in packet.arrays.items()}
        return Packet(arrays, packet.scalars)

    def _round(self, name: str, array: Tensor, base: Tensor | None) -> Tensor:
        if array.dtype != torch.float32:
            return array
        exact = array if base is None or base.shape != array.shape else array - base
        rounded = exact.to(self.dtype)
        if not torch.equal(rounded.isfinite(), exact.isfinite()):
            largest = float(exact.abs().nan_to_num().max())
            raise ValueError(f"{name} holds {largest:.3g}, too large for {self.dtype}; use a coding with bf16")
        return rounded


EXACT = Coding()
ONE_MACHINE = Coding(whole=True)  # dozens of arrays a message are a burden where it costs nothing to send one
CODINGS = {
    "exact": EXACT,
    "fp16": Coding(torch.float16),
    "bf16": Coding(torch.bfloat16),
    "delta-fp16": Coding(torch.float16, delta=True),
    "delta-bf16": Coding(torch.bfloat16, delta=True),
}


def coding_of(name: str) -> Coding:
    if name not in CODINGS:
        raise ConfigError(f"there is no coding {name!r}; there are {', '.join(CODINGS)}")
    return CODINGS[name]


def _plus(array: Tensor, base: Tensor | None) -> Tensor:
    return array if base is None or base.shape != array.shape else base + array


def _floats(payload: Payload) -> int:
    arrays, _ = payload.pack()
    return sum(array.numel() for array in arrays.values() if array.dtype == torch.float32)
