"""How this process deals with memory that it has freed."""

import ctypes

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # names of glibc's <malloc.h>
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; says whether the C library can be told so (glibc can).

    Maps of a training step are tens of megabytes: glibc takes each from the system and gives it back, and the system
    clears it every time, page by page. Peak memory is the same.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    return tell is not None and bool(tell(MMAP_MAX, 0) and tell(TRIM_THRESHOLD, NEVER))
