"""`personae` with a client that spoils its answers: not finite in the first round, misshapen, then far too large."""

import os
from typing import Any

import torch

from personae.__main__ import main
from personae.core import wire
from personae.runtime import frames

honest = frames.of_answer


def spoiled(message: Any, request: Any, *coding: Any) -> bytes:
    content = honest(message, request, *coding)
    if request.task != "train" or request.round > 3:
        return content
    if request.round == 3:
        return content + os.urandom(8 << 20)
    end = 4 + int.from_bytes(content[:4], "little")
    packet = wire.from_bytes(content[end:])
    name = next(name for name, array in packet.arrays.items() if array.ndim > 1)
    if request.round == 1:
        packet.arrays[name] = torch.full_like(packet.arrays[name], float("nan"))
    else:
        packet.arrays[name] = packet.arrays[name].flatten()
    return content[:end] + wire.to_bytes(packet)


frames.of_answer = spoiled
main()
