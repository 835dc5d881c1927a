"""Secrets of an experiment, in files that are there to be read."""

import hashlib
from functools import lru_cache

MARK = "scrypt:"


def is_concealed(secret: str) -> bool:
    return secret.startswith(MARK)


@lru_cache
def concealed(secret: str) -> str:
    """What stands for a secret: the same for the same one, and slow to guess it from. What is concealed stays so."""
    if is_concealed(secret):
        return secret
    return MARK + hashlib.scrypt(secret.encode(), salt=b"personae", n=1 << 14, r=8, p=1, dklen=16).hex()
