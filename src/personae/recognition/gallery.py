"""Who is known: people and the vectors of their faces, in one SQLite file that belongs to one model."""

import json
import os
import sqlite3
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from personae.errors import ConfigError, DataError, Interrupted
from personae.recognition.gallery_key import KEY_FILE, is_seal, key_file, known_key, made_key, seal
from personae.recognition.threshold import Threshold

APPLICATION = 0x70657273  # "pers", in the header of the file
VERSION = 2
MAX_WIDTH = 2**14
MAX_NAME = 200

_MAGIC = b"SQLite format 3\0"
_FACES = "SELECT name, vector FROM faces JOIN people ON person = people.id ORDER BY name, faces.id"
_HEADER = 100  # bytes; the version is at 60, the application at 68
_WAIT = 10.0  # seconds for another process to finish its transaction

_SCHEMA = (
    "CREATE TABLE gallery (model TEXT NOT NULL, width INTEGER NOT NULL, threshold TEXT,"
    " seal BLOB NOT NULL, faces_seal BLOB NOT NULL)",
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE faces (id INTEGER PRIMARY KEY, person INTEGER NOT NULL REFERENCES people ON DELETE CASCADE,"
    " vector BLOB NOT NULL CHECK (length(vector) = {bytes}), UNIQUE (person, vector))",
)


@dataclass(frozen=True)
class Everybody:
    """All vectors of a gallery [N, width], and whose each is, as a position in `names`."""

    names: tuple[str, ...]
    person: Tensor
    vectors: Tensor


class Gallery:
    """A gallery file, open. Vectors of length one are kept as float32, and never the images.

    Everything that changes it is one transaction. Who is removed is overwritten in the file, not merely unlinked.

    It is sealed with the key of whoever runs it (`gallery_key.py`): a threshold or a vector that something else has
    changed is noticed, when it is opened and whenever it is read. That it is an older copy of the file is not.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, model: str, width: int, key: bytes) -> None:
        self.path, self.model, self.width = path, model, width
        self._connection, self._key = connection, key

    @classmethod
    def create(cls, path: str | Path, model: str, width: int, threshold: Threshold | None = None) -> Self:
        """A new file for the vectors of the model with this digest; only its owner may read it."""
        path = Path(path)
        if not 1 <= width <= MAX_WIDTH:
            raise ConfigError(f"{path}: vectors of {width} numbers; a gallery keeps 1 to {MAX_WIDTH}")
        key = made_key()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise ConfigError(f"{path}: no gallery can be made here ({error.strerror}); choose another path") from error
        try:
            connection = _connect(path)
            with _transaction(path, connection):
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                for statement in _SCHEMA:
                    connection.execute(statement.format(bytes=4 * width))
                written = _written(threshold)
                seals = seal(key, model, width, written), seal(key)
                connection.execute("INSERT INTO gallery VALUES (?, ?, ?, ?, ?)", (model, width, written, *seals))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return cls(path, connection, model, width, key)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """A gallery that was made here; any other file, and one that has been tampered with, is refused."""
        path = Path(path)
        _check_header(path)
        with _reading(path):
            connection = _connect(path)
        try:
            key = known_key(path)
            with _reading(path):
                schema = [row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")]
                if _SCHEMA[0] not in schema:
                    raise sqlite3.DatabaseError("its tables are not those of a gallery")
                rows = connection.execute("SELECT model, width FROM gallery LIMIT 2").fetchall()
                if len(rows) != 1 or not isinstance(rows[0][0], str) or not isinstance(rows[0][1], int):
                    raise sqlite3.DatabaseError("it does not say whose vectors it keeps")
                model, width = rows[0]
                if sorted(schema) != sorted(statement.format(bytes=4 * width) for statement in _SCHEMA):
                    raise sqlite3.DatabaseError("its tables are not those of a gallery")
                if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise sqlite3.DatabaseError(str(found).splitlines()[-1])  # the first says which database
            gallery = cls(path, connection, model, width, key)
            _ = gallery.threshold, gallery.everybody()  # that they are as they were kept
        except BaseException:
            connection.close()
            raise
        return gallery

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def threshold(self) -> Threshold | None:
        *head, written, found = self._rows("SELECT model, width, threshold, seal FROM gallery")[0]
        self._require(found, *head, written)
        return None if written is None else Threshold(**json.loads(written))

    @threshold.setter
    def threshold(self, value: Threshold | None) -> None:
        written = _written(value)
        with _transaction(self.path, self._connection):
            found = seal(self._key, self.model, self.width, written)
            self._connection.execute("UPDATE gallery SET threshold = ?, seal = ?", (written, found))

    def people(self) -> dict[str, int]:
        """Everybody by name, with the number of their faces."""
        query = "SELECT name, count(faces.id) FROM people LEFT JOIN faces ON person = people.id GROUP BY people.id"
        return {str(name): int(count) for name, count in sorted(self._rows(query))}

    def add(self, name: str, vectors: Tensor) -> int:
        """Keep these faces of a person, known or new; gives how many of them were not there before."""
        return next(iter(self.add_all({name: vectors}).values()))

    def add_all(self, people: Mapping[str, Tensor]) -> dict[str, int]:
        """The same for several people: all of them, or none."""
        written = {
            checked_name(name): [row.numpy().astype("<f4").tobytes() for row in self._checked(vectors)]
            for name, vectors in people.items()
        }
        with self._changing():
            return {name: self._add(name, rows) for name, rows in written.items()}

    def _add(self, name: str, rows: list[bytes]) -> int:
        self._connection.execute("INSERT INTO people (name) VALUES (?) ON CONFLICT (name) DO NOTHING", (name,))
        (person,) = self._connection.execute("SELECT id FROM people WHERE name = ?", (name,)).fetchone()
        before = self._connection.total_changes
        self._connection.executemany(
            "INSERT INTO faces (person, vector) VALUES (?, ?) ON CONFLICT (person, vector) DO NOTHING",
            [(person, row) for row in rows],
        )
        return self._connection.total_changes - before

    def remove(self, name: str) -> int:
        """Erase a person with all faces; gives how many these were. Nothing of them is left in the file."""
        name = _plain(name)
        faces = self.people().get(name)
        if faces is None:
            raise ConfigError(f"{self.path}: nobody is called {name!r}")
        with self._changing():
            self._connection.execute("DELETE FROM people WHERE name = ?", (name,))
        with _reading(self.path):
            self._connection.execute("VACUUM")
        return faces

    def of(self, name: str) -> Tensor:
        """The vectors of one person."""
        everybody = self.everybody()
        if _plain(name) not in everybody.names:
            raise ConfigError(f"{self.path}: nobody is called {name!r}; see who is there with `personae gallery list`")
        return everybody.vectors[everybody.person == everybody.names.index(_plain(name))]

    def everybody(self) -> Everybody:
        rows = self._sealed_rows()
        names = tuple(dict.fromkeys(str(name) for name, _ in rows))
        place = {name: number for number, name in enumerate(names)}
        for name, vector in rows:
            if not isinstance(vector, bytes) or len(vector) != 4 * self.width:
                raise DataError(f"{self.path}: a face of {name!r} is damaged; remove that person and enrol them again")
        kept = np.frombuffer(b"".join(vector for _, vector in rows), dtype="<f4").reshape(-1, self.width)
        vectors = torch.from_numpy(kept.astype(np.float32))
        if not vectors.isfinite().all():
            raise DataError(f"{self.path}: it holds faces that are not finite; restore it from a copy")
        return Everybody(names, torch.tensor([place[str(name)] for name, _ in rows], dtype=torch.int64), vectors)

    def _sealed_rows(self) -> list[tuple[str, bytes]]:
        """Whose each vector is, as it was kept."""
        with _reading(self.path):
            self._connection.execute("SAVEPOINT reading")  # both as of the same moment
            try:
                rows = self._connection.execute(_FACES).fetchall()
                (found,) = self._connection.execute("SELECT faces_seal FROM gallery").fetchone()
            finally:
                self._connection.execute("RELEASE reading")
        self._require(found, *(part for row in rows for part in row))
        return rows

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction over what is as it was kept, and is sealed again."""
        with _transaction(self.path, self._connection):
            self._sealed_rows()
            yield
            rows = self._connection.execute(_FACES).fetchall()
            found = seal(self._key, *(part for row in rows for part in row))
            self._connection.execute("UPDATE gallery SET faces_seal = ?", (found,))

    def _require(self, found: object, *content: object) -> None:
        if not is_seal(found, self._key, *content):
            raise DataError(
                f"{self.path}: something else than personae has changed this gallery, or it was made with another key "
                f"than {key_file()}; restore it from a copy, or bring its key ({KEY_FILE})"
            )

    def _checked(self, vectors: Tensor) -> Tensor:
        if vectors.ndim != 2 or vectors.shape[1] != self.width or not len(vectors):
            raise DataError(
                f"{self.path}: keeps vectors of {self.width} numbers, and {list(vectors.shape)} came; use its model"
            )
        if not vectors.isfinite().all():
            raise DataError(f"{self.path}: the model gave values that are not finite; use one that has not diverged")
        return vectors.cpu().float()

    def _rows(self, query: str) -> list[Any]:
        with _reading(self.path):
            return self._connection.execute(query).fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    """Nothing in a file may run or grow beyond what a gallery needs, and nothing of it lands in temporary files."""
    connection = sqlite3.connect(path, timeout=_WAIT, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**20)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)  # VACUUM needs one
    for setting in (
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "foreign_keys = ON",
        "secure_delete = ON",
        "temp_store = MEMORY",
        "mmap_size = 0",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _check_header(path: Path) -> None:
    """Before SQLite sees the file."""
    if path.is_fifo():  # one would wait for whoever writes into it
        raise DataError(f"{path}: no gallery; give a file that `personae enroll` made")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); enrol somebody to make a gallery") from error
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(_MAGIC) or application != APPLICATION:
        raise DataError(f"{path}: no gallery; give a file that `personae enroll` made")
    if version != VERSION:
        raise DataError(f"{path}: a gallery of format {version}, and this version of personae reads {VERSION}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever SQLite says about the file, in one line that names it."""
    try:
        yield
    except UnicodeDecodeError as error:  # names in a damaged file are no text
        raise DataError(f"{path}: this gallery is damaged ({error.reason}); restore it from a copy") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise Interrupted(f"{path}: the disk is full; free some space and try again") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ConfigError(f"{path}: another process is changing this gallery; try again when it is done") from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise ConfigError(f"{path}: cannot be written ({error}); check its permissions") from error
        raise DataError(f"{path}: this gallery is damaged ({error}); restore it from a copy") from error


@contextmanager
def _transaction(path: Path, connection: sqlite3.Connection) -> Iterator[None]:
    with _reading(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def checked_name(name: str) -> str:
    """As it is kept."""
    plain = _plain(name)
    if not plain or len(plain) > MAX_NAME or not plain.isprintable():
        raise ConfigError(f"{plain[:MAX_NAME]!r} is not a valid name; give 1 to {MAX_NAME} printable characters")
    return plain


def _plain(name: str) -> str:
    """One spelling of what looks the same: file systems and keyboards compose accents differently."""
    return unicodedata.normalize("NFC", name).strip()


def _written(threshold: Threshold | None) -> str | None:
    return None if threshold is None else json.dumps(asdict(threshold))
