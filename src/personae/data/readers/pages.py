"""The sizes that the pages of a Parquet file declare, looked at before anything is decompressed.

Arrow sets as much memory aside for a page as its header asks for. The headers are Thrift's compact encoding, of which
this reads the two numbers that matter and steps over the rest.
"""

import mmap
from pathlib import Path
from typing import Any

from personae.errors import DataError

MAX_PAGE = 250_000_000
_MAX_PAGES = 2_000_000
_UNPACKED, _PACKED = 2, 3  # fields of a page's header
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8  # and the parts of it, of which a page has one; each begins with how many values
_VALUES = 1
_ENCODINGS = {_DATA: 2, _DATA_2: 4}  # where these say how values are written
_PREFIXED = 7  # as what differs from the value before: any number of values may repeat a whole page
_DEEPEST = 8


class _Malformed(Exception):
    """What is there is no header of a page."""


def check_pages(file: Path, metadata: Any) -> dict[str, int]:
    """Raise DataError where a page lies outside of the file or would not fit into memory.

    Gives for each column, by its path, how many bytes a row of it may take: the mean of its largest page, or the whole
    of what any number of rows may repeat, such as a dictionary.
    """
    weights: dict[str, int] = {}
    columns = (
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            pages = 0
            for column in columns:
                found, weight = _check_column(content, column)
                name, pages = column.path_in_schema, pages + found
                weights[name] = max(weights.get(name, 0), weight)
                if pages > _MAX_PAGES:
                    raise _Malformed(f"more than {_MAX_PAGES:,} pages")
        except (_Malformed, IndexError) as why:
            raise DataError(f"{file}: a page of it cannot be right ({why}); download it again") from why
    return weights


def _check_column(content: mmap.mmap, column: Any) -> tuple[int, int]:
    """How many pages a column of a row group has, and how many bytes a row of it may take."""
    first = column.dictionary_page_offset if column.has_dictionary_page else None
    place = min(column.data_page_offset, column.data_page_offset if first is None else first)
    end, pages, weight = place + column.total_compressed_size, 0, 0
    if not 0 <= place <= end <= len(content):
        raise _Malformed("it lies outside of the file")
    while place < end and pages <= _MAX_PAGES:
        sizes: dict[int, int] = {}
        parts: dict[int, dict[int, int]] = {}
        place = _step_over_struct(content, place, 0, sizes, parts)
        packed, unpacked = sizes.get(_PACKED, -1), sizes.get(_UNPACKED, -1)
        if packed < 0 or unpacked < 0 or place + packed > end:
            raise _Malformed("it is longer than its column")
        if max(packed, unpacked) > MAX_PAGE:
            raise _Malformed(f"it declares {unpacked:,} bytes, and more than {MAX_PAGE:,} are not read")
        repeated = _DICTIONARY in parts
        repeated |= any(parts.get(kind, {}).get(number) == _PREFIXED for kind, number in _ENCODINGS.items())
        values = parts.get(_DATA, parts.get(_DATA_2, {})).get(_VALUES, 0)
        weight = max(weight, unpacked if repeated else unpacked // max(1, values))
        place, pages = place + packed, pages + 1
    return pages, weight


def _step_over_struct(
    content: mmap.mmap,
    place: int,
    depth: int,
    numbers: dict[int, int] | None = None,
    parts: dict[int, dict[int, int]] | None = None,
) -> int:
    """The place behind a struct; whole numbers among its fields are put into `numbers`, those of structs in `parts`."""
    if depth > _DEEPEST:
        raise _Malformed("it is nested too deeply")
    identifier = 0
    while kind := content[place]:
        place += 1
        if kind >> 4:
            identifier += kind >> 4
        else:
            identifier, place = _zigzag(content, place)
        match kind & 15:
            case 1 | 2:  # true, false
                pass
            case 3:  # a byte
                place += 1
            case 4 | 5 | 6:  # whole numbers
                value, place = _zigzag(content, place)
                if numbers is not None:
                    numbers[identifier] = value
            case 7:  # a double
                place += 8
            case 8:  # bytes
                length, place = _varint(content, place)
                place += length
            case 12:
                inner: dict[int, int] = {}
                place = _step_over_struct(content, place, depth + 1, inner)
                if parts is not None:
                    parts[identifier] = inner
            case other:
                raise _Malformed(f"its header has a field of kind {other}")
    return place + 1


def _varint(content: mmap.mmap, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise _Malformed("a number in its header does not end")


def _zigzag(content: mmap.mmap, place: int) -> tuple[int, int]:
    value, place = _varint(content, place)
    return (value >> 1) ^ -(value & 1), place
