"""What can go wrong, as one clear line and an exit code that scripts can rely on."""

import errno
from collections.abc import Mapping
from typing import ClassVar


class PersonaeError(Exception):
    """A problem that a user can act on: the message names the file, the key or the client, and says what to do."""

    exit_code: ClassVar[int] = 1


class ConfigError(PersonaeError):
    """A wrong option, an invalid experiment file, or a run directory that belongs to another experiment."""

    exit_code = 2


class DataError(PersonaeError):
    """Faces that are missing, unreadable, inconsistent or too few."""

    exit_code = 3


class Unreadable(DataError):
    """An image that cannot be decoded."""


class Diverged(PersonaeError):
    """Training produced values that are not finite."""

    exit_code = 4


class Refused(PersonaeError):
    """A client was asked for something that it does not do."""

    exit_code = 2


class Interrupted(PersonaeError):
    """The run stopped half-way (a signal, a full disk) and can be resumed."""

    exit_code = 5


class Unkept(Interrupted):
    """What a client keeps cannot be written, or not be read again; once that is repaired, the run can be resumed."""


class OutOfTime(Interrupted):
    """The time that was given is spent; what is done is kept, and the work can be resumed."""


class QuorumLost(PersonaeError):
    """Too few clients returned an acceptable update. By client, why an update was rejected, or did not come."""

    exit_code = 6

    def __init__(
        self, line: str, rejected: Mapping[str, str] | None = None, failed: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(line)
        self.rejected, self.failed = dict(rejected or {}), dict(failed or {})


def lacks_space(error: BaseException) -> bool:
    """Whether the disk is full: safetensors says so with an error of its own."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return type(error).__name__ == "SafetensorError" and f"(os error {errno.ENOSPC})" in str(error)


def lacks_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch says so with errors of its own, and is not imported for it."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    device = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)  # PyTorch's, of a GPU
    return told or device or isinstance(error, MemoryError)


_NO_MEMORY = ("can't allocate memory", "out of memory")


NO_MATCH = 7
"""The exit code of a comparison that went well and found nobody: no error, and not to be taken for one."""
