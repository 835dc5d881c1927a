"""The seal of a gallery: an HMAC under a key that lies elsewhere, so that whoever can write the file cannot make it."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from personae.errors import ConfigError
from personae.files import write_bytes

KEY_FILE = "PERSONAE_GALLERY_KEY"  # the variable that says where the key is
_BYTES = 32


def key_file() -> Path:
    """$PERSONAE_GALLERY_KEY, or `personae/gallery.key` in the user's configuration folder."""
    if chosen := os.environ.get(KEY_FILE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "personae" / "gallery.key"


def made_key() -> bytes:
    """The key of whoever runs this, made the first time."""
    path = key_file()
    if not path.exists():
        try:
            write_bytes(path, secrets.token_bytes(_BYTES), private=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: no key can be made here ({error.strerror}); choose it with {KEY_FILE}"
            ) from error
    return known_key(path)


def known_key(gallery: Path) -> bytes:
    path = key_file()
    try:
        found, key = path.stat(), path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{gallery}: its key is not here ({path}); bring it from where this was made, or name it in {KEY_FILE}"
        ) from error
    if found.st_mode & 0o007:
        raise ConfigError(f"{path}: others on this machine may use this key; chmod 600 {path}")
    if len(key) != _BYTES:
        raise ConfigError(f"{path}: this is not the key of a gallery; restore it from a copy")
    return key


def seal(key: bytes, *content: object) -> bytes:
    """Of these parts, in this order."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in content:
        data = part if isinstance(part, bytes) else repr(part).encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def is_seal(found: object, key: bytes, *content: object) -> bool:
    return isinstance(found, bytes) and hmac.compare_digest(found, seal(key, *content))
