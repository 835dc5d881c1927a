"""Pair files of the field (`.bin`): encoded images, two per pair, and whether each pair is of one person.

They are pickles, and a pickle is a program. This reads the few instructions that lists, tuples, bytes, numbers and
arrays of bytes take, and knows no others: nothing in a file can be called or imported. The names of NumPy's own
functions that arrays are written with stand for functions here, which make arrays of bytes or booleans and no others.
"""

import io
import math
import mmap
import pickletools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from personae.errors import DataError
from personae.files import replacing
from personae.words import counted

_NO_EFFECT = frozenset({"PROTO", "FRAME"})
_NUMBERS = frozenset({"NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "NONE"})
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_TEXT = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_OLD_BYTES = frozenset({"BINSTRING", "SHORT_BINSTRING"})  # what Python 2 wrote for bytes
_SHORT_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Refused(Exception):
    """Why a file is not read."""


class _Array:
    """An array that is made in two steps: first nothing is known of it, then everything at once."""

    values: NDArray[Any] | None = None

    def build(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.values = _array(content, kind, shape, "F" if fortran else "C")


class _Kind:
    """What an array is of: bytes or booleans."""

    def __init__(self, code: str) -> None:
        if code.lstrip("|<>=") not in ("u1", "b1"):
            raise _Refused(f"it has an array of {code!r}, where arrays of bytes are expected")
        self.dtype = np.dtype(code.lstrip("|<>="))

    def build(self, state: Any) -> None:
        """Of bytes there is nothing more to know."""


def _array(content: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(kind, _Kind) or not isinstance(content, bytes | bytearray):
        raise _Refused("it has an array of something else than bytes")
    if not all(isinstance(side, int) and side >= 0 for side in shape) or math.prod(shape) != len(content):
        raise _Refused("it has an array of another size than it says")
    return np.frombuffer(content, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: Any, encoding: Any) -> bytes:
    """How Python 3 writes bytes for Python 2: as text, to be encoded as Latin-1."""
    if encoding not in ("latin1", "latin-1"):
        raise _Refused("it calls something else than the encoding of bytes")
    return bytes(text.encode("latin-1"))


def _scalar(kind: Any, content: Any) -> bool | int:
    values: bool | int = _array(content, kind, (1,), "C")[0].item()
    return values


_CALLED: Mapping[str, Callable[..., Any]] = {
    "_codecs encode": _encode,
    "numpy dtype": lambda code, *_: _Kind(code),
    **{f"numpy.{core}.multiarray _reconstruct": lambda *_: _Array() for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _array for core in ("core", "_core")},
}
_NAMED = frozenset({"numpy ndarray"})  # may be named, but not called


def read_bin(file: Path) -> tuple[list[bytes], list[bool]]:
    """The encoded images, those of a pair after each other, and whether the pairs are of one person."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as program:
            images, same = map(_listed, _Machine().run(program))
        if not isinstance(images, list | tuple):
            raise _Refused("its first part is no list of encoded images")
        each = {id(image): image for image in images}  # one that is named a thousand times is encoded once
        encoded = {number: _encoded(image) for number, image in each.items()}
        images = [encoded[id(image)] for image in images]
        if not isinstance(same, list | tuple) or not all(isinstance(flag, int) and flag in (0, 1) for flag in same):
            raise _Refused("its second part is no list of true and false")
        if not same or len(images) != 2 * len(same):
            raise _Refused(f"{counted(len(images), 'image')} cannot be {counted(len(same), 'pair')}")
    except _Refused as why:
        raise DataError(f"{file}: not a pair file ({why}); it should hold 2 N encoded images and N booleans") from why
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: not a pair file, or a damaged one; download it again") from error
    return images, [bool(flag) for flag in same]


def _listed(part: Any) -> Any:
    """An array as the list it stands for."""
    values = part.values if isinstance(part, _Array) else part
    if not isinstance(values, np.ndarray):
        return values
    return values.tolist() if values.dtype == np.bool_ or values.ndim == 1 else list(values)


def _encoded(image: Any) -> bytes:
    """An array of one dimension holds the bytes of a file; one of three holds the pixels, RGB."""
    values = image.values if isinstance(image, _Array) else image
    if isinstance(values, bytes):
        return values
    if not isinstance(values, np.ndarray) or values.dtype != np.uint8:
        raise _Refused("its first part is no list of encoded images")
    if values.ndim == 3 and values.shape[2] == 3 and values.size:
        stream = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(values)).save(stream, "PNG", compress_level=1)
        return stream.getvalue()
    if values.size == max(values.shape, default=0):
        return values.tobytes()
    raise _Refused(f"an image is an array of {' x '.join(map(str, values.shape))}; files or RGB pixels are read")


def write_bin(file: Path, images: Sequence[bytes], same: Sequence[bool]) -> None:
    """A file that `read_bin` and the tools of the field read; Python 2 does not."""
    if len(images) != 2 * len(same):
        raise DataError(
            f"{file}: {counted(len(images), 'image')} cannot be {counted(len(same), 'pair')}; give two per pair"
        )
    with replacing(file) as temporary, temporary.open("wb") as stream:
        stream.write(b"\x80\x03](")
        for image in images:
            stream.write(b"B" + struct.pack("<I", len(image)) + image)
        stream.write(b"e](" + b"".join(b"\x88" if flag else b"\x89" for flag in same) + b"e\x86.")


class _Machine:
    """Executes instructions on a stack; any that is not known here ends it.

    What it makes of a file is about as large as the file: one that takes the same bytes for an array again and again is
    refused.
    """

    def __init__(self) -> None:
        self.room = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: mmap.mmap) -> Any:
        self.room = 4 * len(program)
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], program)):
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
                self._call()
            case "BUILD":
                self._build()
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
        if name not in _CALLED and name not in _NAMED:
            raise _Refused(f"it asks for {name.replace(' ', '.')!r}, which is not given to files")
        self.stack.append(_Name(name))

    def _call(self) -> None:
        function, arguments = self.stack[-2:]
        if not isinstance(function, _Name) or function not in _CALLED or not isinstance(arguments, tuple):
            raise _Refused("it calls something else than the making of bytes and arrays")
        made = _CALLED[function](*arguments)
        self._account(made)
        self.stack[-2:] = [made]

    def _build(self) -> None:
        target, state = self.stack[-2:]
        if not isinstance(target, _Array | _Kind):
            raise _Refused("it builds something else than an array")
        target.build(state)
        self._account(target)
        del self.stack[-1]

    def _account(self, made: Any) -> None:
        values = made.values if isinstance(made, _Array) else made
        self.room -= len(values) if isinstance(values, bytes) else getattr(values, "nbytes", 0)
        if self.room < 0:
            raise _Refused("it makes far more of its bytes than there are")


class _Name(str):
    """A name that a file may use, as opposed to text in it."""

    __slots__ = ()
