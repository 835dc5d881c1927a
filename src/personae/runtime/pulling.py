"""A client's answer out of its pieces, within bounds: Flower itself pulls and puts together whatever it is told to.

One piece of 5 MB that an answer names a thousand times would be 5 GB in memory; a description made of empty objects
grows 25-fold when it is read; and for a piece that was announced and never comes, Flower waits two hours.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable import inflatable_utils as flower
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
from flwr.superlink.grid import http_grid

DESCRIPTION = 1 << 20  # bytes of what is no piece of the content; an honest one has 13 kB for each gigabyte of that
PIECE = 1 << 20  # bytes of a piece at the least, on average; Flower makes them of 5 MB
AGAIN = 0.05, 1.0  # seconds before a piece that is not there yet is asked for again: the first time, and at the most
ARRAY, CHUNK = Array.__qualname__, ArrayChunk.__qualname__
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError)
"""What Flower raises for pieces that do not go together: that client's failure, and nobody else's."""


@dataclass(frozen=True)
class Limits:
    largest: int  # bytes that an answer may hold
    end: float  # when nobody waits for it any more, by the clock `time.monotonic`
    waiting: Callable[[], None]  # to be called where a piece is announced and not there


_of_this_thread = threading.local()


@contextmanager
def within(limits: Limits) -> Iterator[None]:
    """What is pulled in here by this thread keeps to the limits."""
    _of_this_thread.limits = limits
    try:
        yield
    finally:
        del _of_this_thread.limits


def _pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    limits: Limits | None = getattr(_of_this_thread, "limits", None)
    if limits is None:
        return flower.pull_objects(object_ids, pull_object_fn)
    allowed = limits.largest + DESCRIPTION
    pieces, left, lock = list(dict.fromkeys(object_ids)), [allowed], threading.Lock()
    if len(pieces) > 100 + allowed // PIECE:
        raise ValueError(f"it comes in {len(pieces):,} pieces")

    def pull(piece: str) -> bytes:
        try:
            content = pull_object_fn(piece)
        except flower.ObjectUnavailableError:
            limits.waiting()
            raise
        with lock:
            left[0] -= len(content)
        if left[0] < 0:
            raise ValueError(f"it holds more than {limits.largest:,} bytes")
        return content

    return flower.pull_objects(
        pieces,
        pull,
        max_time=max(0.0, limits.end - time.monotonic()),
        max_tries_per_object=None,
        initial_backoff=AGAIN[0],
        backoff_cap=AGAIN[1],
    )


def _inflate(object_id: str, object_contents: dict[str, bytes]) -> Any:
    """The sizes first, in which a part counts as often as it is named."""
    limits: Limits | None = getattr(_of_this_thread, "limits", None)
    if limits is not None:
        heads = {each: get_object_head_values_from_object_content(content) for each, content in object_contents.items()}
        if sum(len(object_contents[each]) for each in heads if heads[each][0] != CHUNK) > DESCRIPTION:
            raise ValueError("its description is too long")
        size = sum(
            len(object_contents[children[number]])
            for each, (kind, children, _) in heads.items()
            if kind == ARRAY
            for number in json.loads(get_object_body(object_contents[each], Array))["arraychunk_ids"]
        )
        if size > limits.largest:
            raise ValueError(f"it holds {size:,} bytes, and {limits.largest:,} are allowed")
    return flower.inflate_object_from_contents(object_id, object_contents)


http_grid.pull_objects = _pull  # type: ignore[assignment, attr-defined]
http_grid.inflate_object_from_contents = _inflate  # type: ignore[assignment, attr-defined]
