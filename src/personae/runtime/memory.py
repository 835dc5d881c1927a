"""How this process deals with memory that it has freed."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # names of glibc's <malloc.h>
NEVER = 2**31 - 1
LARGE = 1 << 20  # bytes of a block that goes back to the system when it is freed
GIVING_BACK = {f"MALLOC_{name}_THRESHOLD_": str(LARGE) for name in ("MMAP", "TRIM")}
"""The environment of a process that does as `give_back_freed_memory`."""


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; says whether the C library can be told so (glibc can).

    Maps of a training step are tens of megabytes: glibc takes each from the system and gives it back, and the system
    clears it every time, page by page. Peak memory is the same.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    return tell is not None and bool(tell(MMAP_MAX, 0) and tell(TRIM_THRESHOLD, NEVER))


def give_back_freed_memory() -> bool:
    """Let large blocks go back to the system when they are freed; says whether the C library can be told so.

    glibc raises its limit to the largest block that was ever freed. Messages of megabytes then lie between small
    objects that last, and their memory stays with the process: the more clients, the more of it.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    return tell is not None and bool(tell(MMAP_THRESHOLD, LARGE) and tell(TRIM_THRESHOLD, LARGE))
