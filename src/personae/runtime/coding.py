"""How arrays travel: as they are, or over a network in fewer bytes with an error that is stated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from personae.core.message import Message
from personae.core.payload import Arrays, Payload
from personae.core.wire import Packet, WireError
from personae.errors import ConfigError

BLOCK = 1024  # values that share a scale
STEPS = 127  # to either side of zero
SCALES, PLACES = ":scales", ":places"  # what the array beside another is called after it
LARGEST = 2**31 - 1  # places of an array are 32 bits


@dataclass(frozen=True)
class Coding:
    """Float32 arrays as they are, or rounded to 16 or 8 bits.

    Rounding a value to 16 bits moves it by at most `error` of itself. With 8 bits, every `BLOCK` values share a scale,
    which travels beside them, and the error is a share of the largest of them. With `delta` an answer's array is sent
    as its difference from the array of the same name in the request, where there is one: then the error is a share of
    the difference, and what the server sends stays exact. All else (tokens, counts, figures) is exact always.

    `changed`: of an answer's array, only the values that differ from the request's array of the same name travel, with
    their places, where that is shorter. It is exact, and pays where a layer such as `top-k` leaves most values alone.

    `whole`: a network's entries are one array, in the order of its layout, which both sides have to share.
    """

    dtype: torch.dtype = torch.float32
    delta: bool = False
    changed: bool = False
    whole: bool = False

    @property
    def looks_back(self) -> bool:
        """Whether an answer is coded by what it was given to."""
        return self.delta or self.changed

    @property
    def error(self) -> float:
        """The share that rounding moves a value by: of itself, if it is no smaller than the type's smallest normal
        number, and with 8 bits of the largest value beside it."""
        if self.dtype == torch.int8:
            return 0.5 / STEPS
        return 0.0 if self.dtype == torch.float32 else torch.finfo(self.dtype).eps / 2

    def request(self, packet: Packet) -> Packet:
        return packet if self.delta else self._rounded(packet, {})

    def answer(self, packet: Packet, request: Packet) -> Packet:
        if self.changed:
            return Packet(_only_changed(packet.arrays, request.arrays), packet.scalars)
        return self._rounded(packet, request.arrays if self.delta else {})

    def restored(self, packet: Packet, request: Packet | None = None) -> Packet:
        """What was sent, as float32 again; `request` is what an answer was given to."""
        base = request.arrays if request is not None and self.looks_back else {}
        if self.changed:
            return Packet(_all_again(packet.arrays, base), packet.scalars)
        if self.dtype == torch.float32:
            return packet
        coded = {name: array for name, array in packet.arrays.items() if not name.endswith(SCALES)}
        arrays = {name: self._restore(name, array, packet.arrays, base.get(name)) for name, array in coded.items()}
        return Packet(arrays, packet.scalars)

    def bytes(self, message: Message, answers: Message | None = None) -> dict[str, int]:
        """Payload kind -> bytes that cross of it; `answers` is the message that an answer was given to."""
        exact = self == EXACT or (self.looks_back and answers is None)
        total: dict[str, int] = {}
        for name, part in message.fields().items():
            before = answers.fields().get(name) if answers is not None else None
            size = part.bytes - (0 if exact else self._saved(part, before))
            total[type(part).__name__] = total.get(type(part).__name__, 0) + size
        return total

    def _saved(self, part: Payload, before: Payload | None) -> int:
        arrays = {name: array for name, array in part.pack()[0].items() if array.dtype == torch.float32}
        if self.changed:
            travels = _only_changed(arrays, before.pack()[0] if before is not None else {})
        else:
            travels = self._rounded(Packet(arrays, {}), {}).arrays
        return sum(array.nbytes for array in arrays.values()) - sum(array.nbytes for array in travels.values())

    def _rounded(self, packet: Packet, base: Arrays) -> Packet:
        if self.dtype == torch.float32:
            return packet
        arrays: dict[str, Tensor] = {}
        for name, array in packet.arrays.items():
            if array.dtype == torch.float32:
                arrays |= self._round(name, array, base.get(name))
            else:
                arrays[name] = array
        return Packet(arrays, packet.scalars)

    def _round(self, name: str, array: Tensor, base: Tensor | None) -> dict[str, Tensor]:
        exact = array if base is None or base.shape != array.shape else array - base
        if self.dtype == torch.int8:
            return dict(zip((name, name + SCALES), _in_steps(exact), strict=True))
        rounded = exact.to(self.dtype)
        if not torch.equal(rounded.isfinite(), exact.isfinite()):
            largest = float(exact.abs().nan_to_num().max())
            raise ValueError(f"{name} holds {largest:.3g}, too large for {self.dtype}; use a coding with bf16")
        return {name: rounded}

    def _restore(self, name: str, array: Tensor, arrays: Arrays, base: Tensor | None) -> Tensor:
        if array.dtype != self.dtype or (self.dtype == torch.int8 and name + SCALES not in arrays):
            return array
        return _plus(_of_steps(array, arrays[name + SCALES]) if self.dtype == torch.int8 else array.float(), base)


EXACT = Coding()
CODINGS = {
    "exact": EXACT,
    "fp16": Coding(torch.float16),
    "bf16": Coding(torch.bfloat16),
    "delta-fp16": Coding(torch.float16, delta=True),
    "delta-bf16": Coding(torch.bfloat16, delta=True),
    "delta-int8": Coding(torch.int8, delta=True),
    "changed": Coding(changed=True),
}


def coding_of(name: str) -> Coding:
    if name not in CODINGS:
        raise ConfigError(f"there is no coding {name!r}; there are {', '.join(CODINGS)}")
    return CODINGS[name]


def _plus(array: Tensor, base: Tensor | None) -> Tensor:
    return array if base is None or base.shape != array.shape else base + array


def _in_steps(array: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of steps from -127 to 127, and the length of a step in each block; what is not finite stays so."""
    blocks = _in_blocks(array)
    scales = blocks.abs().amax(1) / STEPS
    steps = (blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(1)).round().nan_to_num().to(torch.int8)
    return steps.flatten()[: array.numel()].reshape(array.shape), scales


