"""Where clients have their faces, keys and homes: looked at before anything large is imported."""

from pathlib import Path

from personae.errors import ConfigError, DataError


def require_faces(data: Path) -> None:
    if not data.exists():
        raise DataError(f"{data}: there are no faces here; give a folder with one folder per identity, or a zip")


def members_in(certs: Path, data: Path, home: Path) -> dict[str, tuple[Path, Path, Path]]:
    """Client -> its keys, faces and home, in folders with an entry for each, as `certs` and `deal` write them."""
    names = sorted(path.parent.name for path in certs.glob("*/key"))
    if not names:
        raise ConfigError(f"{certs}: no folder here has the key of a client; make them with personae certs")
    found = {name: _faces_of(name, data) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(f"{data}: nothing here is called {missing[0]}, whose key is in {certs}; take that folder out")
    return {name: (certs / name, path, home / name) for name, path in found.items() if path is not None}


def _faces_of(name: str, data: Path) -> Path | None:
    """A folder of this name, or a file with any suffix."""
    if (data / name).exists():
        return data / name
    return next(iter(sorted(path for path in data.glob("*") if path.stem == name)), None)
