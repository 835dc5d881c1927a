"""Parquet as Hugging Face's `datasets` writes it: one file, or a folder of shards, with a column of encoded images and
one that says who is on them; needs the extra `parquet`."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.data.images import MAX_BYTES, ImageError
from personae.data.readers.listing import (
    SPLITS,
    Fetch,
    Listing,
    in_natural_order,
    refuse_outside_link,
    typed_columns,
)
from personae.data.readers.pages import check_pages
from personae.errors import ConfigError, DataError

SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "face", "picture")
_LABELS = ("identity", "label", "labels", "person", "person_id", "celeb_id", "subject", "id", "class", "target", "cls")
_ROWS, _SCALARS = 64, 10_000  # decoded at once
_FEW, _LEAST = 10_000, 50  # rows that are not looked at; bytes that each of more must have, since a face has more
_AT_ONCE = 100_000_000  # bytes that these may take
_LONGEST = 10_000  # characters of a cell that is no image
_MAX_THRIFT = 50_000_000


def is_tables(path: Path) -> bool:
    """A Parquet file, or a folder with some."""
    if path.is_dir():
        return bool(_files(path))
    if path.suffix.lower() == SUFFIX:
        return True
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def read_tables(path: Path) -> Listing:
    shards = [_open(file, path) for file in _files(path)]
    names = [shard.names for shard in shards]
    odd = next((shard for shard in shards if shard.names != names[0]), None)
    if odd is not None:
        raise DataError(f"{odd.file}: has the columns {', '.join(odd.names)}, and the first file {', '.join(names[0])}")
    table: dict[str, list[str]] = {}
    for shard in shards:
        for name, values in shard.scalars().items():
            table.setdefault(name, []).extend(values)
    label = shards[0].label
    people = table.pop(label)
    if not people:
        raise DataError(f"{path}: its tables have no rows; give a file with faces")
    if "" in people:
        raise DataError(f"{path}: the column {label!r} is empty in row {people.index('')}; give every row an identity")
    splits = [_split(shard.file, path) for shard in shards]
    if "split" not in table and any(splits):
        table["split"] = [split for split, shard in zip(splits, shards, strict=True) for _ in range(shard.rows)]
    ends = np.cumsum([shard.rows for shard in shards])

    @contextmanager
    def opened() -> Iterator[Fetch]:
        readers = [_Reader(shard) for shard in shards]

        def fetch(position: int) -> bytes:
            number = int(np.searchsorted(ends, position, side="right"))
            return readers[number].fetch(position - int(ends[number]) + shards[number].rows)

        yield fetch

    status = [shard.file.stat() for shard in shards]
    return Listing(
        source=path,
        paths=tuple(f"{shard.name}/{row}" for shard in shards for row in range(shard.rows)),
        labels=tuple(people),
        stamp=repr([(each.st_size, each.st_mtime_ns) for each in status]),
        opened=opened,
        columns=typed_columns(table, path),
        upright=True,
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = (file for folder in ("", "data", *SPLITS) for file in (path / folder).glob(f"*{SUFFIX}"))
    names = in_natural_order(str(file.relative_to(path)) for file in found)
    for name in names:
        refuse_outside_link(path / name, path, str(path))
    return [path / name for name in names]


def _split(file: Path, root: Path) -> str:
    """`train-00000-of-00002.parquet`, or a file in a folder `train`."""
    inside = file.relative_to(root).parts if file != root else (file.name,)
    words = [*inside[:-1], inside[-1].removesuffix(SUFFIX).split("-")[0]]
    return next((SPLITS[word] for word in words if word in SPLITS), "")


@dataclass(frozen=True, eq=False)
class _Shard:
    """One file: which columns matter, and what they hold."""

    file: Path
    name: str
    parquet: Any
    image: str
    content: str
    """The path of the column with the bytes of images; whatever stands beside these is not read."""
    label: str
    classes: Sequence[str] | None
    """What whole numbers in the column of labels stand for."""
    others: tuple[str, ...]
    weights: Mapping[str, int]
    """Bytes that a row of each column may take, by the path of the column."""

    def at_once(self, most: int, columns: Iterable[str]) -> int:
        """How many rows of these columns fit into memory."""
        return max(1, min(most, _AT_ONCE // max(1, sum(self.weights.get(name, 0) for name in columns))))

    @property
    def rows(self) -> int:
        return int(self.parquet.metadata.num_rows)

    @property
    def names(self) -> list[str]:
        return [self.image, self.label, *self.others]

    def scalars(self) -> dict[str, list[str]]:
        """Every column but the images, as text."""
        found: dict[str, list[str]] = {name: [] for name in (self.label, *self.others)}
        with _explained(self.file):
            for batch in self.parquet.iter_batches(self.at_once(_SCALARS, found), columns=list(found)):
                for name, values in batch.to_pydict().items():
                    texts = ["" if value is None else str(value) for value in values]
                    if max(map(len, texts), default=0) > _LONGEST:
                        raise DataError(
                            f"{self.file}: the column {name!r} has a cell of more than {_LONGEST:,} characters; "
                            "leave it out"
                        )
                    found[name] += texts
        if any(len(values) != self.rows for values in found.values()):
            raise DataError(f"{self.file}: declares {self.rows} rows and has others; download it again")
        if self.classes is not None:
            found[self.label] = [self._class(value) for value in found[self.label]]
        return found

    def _class(self, number: str) -> str:
        assert self.classes is not None
        if not number.isdecimal() or int(number) >= len(self.classes):
            raise DataError(f"{self.file}: label {number} has no name among the {len(self.classes)} that are given")
        return self.classes[int(number)]


@dataclass(eq=False)
class _Reader:
    """Images by row: those of a few rows are held, and rows in order are read once."""

    shard: _Shard
    group: int = -1
    first: int = 0
    held: list[Any] = field(default_factory=list)
    batches: Iterator[Any] = field(default_factory=lambda: iter(()))

    def fetch(self, row: int) -> bytes:
        try:
            with _explained(self.shard.file):
                self._seek(row)
        except DataError as why:
            raise ImageError(f"its part of {self.shard.file.name} cannot be read") from why
        cell = self.held[row - self.first]
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if content is None:
            raise ImageError("its row holds no bytes of an image")
        if len(content) > MAX_BYTES:
            raise ImageError(f"more than {MAX_BYTES:,} bytes")
        return bytes(content)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Behind which row each group of rows ends."""
        metadata = self.shard.parquet.metadata
        return np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])

    def _seek(self, row: int) -> None:
        group = int(np.searchsorted(self._ends, row, side="right"))
        if group != self.group or row < self.first:
            self.group, self.held = group, []
            self.first = int(self._ends[group - 1]) if group else 0
            rows = self.shard.at_once(_ROWS, [self.shard.content])
            self.batches = self.shard.parquet.iter_batches(rows, [group], [self.shard.content])
        while row >= self.first + len(self.held):
            self.first, self.held = self.first + len(self.held), []
            batch = next(self.batches, None)
            if batch is None:
                raise DataError(f"{self.shard.file}: has fewer rows than it declares")
            self.held = batch.column(0).to_pylist()