def _of_steps(steps: Tensor, scales: Tensor) -> Tensor:
    if scales.dtype != torch.float32 or scales.shape != (_blocks(steps),):
        raise WireError("its 8-bit numbers have no scales that fit them")
    values = _in_blocks(steps).float() * scales.unsqueeze(1)
    return values.flatten()[: steps.numel()].reshape(steps.shape)


def _in_blocks(array: Tensor) -> Tensor:
    """Rows of `BLOCK` values, with zeros after the last one."""
    flat = array.flatten()
    return torch.nn.functional.pad(flat, (0, _blocks(array) * BLOCK - flat.numel())).reshape(-1, BLOCK)


def _blocks(array: Tensor) -> int:
    return -(-array.numel() // BLOCK)


def _only_changed(arrays: Arrays, base: Arrays) -> dict[str, Tensor]:
    """Values that differ by any bit, and beside them their places, where both are shorter than the array."""
    found: dict[str, Tensor] = {}
    for name, array in arrays.items():
        before = base.get(name)
        found[name] = array
        if array.dtype == torch.float32 and before is not None and before.shape == array.shape:
            flat = array.flatten()
            places = (flat.view(torch.int32) != before.flatten().view(torch.int32)).nonzero().flatten()
            if 2 * len(places) < flat.numel() <= LARGEST:
                found |= {name: flat[places], name + PLACES: places.to(torch.int32)}
    return found


def _all_again(arrays: Arrays, base: Arrays) -> dict[str, Tensor]:
    found = {name: array for name, array in arrays.items() if not name.endswith(PLACES)}
    for name in [name for name in found if name + PLACES in arrays]:
        values, places, before = found[name], arrays[name + PLACES], base.get(name)
        fits = before is not None and values.dtype == before.dtype and places.dtype == torch.int32
        if not fits or values.ndim != 1 or places.shape != values.shape:
            raise WireError("its values have no places that fit them")
        assert before is not None
        rising = bool((places[1:] > places[:-1]).all())
        if len(places) and not (rising and places[0] >= 0 and places[-1] < before.numel()):
            raise WireError("its values have no places that fit them")
        whole = before.flatten().clone()
        whole[places.long()] = values
        found[name] = whole.reshape(before.shape)
    return found
