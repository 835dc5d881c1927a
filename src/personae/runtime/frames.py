"""Requests and answers as bytes, for clients in another process or on another machine."""

import json
from typing import Any

from personae.core import wire
from personae.core.algorithm import ClientInfo
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.wire import Packet
from personae.errors import Interrupted
from personae.runtime.coding import EXACT, Coding
from personae.runtime.federation import Assessment, Federation
from personae.runtime.transport import Answer, Failure, Request


def of_request(request: Request, coding: Coding = EXACT) -> bytes:
    header = {
        "task": request.task,
        "stage": request.stage,
        "round": request.round,
        "client": request.client.name,
        "index": request.client.index,
        "source": request.client.source,
    }
    return _frame(header, coding.request(wire.encode(request.down, whole=coding.whole)))


def to_request(content: bytes, federation: Federation, layout: Layout, coding: Coding = EXACT) -> Request:
    header, packet = _unframe(content)
    kind = federation.stage(header["stage"]).algorithm.types.down
    return Request(
        header["task"],
        header["stage"],
        header["round"],
        ClientInfo(header["client"], header["index"], header["source"]),
        wire.decode(kind, coding.restored(packet), layout, whole=coding.whole),
    )


def of_answer(answer: Answer | Failure, request: Request, coding: Coding = EXACT) -> bytes:
    if isinstance(answer, Answer):
        try:
            packet = wire.encode(answer.message, whole=coding.whole)
            return _frame({}, coding.answer(packet, _base(request, coding)))
        except Exception as error:  # a message that cannot be written is its client's failure alone
            answer = Failure(answer.client, f"{type(error).__name__}: {error}")
    return _frame({"failure": answer.reason, "diverged": answer.diverged}, Packet({}, {}))


def of_interruption(error: Interrupted) -> bytes:
    """The answer of a process that cannot go on."""
    return _frame({"interrupted": str(error)}, Packet({}, {}))


def to_answer(
    content: bytes, request: Request, federation: Federation, layout: Layout, coding: Coding = EXACT
) -> Answer | Failure:
    """What the client of this request answered; whatever is not as declared is its failure."""
    header, packet = _unframe(content)
    if "interrupted" in header:
        raise Interrupted(header["interrupted"])
    if "failure" in header:
        return Failure(request.client, header["failure"], header["diverged"])
    kind: type[Message] = Assessment
    if request.task == "train":
        kind = federation.stage(request.stage).algorithm.types.up
    try:
        restored = coding.restored(packet, _base(request, coding))
        return Answer(request.client, wire.decode(kind, restored, layout, whole=coding.whole))
    except wire.WireError as error:
        return Failure(request.client, f"its answer is not what was declared: {error}")


def _base(request: Request, coding: Coding) -> Packet:
    """What an answer is coded as a difference from, where it is."""
    return wire.encode(request.down, whole=coding.whole) if coding.delta else Packet({}, {})


def _frame(header: dict[str, Any], packet: Packet) -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + wire.to_bytes(packet)


def _unframe(content: bytes) -> tuple[dict[str, Any], Packet]:
    end = 4 + int.from_bytes(content[:4], "little")
    header: dict[str, Any] = json.loads(content[4:end])
    return header, wire.from_bytes(content[end:])
