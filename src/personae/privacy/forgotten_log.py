"""What a run was made to forget: a line each, chained to the line before it and signed by the operator.

Every line says who was forgotten, when, how, what was checked afterwards, and which models there were before and after.
It carries a digest of the line before it, the operator's public key (Ed25519) and a signature over all of this.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.errors import ConfigError, DataError
from personae.files import write_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOG = "forgotten.jsonl"
_NOT_INSTALLED = "the log of what was forgotten is signed with cryptography, which is not installed; "
_NOT_INSTALLED += "pip install 'personae[privacy]'"


@dataclass(frozen=True, kw_only=True)
class ForgottenEntry:
    """One line, without its seal."""

    when: str  # in UTC
    client: str
    person: str | None  # a digest of the name
    how: str
    verified: tuple[str, ...]  # what was checked, and found to be so
    membership: str  # what an attack could tell of the client before and after
    before: Mapping[str, str]  # models by file, with their digests
    after: Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    """A log that is whole."""

    entries: tuple[ForgottenEntry, ...]
    keys: tuple[str, ...]
    """The operators that signed it, by the fingerprints of their keys."""
    head: str
    """A digest of the last line: whoever has noted it can tell that no line was taken off the end."""


def read_log(run: Path) -> tuple[ForgottenEntry, ...]:
    """What a run was made to forget, for readers; nothing is checked."""
    path = run / LOG
    if not path.is_file():
        return ()
    return tuple(_entry(path, number, _parsed(path, number, line)) for number, line in _lines(path))


def append(path: Path, entry: ForgottenEntry, key: "Ed25519PrivateKey") -> None:
    """Add a line to a log that may not be there yet."""
    lines = [line for _, line in _lines(path)] if path.is_file() else []
    content = {**asdict(entry), "previous": _digest(lines[-1]) if lines else "", "key": _public(key)}
    content["signature"] = key.sign(_canonical(content)).hex()
    write_bytes(path, b"".join([*lines, json.dumps(content).encode() + b"\n"]))


def verify(run: Path) -> Checked:
    """That every line is as it was signed and follows the one before it."""
    path = run / LOG
    if not path.is_file():
        raise ConfigError(f"{run}: this run was made to forget nobody; there is no {LOG}")
    entries, keys, previous = [], dict[str, None](), ""
    for number, line in _lines(path):
        content = _parsed(path, number, line)
        entry = _entry(path, number, content)
        if content["previous"] != previous:
            raise DataError(f"{path}, line {number}: it does not follow the line before it; a line is missing or other")
        _require_signed(path, number, content)
        entries.append(entry)
        keys[fingerprint(content["key"])] = None
        previous = _digest(line)
    return Checked(tuple(entries), tuple(keys), previous)


# ------------------------------------------------------------------------------------------------------- the key


def default_key() -> Path:
    """Where the operator's key is, unless another one is named."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "personae" / "operator.key"


def operator_key(path: Path | None = None) -> "Ed25519PrivateKey":
    """The operator's key; the usual one is made where there is none yet."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ConfigError(_NOT_INSTALLED) from error
    if path is not None and not path.is_file():
        raise ConfigError(f"--key {path}: there is no such file; without --key, one is made at {default_key()}")
    place = path or default_key()
    if not place.is_file():
        made = Ed25519PrivateKey.generate()
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write_bytes(place, made.private_bytes(*form), private=True)
        return made
    if place.stat().st_mode & 0o077:
        raise ConfigError(f"{place}: others on this machine may read this key; chmod 600 {place}")
    try:
        key = serialization.load_pem_private_key(place.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{place}: not a private key without a password, in PEM ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{place}: this is not an Ed25519 key; make one with: openssl genpkey -algorithm ed25519")
    return key


def fingerprint(key: str) -> str:
    """How people call a public key."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()[:32]


def _public(key: "Ed25519PrivateKey") -> str:
    return key.public_key().public_bytes_raw().hex()


def _require_signed(path: Path, number: int, content: Mapping[str, Any]) -> None:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ConfigError(_NOT_INSTALLED) from error
    signed = {name: value for name, value in content.items() if name != "signature"}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(content["key"]))
        key.verify(bytes.fromhex(content["signature"]), _canonical(signed))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise DataError(f"{path}, line {number}: it is not what was signed; restore the file from a copy") from error


# ----------------------------------------------------------------------------------------------------- the lines


def _lines(path: Path) -> list[tuple[int, bytes]]:
    return list(enumerate(path.read_bytes().splitlines(keepends=True), start=1))


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise TypeError("it is no table")
        for needed in ("previous", "key", "signature"):
            if needed not in content:
                raise ValueError(f"it has no {needed!r}")
        return content
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}, line {number}, cannot be read: {error}; restore the file from a copy") from error


def _entry(path: Path, number: int, content: Mapping[str, Any]) -> ForgottenEntry:
    rest = {name: value for name, value in content.items() if name not in ("previous", "key", "signature")}
    try:
        return ForgottenEntry(**{**rest, "verified": tuple(rest["verified"])})
    except (TypeError, KeyError) as error:
        raise DataError(f"{path}, line {number}, cannot be read: {error}; restore the file from a copy") from error


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