def _open(file: Path, root: Path) -> _Shard:
    parquet = _parquet()
    with _explained(file):
        table = parquet.ParquetFile(
            file,
            memory_map=True,
            pre_buffer=False,
            thrift_string_size_limit=_MAX_THRIFT,
            thrift_container_size_limit=_MAX_THRIFT,
        )
        schema = table.schema_arrow
        weights = check_pages(file, table.metadata)
    rows = table.metadata.num_rows
    if rows > _FEW and rows * _LEAST > file.stat().st_size:
        raise DataError(f"{file}: declares {rows:,} rows, far more than it has images in its bytes; download it again")
    features = _features(schema)
    image = _choose(
        file, schema, "images", _IMAGES, [item for item in schema if _holds_images(item)], features, "Image"
    )
    others = [item for item in schema if item.name != image and _is_scalar(item.type)]
    label = _choose(file, schema, "identities", _LABELS, others, features, "ClassLabel")
    return _Shard(
        file=file,
        name=str(file.relative_to(root)) if file != root else file.name,
        parquet=table,
        image=image,
        content=f"{image}.bytes" if _types().is_struct(schema.field(image).type) else image,
        label=label,
        classes=features.get(label, {}).get("names"),
        others=tuple(item.name for item in others if item.name != label),
        weights=weights,
    )


def _choose(
    file: Path, schema: Any, what: str, usual: Sequence[str], fitting: list[Any], features: dict[str, Any], kind: str
) -> str:
    """The column that the metadata call so, or has a usual name, or is the only one of its type."""
    names = [item.name for item in fitting]
    declared = [name for name in names if features.get(name, {}).get("_type") == kind]
    named = [name for word in usual for name in names if name.lower() == word]
    for candidates in (declared, named, names if len(names) == 1 else []):
        if candidates:
            return str(candidates[0])
    there = ", ".join(schema.names)
    raise DataError(f"{file}: no column of {what} among {there}; name it {usual[0]!r} ({', '.join(usual[1:])})")


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` wrote of the columns: which hold images, and the names behind class labels."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: item for name, item in features.items() if isinstance(item, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _holds_images(item: Any) -> bool:
    types, kind = _types(), item.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_scalar(kind: Any) -> bool:
    types = _types()
    tests = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_floating)
    return any(test(kind) for test in tests)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{file}: not a readable Parquet file ({why[:200]}); download it again") from error


def _parquet() -> Any:
    try:
        import pyarrow.parquet  # an extra, and slow to import
    except ImportError as error:
        raise ConfigError('Parquet files need pyarrow; install it with: pip install "personae[parquet]"') from error
    return pyarrow.parquet


def _types() -> Any:
    import pyarrow

    return pyarrow.types
