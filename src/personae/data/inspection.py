"""A set of faces before anybody trains on it: how much there is, of whom, what is odd, and what it is good for."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.images import ImageError, decode, size_of
from personae.data.packs import check_pack, is_pack, open_pack
from personae.data.pixels import Pixels
from personae.data.readers import recognise
from personae.data.readers.listing import Listing
from personae.progress import Progress, silent

ALIKE = 0.995
"""Correlation of thumbnails from which two images count as nearly the same."""
SHOWN = 10  # of a long list of examples

_THUMBNAIL = 16
_BLOCK = 1024
_COMPARED = 30_000  # images; the comparison of all with all grows with the square
_QUANTILES = {"least": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "most": 1.0}
_STYLES = (
    (r"n\d{6}", "VGGFace2"),
    (r"(African|Asian|Caucasian|Indian)/.+", "BUPT-Balancedface and RFW"),
    (r"\d{7}", "CASIA-WebFace"),
    (r"[A-Z][^/\s]*_[^/\s]+", "LFW"),
)


@dataclass(frozen=True)
class Advice:
    """A recipe, the partition it would have on these faces, and why this one."""

    recipe: str
    partition: str
    because: str


@dataclass(frozen=True)
class Inspection:
    """Of `images` that are listed, `looked_at` were decoded; what is said of content is said of these."""

    path: str
    layout: str
    images: int
    identities: int
    looked_at: int
    per_identity: dict[str, float]
    """Quantiles of the images an identity has."""
    histogram: list[tuple[int, int, int]]
    """From, to, and how many identities have so many images."""
    sizes: dict[str, int]
    """Images by width x height, the most frequent first."""
    attributes: list[str]
    domains: dict[str, int]
    splits: dict[str, int]
    unreadable: list[tuple[str, str]]
    repeated: int
    """Images that are the same file as another of their identity."""
    shared: list[tuple[str, str]]
    """Pairs of identical files under two identities."""
    alike: list[tuple[str, str, float]] | None
    """Pairs of nearly the same image under two identities; None where these were too many to compare."""
    problems: list[str]
    advice: Advice | None


def inspect_faces(path: Path, *, sample: int | None = None, progress: Progress = silent) -> Inspection:
    """Look at the faces at `path`: at all of them, or only into so many, evenly spread over the set."""
    path = Path(path).expanduser()
    layout, source = _packed(path, progress) if is_pack(path) else _listed(path)
    listing = source.listing
    chosen = _spread(len(listing.paths), sample)
    seen = _look(source, chosen, progress)
    counts = np.array(sorted(Counter(listing.labels).values()))
    columns = listing.columns
    shared, repeated = _identical(listing, seen)
    alike = _nearly_identical(listing, seen, progress)
    domains, splits = (_counted(columns[name]) if name in columns else {} for name in ("domain", "split"))
    attributes = sorted(name for name, values in columns.items() if values.dtype == np.bool_)
    return Inspection(
        path=str(path),
        layout=layout + _style(layout, listing),
        images=len(listing.paths),
        identities=len(counts),
        looked_at=len(chosen),
        per_identity={name: float(np.quantile(counts, at)) for name, at in _QUANTILES.items()},
        histogram=_histogram(counts),
        sizes=dict(Counter(f"{width} x {height}" for height, width in seen.sizes).most_common()),
        attributes=attributes,
        domains=domains,
        splits=splits,
        unreadable=[(listing.paths[position], why) for position, why in seen.unreadable],
        repeated=repeated,
        shared=[(listing.paths[one], listing.paths[other]) for one, other in shared],
        alike=None if alike is None else [(listing.paths[a], listing.paths[b], score) for a, b, score in alike],
        problems=_problems(listing, counts, seen, repeated, shared, alike),
        advice=_advice(counts, attributes, domains),
    )


@dataclass(frozen=True, eq=False)
class _Source:
    """A listing, and how one of its images is looked at: its digest, its size and a small version of it."""

    listing: Listing
    look: Callable[[Callable[[int], bytes], int], tuple[bytes, tuple[int, int], Pixels]]


@dataclass(frozen=True, eq=False)
class _Seen:
    """What was found in the images that could be decoded."""

    positions: NDArray[np.int64]
    digests: list[bytes]
    sizes: list[tuple[int, int]]
    thumbnails: NDArray[np.float32]
    unreadable: list[tuple[int, str]]


def _listed(path: Path) -> tuple[str, _Source]:
    layout, listing = recognise(path)

    def look(fetch: Callable[[int], bytes], position: int) -> tuple[bytes, tuple[int, int], Pixels]:
        encoded = fetch(position)
        small = decode(encoded, _THUMBNAIL, _THUMBNAIL, upright=listing.upright)
        return _digest(encoded), size_of(encoded), small

    return layout, _Source(listing, look)


def _packed(path: Path, progress: Progress) -> tuple[str, _Source]:
    check_pack(path, progress)
    faces = open_pack(path)

    @contextmanager
    def opened() -> Iterator[Callable[[int], bytes]]:
        yield lambda position: faces.images(np.array([position])).tobytes()

    def look(fetch: Callable[[int], bytes], position: int) -> tuple[bytes, tuple[int, int], Pixels]:
        pixels = faces.images(np.array([position]))[0]
        rows, columns = (np.linspace(0, side, _THUMBNAIL, endpoint=False).astype(int) for side in faces.size)
        summed = np.add.reduceat(np.add.reduceat(pixels.astype(np.float64), rows, axis=0), columns, axis=1)
        return _digest(fetch(position)), faces.size, summed / (pixels.size / summed.size)

    listing = Listing(
        source=path,
        paths=tuple(map(str, faces.columns["path"].tolist())),
        labels=tuple(faces.identities[code] for code in faces.identity),
        stamp="",
        opened=opened,
        columns={name: values for name, values in faces.columns.items() if name != "path"},
    )
    return "pack", _Source(listing, look)


def _spread(count: int, sample: int | None) -> NDArray[np.int64]:
    wanted = count if sample is None else min(count, sample)
    return np.linspace(0, count, wanted, endpoint=False).astype(np.int64)


def _look(source: _Source, chosen: NDArray[np.int64], progress: Progress) -> _Seen:
    positions: list[int] = []
    digests: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    unreadable: list[tuple[int, str]] = []
    thumbnails = np.empty((len(chosen), _THUMBNAIL**2), dtype=np.float32)
    with source.listing.opened() as fetch, progress("looking at images", len(chosen), "images") as advance:
        for position in chosen.tolist():
            try:
                digest, size, small = source.look(fetch, position)
                thumbnails[len(positions)] = small.mean(axis=2, dtype=np.float32).ravel()
                positions.append(position)
                digests.append(digest)
                sizes.append(size)
            except ImageError as why:
                unreadable.append((position, str(why)))
            advance(1)
    return _Seen(
        np.array(positions, dtype=np.int64), digests, sizes, _normalised(thumbnails[: len(positions)]), unreadable
    )


def _normalised(thumbnails: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without brightness and contrast; a blank image is like no other."""
    centred = thumbnails - thumbnails.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 1e-3)
    return scaled


