"""Requests and answers as bytes, for clients in another process or on another machine."""

import json
from typing import Any

from personae.core import wire
from personae.core.algorithm import ClientInfo
from personae.core.layout import Layout
from personae.core.message import ClientEvaluation, Message, Trouble
from personae.core.wire import Packet
from personae.files import Bytes
from personae.runtime.coding import EXACT, Coding
from personae.runtime.federation import Federation
from personae.runtime.transport import EVALUATE, TRAIN, Answer, Failure, Request

LONGEST_HEADER = 8 << 20  # bytes of JSON, which can take 25 times as many in memory
UNDECLARED = "its answer is not what was declared"
_TROUBLE = {"trouble": True}  # the header of an answer that is a code; that of any other is empty
_NO_FRAME = (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError)


def of_request(request: Request, coding: Coding = EXACT) -> bytes:
    return b"".join((head_of(request), *body_of(request, coding)))


def head_of(request: Request) -> bytes:
    """What is each client's own."""
    return _head(
        {
            "task": request.task,
            "stage": request.stage,
            "round": request.round,
            "client": request.client.name,
            "index": request.client.index,
            "source": request.client.source,
        }
    )


def body_of(request: Request, coding: Coding = EXACT) -> list[Bytes]:
    """What it is sent; it may be the same for many clients. In pieces (`wire.pieces`)."""
    return wire.pieces(coding.request(wire.encode(request.down, whole=coding.whole)))


def to_request(content: Bytes, federation: Federation, layout: Layout, coding: Coding = EXACT) -> Request:
    try:
        header, packet = _unframe(content)
        types, task = federation.stage(header["stage"]).algorithm.types, header["task"]
        kind = types.down if task in (TRAIN, EVALUATE) else types.question(task).down
        return Request(
            task,
            header["stage"],
            header["round"],
            ClientInfo(header["client"], header["index"], header["source"]),
            wire.decode(kind, coding.restored(packet), layout, whole=coding.whole),
        )
    except _NO_FRAME as error:
        raise wire.WireError(f"not a request: {error}") from error


def stage_of(content: Bytes) -> str:
    """The stage of a request, which may not be understood otherwise."""
    return str(_unframe(content)[0]["stage"])


def of_answer(message: Message, request: Request, coding: Coding = EXACT) -> bytes:
    if isinstance(message, Trouble):
        return of_trouble(message)
    packet = wire.encode(message, whole=coding.whole)
    return _frame({}, coding.answer(packet, _base(request, coding)))


def of_trouble(trouble: Trouble) -> bytes:
    return _frame(_TROUBLE, wire.encode(trouble))


def to_answer(
    content: bytes, request: Request, federation: Federation, layout: Layout, coding: Coding = EXACT
) -> Answer | Failure:
    """What the client of this request answered; whatever is not as declared is its failure, and is not repeated."""
    kind: type[Message]
    try:
        header, packet = _unframe(content)
    except _NO_FRAME:
        return Failure(request.client, "its answer cannot be read")
    if header == _TROUBLE:
        kind, coding = Trouble, EXACT
    elif header != {}:
        return Failure(request.client, UNDECLARED)
    elif request.task == EVALUATE:
        kind = ClientEvaluation
    else:
        types = federation.stage(request.stage).algorithm.types
        kind = types.up if request.task == TRAIN else types.question(request.task).up
    try:
        restored = coding.restored(packet, _base(request, coding))
        return Answer(request.client, wire.decode(kind, restored, layout, whole=coding.whole))
    except wire.WireError as error:
        return Failure(request.client, UNDECLARED + (f", in {error.field}" if error.field else ""))


def _base(request: Request, coding: Coding) -> Packet:
    """What an answer is coded as a difference from, where it is."""
    return wire.encode(request.down, whole=coding.whole) if coding.looks_back else Packet({}, {})


def _frame(header: dict[str, Any], packet: Packet) -> bytes:
    return b"".join((_head(header), *wire.pieces(packet)))


def _head(header: dict[str, Any]) -> bytes:
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head


def _unframe(content: Bytes) -> tuple[dict[str, Any], Packet]:
    end = 4 + int.from_bytes(content[:4], "little")
    if end > LONGEST_HEADER:
        raise ValueError("its header is too long")
    header: dict[str, Any] = json.loads(bytes(content[4:end]))
    return header, wire.from_bytes(bytes(content[end:]), longest_header=LONGEST_HEADER)
