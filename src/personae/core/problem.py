"""The closed list of what a client may say about a failure."""

from enum import Enum


class Problem(Enum):
    """Why a client could not do its work. The value crosses; the words are the reader's own."""

    DIVERGED = "diverged"
    UNREADABLE = "unreadable"
    DATA = "data"
    CONFIGURATION = "configuration"
    REQUEST = "request"
    REFUSED = "refused"
    UNDECLARED = "undeclared"
    UNWRITABLE = "unwritable"
    TOO_LARGE = "too-large"
    MEMORY = "memory"
    DISK_FULL = "disk-full"
    UNKEPT = "unkept"
    INTERRUPTED = "interrupted"
    INTERNAL = "internal"

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Problem.DIVERGED: "its training diverged; lower lr or set clip_norm",
    Problem.UNREADABLE: "one of its images, or another of its files, cannot be read",
    Problem.DATA: "its faces are missing, too few or damaged",
    Problem.CONFIGURATION: "it cannot carry out this experiment as it is set up",
    Problem.REQUEST: "it did not understand the request; all machines should have the same version of personae",
    Problem.REFUSED: "it was asked for something that it does not do",
    Problem.UNDECLARED: "it was about to send something that the algorithm does not declare",
    Problem.UNWRITABLE: "its answer cannot be written in the coding of this run",
    Problem.TOO_LARGE: "its answer is larger than the server takes",
    Problem.MEMORY: "its memory was not enough",
    Problem.DISK_FULL: "its disk is full",
    Problem.UNKEPT: "what it keeps from round to round cannot be written, or not be read again",
    Problem.INTERRUPTED: "it was stopped in the middle of its work",
    Problem.INTERNAL: "its program failed",
}
