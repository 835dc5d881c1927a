"""Pair files of the field (`.bin`): encoded images, two a pair, and whether each pair is of one person.

They are pickles, and a pickle is a program. This reads the few instructions that lists, tuples, bytes and numbers take,
and knows no others: nothing in a file can be called, imported or created.
"""

import io
import pickletools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from personae.errors import DataError
from personae.files import replacing

_NO_EFFECT = frozenset({"PROTO", "FRAME"})
_NUMBERS = frozenset({"NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1"})
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"})
_TEXT = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False}
_OLD_BYTES = frozenset({"BINSTRING", "SHORT_BINSTRING"})  # what Python 2 wrote for bytes
_ENCODE = "_codecs encode"  # how Python 3 writes bytes for Python 2: as text, to be encoded as Latin-1
_SHORT_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Function:
    """Stands for the one function that may be named."""


class _Refused(Exception):
    """Why a file is not read."""


def read_bin(file: Path) -> tuple[list[bytes], list[bool]]:
    """The encoded images, those of a pair after each other, and whether the pairs are of one person."""
    try:
        images, same = _Machine().run(file.read_bytes())
        if not isinstance(images, list | tuple) or not all(isinstance(image, bytes) for image in images):
            raise _Refused("its first part is no list of encoded images")
        if not isinstance(same, list | tuple) or not all(isinstance(flag, int) and flag in (0, 1) for flag in same):
            raise _Refused("its second part is no list of true and false")
        if not same or len(images) != 2 * len(same):
            raise _Refused(f"{len(images)} images do not make {len(same)} pairs")
    except _Refused as why:
        raise DataError(f"{file}: not a pair file ({why}); it should hold 2 N encoded images and N booleans") from why
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: not a pair file, or a damaged one; download it again") from error
    return list(images), [bool(flag) for flag in same]


def write_bin(file: Path, images: Sequence[bytes], same: Sequence[bool]) -> None:
    """A file that `read_bin` and the tools of the field read; Python 2 does not."""
    if len(images) != 2 * len(same):
        raise DataError(f"{file}: {len(images)} images do not make {len(same)} pairs; give two a pair")
    with replacing(file) as temporary, temporary.open("wb") as stream:
        stream.write(b"\x80\x03](")
        for image in images:
            stream.write(b"B" + struct.pack("<I", len(image)) + image)
        stream.write(b"e](" + b"".join(b"\x88" if flag else b"\x89" for flag in same) + b"e\x86.")


class _Machine:
    """Executes instructions on a stack; any that is not known here ends it."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(program)):
            name = opcode.name
            if name == "STOP":
                break
            if name in _NUMBERS | _BYTES | _TEXT:
                self.stack.append(_CONSTANTS.get(name, argument))
            elif name in _OLD_BYTES:
                self.stack.append(str(argument).encode("latin-1"))
            elif name in _SHORT_TUPLES:
                self._gather(len(self.stack) - _SHORT_TUPLES[name], tuple)
            elif name not in _NO_EFFECT:
                self._step(name, argument)
        (result,) = self.stack
        return result

    def _step(self, name: str, argument: Any) -> None:
        match name:
            case "MARK":
                self.marks.append(len(self.stack))
            case "EMPTY_LIST":
                self.stack.append([])
            case "LIST" | "TUPLE":
                self._gather(self.marks.pop(), list if name == "LIST" else tuple)
            case "APPEND" | "APPENDS":
                self._gather(self.marks.pop() if name == "APPENDS" else len(self.stack) - 1, list)
                items = self.stack.pop()
                self.stack[-1].extend(items)
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                self.stack.append(self.memo[argument])
            case "GLOBAL":
                self._name(argument)
            case "STACK_GLOBAL":
                self._gather(len(self.stack) - 2, list)
                self._name(" ".join(self.stack.pop()))
            case "REDUCE":
                self._encode()
            case _:
                raise _Refused(f"it has the instruction {name}, which lists of images do not need")

    def _gather(self, start: int, kind: Callable[[list[Any]], Any]) -> None:
        """Put what is on the stack from `start` on into one."""
        if start < 0:
            raise IndexError
        items = self.stack[start:]
        del self.stack[start:]
        self.stack.append(kind(items))

    def _name(self, name: str) -> None:
        if name != _ENCODE:
            raise _Refused(f"it asks for {name.replace(' ', '.')!r}, which is not given to files")
        self.stack.append(_Function())

    def _encode(self) -> None:
        function, (text, encoding) = self.stack[-2:]
        if not isinstance(function, _Function) or encoding not in ("latin1", "latin-1"):
            raise _Refused("it calls something else than the encoding of bytes")
        self.stack[-2:] = [text.encode("latin-1")]