def _identical(listing: Listing, seen: _Seen) -> tuple[list[tuple[int, int]], int]:
    """Pairs of files that are the same under two identities, and how many are repeated within one."""
    first: dict[bytes, int] = {}
    shared, repeated = [], 0
    for position, digest in zip(seen.positions.tolist(), seen.digests, strict=True):
        other = first.setdefault(digest, position)
        if listing.labels[other] != listing.labels[position]:
            shared.append((other, position))
        elif other != position:
            repeated += 1
    return shared, repeated


def _nearly_identical(listing: Listing, seen: _Seen, progress: Progress) -> list[tuple[int, int, float]] | None:
    """Pairs of different files under two identities whose thumbnails correlate; the most alike first."""
    count = len(seen.positions)
    if count > _COMPARED:
        return None
    people = np.unique([listing.labels[position] for position in seen.positions.tolist()], return_inverse=True)[1]
    files = np.unique(np.array(seen.digests, dtype="S16"), return_inverse=True)[1] if count else people
    pairs = []
    with progress("comparing images", count, "images") as advance:
        for start in range(0, count, _BLOCK):
            scores = seen.thumbnails[start : start + _BLOCK] @ seen.thumbnails[start:].T
            for row, column in zip(*np.nonzero(scores >= ALIKE), strict=True):
                one, other = start + int(row), start + int(column)
                if one < other and people[one] != people[other] and files[one] != files[other]:
                    pairs.append((int(seen.positions[one]), int(seen.positions[other]), float(scores[row, column])))
            advance(len(scores))
    return sorted(pairs, key=lambda pair: (-pair[2], pair))


