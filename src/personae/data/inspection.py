"""A set of faces before anybody trains on it: how much there is, of whom, what is odd, and what it is good for."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.data.advice import Advice, to_cluster, to_evaluate, to_train
from personae.data.duplicates import COMPARED, identical, nearly_identical
from personae.data.images import Header
from personae.data.levels import Level
from personae.data.looking import Seen, listed, look_into, packed
from personae.data.packs import is_pack
from personae.data.readers import recognise
from personae.data.readers.folders import has_images_alone
from personae.data.readers.listing import Listing
from personae.data.readers.naming import benchmarks_at
from personae.progress import Progress, silent

_ODD_SIZE, _ODD_SHAPE = 4, 3  # so many times smaller or larger than the others; so many times longer than wide
_QUANTILES = {"least": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "most": 1.0}
_STYLES = (
    (r"n\d{6}", "VGGFace2"),
    (r"(African|Asian|Caucasian|Indian)/.+", "BUPT-Balancedface and RFW"),
    (r"\d{7}", "CASIA-WebFace"),
    (r"[A-Z][^/\s]*_[^/\s]+", "LFW"),
)


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
    odd_sizes: list[tuple[str, str]]
    """Images much smaller, larger or longer than the others."""
    formats: dict[str, int]
    colours: dict[str, int]
    turned: int
    """Photographs whose camera says that they are to be turned."""
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
    faults: list[str]
    """What has to be put right before anybody can use the set."""
    problems: list[str]
    remarks: list[str]
    """How the set was read where that is not obvious, and what of it was not."""
    advice: Advice | None


def inspect_faces(
    path: Path,
    *,
    layout: str | None = None,
    identity_level: Level | None = None,
    unlabelled: bool = False,
    sample: int | None = None,
    progress: Progress = silent,
) -> Inspection:
    """Look at the faces at `path`: at all of them, or only into so many, evenly spread over the set.

    `layout` names the benchmark where a folder has the lists of several, `identity_level` which folders are people.
    A folder with images and no folders in it is `unlabelled`, whether one says so or not.
    """
    path = Path(path).expanduser()
    if is_pack(path):
        name, source = "pack", packed(path, progress)
    else:
        unlabelled = unlabelled or has_images_alone(path)
        name, listing = recognise(path, layout, unlabelled=unlabelled, identity_level=identity_level)
        source = listed(listing)
    seen = look_into(source, sample, progress)
    listing, columns = source.listing, source.listing.columns
    counts = np.array(sorted(Counter(listing.labels).values()))
    shared, repeated = identical(seen.digests, seen.people)
    alike = nearly_identical(seen.thumbnails, seen.digests, seen.people, progress)
    domains, splits = (_counted(columns[name]) if name in columns else {} for name in ("domain", "split"))
    return Inspection(
        path=str(path),
        layout=name + _style(name, listing),
        images=len(listing.paths),
        identities=len(counts),
        looked_at=seen.looked_at,
        per_identity={name: float(np.quantile(counts, at)) for name, at in _QUANTILES.items()} if len(counts) else {},
        histogram=_histogram(counts) if len(counts) else [],
        sizes=dict(Counter(map(_size, seen.headers)).most_common()),
        odd_sizes=[(seen.path(row), _size(seen.headers[row])) for row in _odd_sizes(seen.headers)],
        formats=dict(Counter(header.kind for header in seen.headers).most_common()),
        colours=dict(Counter(header.colours for header in seen.headers).most_common()),
        turned=sum(header.turned for header in seen.headers),
        attributes=sorted(name for name, values in columns.items() if values.dtype == np.bool_),
        domains=domains,
        splits=splits,
        unreadable=seen.unreadable,
        repeated=repeated,
        shared=[(seen.path(one), seen.path(other)) for one, other in shared],
        alike=None if alike is None else [(seen.path(one), seen.path(other), score) for one, other, score in alike],
        faults=list(listing.faults),
        problems=_problems(counts, seen, repeated, shared, alike),
        remarks=list(listing.remarks),
        advice=_advice(path, seen, layout, identity_level),
    )


def _problems(
    counts: NDArray[np.int64],
    seen: Seen,
    repeated: int,
    shared: Sequence[object],
    alike: Sequence[object] | None,
) -> list[str]:
    lonely, few = int((counts == 1).sum()), len(counts)
    listing, headers = seen.listing, seen.headers
    gaps = _gaps(set(listing.labels)) if listing.labels else []
    sizes, formats, colours = (
        Counter(map(key, headers)) for key in (_size, lambda header: header.kind, lambda header: header.colours)
    )
    odd = len(list(_odd_sizes(headers)))
    turned = 0 if listing.upright else sum(header.turned for header in headers)
    checks = {
        f"images that cannot be used: {len(seen.unreadable)}; skip_unreadable leaves them out": seen.unreadable,
        f"files under two identities: {len(shared)}; one of the labels is wrong": shared,
        f"pairs under two identities that look nearly the same: {len(alike or ())}; is it one person?": alike,
        f"files repeated under their identity: {repeated}": repeated,
        f"identities with a single image: {lonely} of {few}; drop_small leaves them out": lonely,
        f"identities are few: {few}; rates and accuracies will have wide intervals": 0 < few < 50,
        "labels: none; nobody says who is on the images": not listing.labels,
        f"labels are numbers with gaps: {len(gaps)} between {_ends(listing)}, such as {_some(gaps)}": gaps,
        f"sizes: {len(sizes)}; most commands refuse the set until it is aligned": len(sizes) > 1,
        f"images that are much smaller, larger or longer than the others: {odd}": odd,
        f"formats: {_told(formats)}; all are read": len(formats) > 1,
        f"colours: {_told(colours)}; all are read as RGB": len(colours) > 1,
        f"photographs that their camera says to turn: {turned}; of this layout they are taken as they lie": turned,
        f"images are more than {COMPARED:,} and not compared with each other; use --sample": alike is None,
    }
    return [text for text, holds in checks.items() if holds]


def _size(header: Header) -> str:
    return f"{header.width} x {header.height}"


def _odd_sizes(headers: Sequence[Header]) -> Iterator[int]:
    """Rows of images whose shorter side is far from that of most, or that are strips."""
    sides = np.array([(min(header.height, header.width), max(header.height, header.width)) for header in headers])
    usual = np.median(sides[:, 0]) if len(sides) else 0
    for row, (short, long) in enumerate(sides):
        if short * _ODD_SIZE < usual or short > usual * _ODD_SIZE or long > short * _ODD_SHAPE:
            yield row


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


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


def _advice(path: Path, seen: Seen, layout: str | None, identity_level: Level | None) -> Advice | None:
    """What to do with them; nothing where something has to be put right first, or nobody could train on them."""
    path, listing = path.absolute(), seen.listing
    pack = is_pack(path)
    if benchmarks := [layout] if layout else [] if pack else benchmarks_at(path):
        return to_evaluate(path, benchmarks)
    if listing.faults:
        return None
    if not listing.labels:
        return to_cluster(path)
    images = Counter(listing.labels)
    domains = {} if "domain" not in listing.columns else dict.fromkeys(listing.columns["domain"].tolist(), 0)
    for person, domain in set(zip(listing.labels, listing.columns.get("domain", []), strict=bool(domains))):
        domains[domain] += images[person] > 1
    sizes = {(header.height, header.width) for header in seen.headers}
    options = {"identity_level": identity_level} if identity_level else {}
    return to_train(
        path,
        sum(count > 1 for count in images.values()),
        domains,
        aligned=len(sizes) < 2 and all(height == width for height, width in sizes),
        options=options | ({"skip_unreadable": "true"} if seen.unreadable else {}),
        size=next(iter(sizes), None) if pack else None,
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
