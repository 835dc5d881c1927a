"""How many may stand at a gate, and for how long: a process can have so many connections, and then no file any more."""

import asyncio
import errno
import resource
import socket
import time
from contextlib import suppress
from typing import Any

STRANGERS = 256  # connections of which nobody has said whose they are; of more, the oldest is closed
INTRODUCTION = 20.0  # seconds to say it
OF_ONE = 16  # connections of one client; of more, the oldest is closed
AT_ONCE = 32  # connections that are taken before others are closed
BRAKE = 0.05  # seconds for which nobody is let in where this process has no files left
OTHER_FILES = 512  # that a server has open besides
QUEUE = 1024  # connections that the system holds until we take them

Address = tuple[Any, ...]


class Visitors:
    """The connections at all doors of a gate. All of it happens in the thread of one event loop."""

    def __init__(self) -> None:
        self._strangers: dict[Address, socket.socket] = {}
        self._known: dict[str, dict[Address, socket.socket]] = {}

    def enter(self, connection: socket.socket, address: Address) -> None:
        self._strangers = {**_open(self._strangers, STRANGERS - 1), address: connection}
        asyncio.get_running_loop().call_later(INTRODUCTION, self._lose_patience, connection, address)

    def introduce(self, address: Address, name: str) -> None:
        """The connection from there is this client's."""
        if (connection := self._strangers.pop(address, None)) is not None:
            self._known[name] = {**_open(self._known.get(name, {}), OF_ONE - 1), address: connection}

    def make_room(self) -> None:
        """There are no files left: of the strangers, the oldest goes."""
        self._strangers = _open(self._strangers, len(self._strangers) - 1)

    def _lose_patience(self, connection: socket.socket, address: Address) -> None:
        if self._strangers.get(address) is connection:
            _hang_up(self._strangers.pop(address))


class Door(socket.socket):
    """A listening socket that tells of everybody who comes in. An event loop asks it by `accept`, as any other."""

    visitors: Visitors
    taken = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """A few at a time: connections are closed by the event loop, between two times that it asks for more."""
        self.taken = (self.taken + 1) % AT_ONCE
        try:
            if not self.taken:
                raise BlockingIOError
            connection, address = super().accept()
        except BlockingIOError:  # the loop comes back when there is somebody
            self.taken = 0
            raise
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.visitors.make_room()
            time.sleep(BRAKE)
            raise BlockingIOError from error
        self.visitors.enter(connection, address[:2])
        return connection, address


def doors(host: str, port: int, visitors: Visitors) -> list[Door]:
    """One for each address that the host has; OSError where there can be none."""
    opened = []
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            door = Door(family, kind, protocol)
            opened.append(door)
            door.visitors = visitors
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.bind(address)
            door.listen(QUEUE)
    except OSError:
        for door in opened:
            door.close()
        raise
    return opened


def make_room(clients: int) -> None:
    """Let this process have as many files open as its doors may need, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = STRANGERS + OF_ONE * clients + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _open(connections: dict[Address, socket.socket], most: int) -> dict[Address, socket.socket]:
    """Those that are still open, in the order in which they came; of too many, the oldest are closed."""
    kept = {place: each for place, each in connections.items() if each.fileno() >= 0}
    while len(kept) > max(0, most):
        _hang_up(kept.pop(next(iter(kept))))
    return kept


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)