def _problems(
    listing: Listing,
    counts: NDArray[np.int64],
    seen: _Seen,
    repeated: int,
    shared: Sequence[object],
    alike: Sequence[object] | None,
) -> list[str]:
    lonely, few = int((counts == 1).sum()), len(counts)
    gaps = _gaps(set(listing.labels))
    kinds = Counter(seen.sizes)
    checks = {
        f"images that cannot be used: {len(seen.unreadable)}; skip_unreadable leaves them out": seen.unreadable,
        f"files under two identities: {len(shared)}; one of the labels is wrong": shared,
        f"pairs under two identities that look nearly the same: {len(alike or ())}; is it one person?": alike,
        f"files repeated under their identity: {repeated}": repeated,
        f"identities with a single image: {lonely} of {few}; it cannot be split, drop_small leaves them out": lonely,
        f"identities are few: {few}; rates and accuracies will have wide intervals": few < 50,
        f"labels are numbers with gaps: {len(gaps)} between {_ends(listing)}, such as {_some(gaps)}": gaps,
        f"sizes: {len(kinds)}; images are resampled, and if they are no crops, align them": len(kinds) > 1,
        f"images are more than {_COMPARED:,} and not compared with each other; use --sample": alike is None,
    }
    return [text for text, holds in checks.items() if holds]


def _gaps(labels: set[str]) -> list[int]:
    """Numbers between the least and the largest label that no image has; none where labels are names."""
    if not all(label.isdecimal() and len(label) < 10 for label in labels):
        return []
    numbers = np.array(sorted(map(int, labels)))
    holes = numbers[-1] - numbers[0] + 1 - len(numbers)
    if holes > 10 * len(numbers):  # these are no numbers of a count
        return []
    missing: list[int] = np.setdiff1d(np.arange(numbers[0], numbers[-1] + 1), numbers).tolist()
    return missing


def _ends(listing: Listing) -> str:
    numbers = sorted(int(label) for label in set(listing.labels) if label.isdecimal())
    return f"{numbers[0]} and {numbers[-1]}" if numbers else ""


def _some(gaps: Sequence[int]) -> str:
    return ", ".join(map(str, gaps[:3]))


def _advice(counts: NDArray[np.int64], attributes: Sequence[str], domains: dict[str, int]) -> Advice | None:
    """The recipe that these faces are most like; None where nobody could train on them."""
    usable = int((counts >= 2).sum())
    if usable < 2:
        return None
    if len(domains) > 1:
        largest = max(domains, key=lambda name: domains[name])
        return Advice(
            "recipes/unsupervised",
            f'by = "domain", source = "{largest}"',
            f"there are {len(domains)} domains: the largest as the labelled source, the others as targets",
        )
    if attributes:
        return Advice(
            "recipes/hf_maml",
            'by = "attributes", drop_small = true',
            f"there are {len(attributes)} attributes, so that clients can differ in looks",
        )
    if usable < 40:
        return Advice("recipes/fedface", 'by = "one-identity", drop_small = true', f"{usable} identities, one a client")
    clients = int(np.clip(usable // 10, 2, 40))
    recipe = "recipes/fedgc" if usable >= 1000 else "recipes/baselines"
    return Advice(
        recipe,
        f'by = "equal", clients = {clients}, drop_small = true',
        f"{usable} identities with two images or more are enough for {clients} clients with several each",
    )


def _style(layout: str, listing: Listing) -> str:
    """Whose names these are like; of a folder per identity only, since other layouts name themselves."""
    people = set(listing.labels)
    fitting = (name for pattern, name in _STYLES if all(re.fullmatch(pattern, person) for person in people))
    name = next(fitting, None) if layout == "a folder per identity" else None
    return f", with names like those of {name}" if name else ""


def _histogram(counts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Identities by images: 1, 2 to 3, 4 to 7, 8 to 15 and so on."""
    powers = np.floor(np.log2(counts)).astype(int)
    return [(2**power, 2 ** (power + 1) - 1, int((powers == power).sum())) for power in range(powers.max() + 1)]


def _counted(values: NDArray[np.str_]) -> dict[str, int]:
    return dict(sorted(Counter(values.tolist()).items()))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
