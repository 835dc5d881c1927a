"""Whose turn it is where several clients train at once, each in a place of its own."""

from collections.abc import Iterator
from itertools import islice

from personae.runtime.transport import Request


class Turns:
    """The requests of one round, for places that ask for the next when they are free.

    Clients go where they were before, if that is free while their turn is near: on a GPU, a graph is captured for every
    size of batch, and the last batch of an epoch has another size with every client, so that a place which keeps its
    clients has few graphs to capture. `last` says where they were. No more than `window` requests are held at a time.
    """

    def __init__(self, requests: Iterator[Request], last: dict[str, int], window: int) -> None:
        self._requests = requests
        self._last = last
        self._window = window
        self._near: list[Request] = []

    def next_for(self, place: int) -> Request | None:
        """Of the first client that was here before or else was nowhere yet; else of the last that was elsewhere."""
        self._near += islice(self._requests, self._window - len(self._near))
        if not self._near:
            return None

        def rank(position: int) -> tuple[int, int]:
            before = self._last.get(self._near[position].client.name)
            return (0, position) if before == place else (1, position) if before is None else (2, -position)

        chosen = self._near.pop(min(range(len(self._near)), key=rank))
        self._last[chosen.client.name] = place
        return chosen
