"""A set of photographs as a set of aligned faces: `images/` and `labels.csv`, with everything that was known of them.

Work is noted in `alignment.jsonl`, one line per image, after the image is written; who starts again goes on from there.
`labels.csv` comes last, so that a set that is not finished is not taken for one.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from personae.data import detection
from personae.data.align import Points, similarity, template, warp
from personae.data.handling import MIN_SCORE
from personae.data.images import NO_FACE, ImageError, NoFaceError, decode_whole
from personae.data.levels import Level
from personae.data.packs import is_pack
from personae.data.pixels import Pixels
from personae.data.readers import read_listing
from personae.data.readers.archives import IMAGES, LABELS
from personae.data.readers.listing import Fetch, Listing, lines_of, path_inside
from personae.errors import ConfigError, DataError
from personae.files import sweep, write_bytes, write_text
from personae.progress import Notify, Progress, silent, unheard

JOURNAL, MISSES = "alignment.jsonl", "misses.csv"
TIGHT = 0.5
"""Margin of a second look at images in which no face was found: a face that fills its image is not seen without one."""

_AT_ONCE = 32
_PIXELS_AT_ONCE = 60_000_000
_QUALITY = 95


@dataclass(frozen=True)
class Alignment:
    """What became of a set of photographs."""

    images: int
    aligned: int
    resumed: int
    """How many of the images were done before."""
    second_look: int
    """How many faces were found only with a margin around the image."""
    misses: list[tuple[str, str]]
    """Images that were left out, and why."""


class _Found(NamedTuple):
    landmarks: Points
    score: float
    second_look: bool


def align_faces(
    source: Path,
    target: Path,
    *,
    height: int = 112,
    width: int = 112,
    landmarks: Path | None = None,
    margin: float = 0.0,
    min_score: float = MIN_SCORE,
    layout: str | None = None,
    identity_level: Level | None = None,
    unlabelled: bool = False,
    progress: Progress = silent,
    notify: Notify = unheard,
) -> Alignment:
    """Bring the main face of every image to the template and write it below `target`.

    `landmarks` names a file of five points per image, in place of the detector; `margin` is added around each image, in
    parts of its longer side, before a face is looked for. What the detector gives less than `min_score` counts as none.
    `layout` and `identity_level` are for the reader (`readers.read_listing`), whose remarks `notify` hears.
    `unlabelled`: any folder, zip or list of photographs will do, and what is written has no labels either.
    """
    source, target = (Path(path).expanduser().absolute() for path in (source, target))
    if is_pack(source):
        raise DataError(f"{source}: a pack holds faces at one size; align the photographs that it was made of")
    if not 0 <= margin <= 4:
        raise ConfigError(f"a margin of {margin:g} sides around an image; give one from 0 to 4")
    if not 0 <= min_score <= 1:
        raise ConfigError(f"a minimum score of {min_score:g}; give one from 0 to 1")
    listing = read_listing(source, layout, unlabelled=unlabelled, identity_level=identity_level)
    for remark in listing.remarks:
        notify(remark)
    if target.is_relative_to(source):
        raise ConfigError(f"{target}: lies in {source}, whose images it is made of; choose a folder beside it")
    given = None if landmarks is None else read_landmarks(landmarks)
    if given is None:
        detection.require()
    how = detection.NAME if landmarks is None else f"landmarks {hashlib.sha256(landmarks.read_bytes()).hexdigest()}"
    content = hashlib.sha256(repr((listing.stamp, listing.paths)).encode()).hexdigest()
    settings = {"faces": content, "height": height, "width": width, "by": how, "margin": margin, "min_score": min_score}
    journal = _Journal(target, settings, listing.paths)
    left = [position for position, path in enumerate(listing.paths) if path not in journal.done]
    resumed = len(listing.paths) - len(left)
    with listing.opened() as fetch, progress(f"aligning {source.stem}", len(left), "images") as advance:
        for batch in _batches(listing, fetch, left, upright=given is None):
            for (position, image), outcome in zip(batch, _find(listing, batch, given, margin, min_score), strict=True):
                journal.enter(listing.paths[position], image, outcome, height, width)
            journal.flush()
            advance(len(batch))
    return _finish(listing, target, journal, resumed)


def align_face(photograph: Pixels, height: int, width: int, min_score: float = MIN_SCORE) -> Pixels:
    """The main face of one photograph, by the detector, brought to the template; NoFaceError where none is found."""
    found = _detected({0: photograph}, 0.0, min_score)[0]
    if isinstance(found, str):
        raise NoFaceError(found)
    return _to_template(photograph, found.landmarks, height, width)


def read_landmarks(file: Path) -> dict[str, Points]:
    """Lines of a path, anything, and ten numbers x y x y ...: CelebA's lists, whose two first lines are another kind,
    those of RFW and BUPT-Balancedface, which have a label between, and any table of this kind with commas or blanks."""
    try:
        lines = lines_of(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a file of landmarks") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not text in UTF-8; write lines of a path and ten numbers") from error
    found: dict[str, Points] = {}
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        try:
            points = np.array([float(word) for word in words[-10:]]).reshape(5, 2)
        except ValueError:
            points = None
        if points is not None and len(words) > 10 and np.isfinite(points).all():
            found[path_inside(words[0], f"{file}, line {number}")] = points
        elif words and number > 2:
            raise DataError(f"{file}, line {number}: not a path and ten numbers; correct the line")
    if not found:
        raise DataError(f"{file}: has no line with a path and ten numbers; write one for each image")
    return found


Batch = Sequence[tuple[int, Pixels | ImageError]]


def _batches(listing: Listing, fetch: Fetch, positions: Sequence[int], *, upright: bool) -> Iterator[Batch]:
    """So many images at once that they fill neither memory nor time."""
    batch: list[tuple[int, Pixels | ImageError]] = []
    pixels = 0
    for position in positions:
        try:
            image = decode_whole(fetch(position), upright=upright and listing.upright)
            pixels += image.size // 3
            batch.append((position, image))
        except ImageError as why:
            batch.append((position, why))
        if len(batch) == _AT_ONCE or pixels > _PIXELS_AT_ONCE:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch


def _find(
    listing: Listing, batch: Batch, given: dict[str, Points] | None, margin: float, min_score: float
) -> Iterator[_Found | str]:
    """Where the landmarks of each image are, or why they are not known."""
    images = {position: image for position, image in batch if not isinstance(image, ImageError)}
    found = _given(listing, images, given) if given is not None else _detected(images, margin, min_score)
    for position, image in batch:
        yield str(image) if isinstance(image, ImageError) else found[position]


def _given(listing: Listing, images: dict[int, Pixels], given: dict[str, Points]) -> dict[int, _Found | str]:
    def points(path: str) -> Points | None:
        """By the path from the root, or from wherever the list was made."""
        parts = PurePosixPath(path).parts
        return next((given[key] for n in range(len(parts)) if (key := "/".join(parts[n:])) in given), None)

    known = {position: points(listing.paths[position]) for position in images}
    return {
        position: "no landmarks are given" if points is None else _Found(points, 1.0, False)
        for position, points in known.items()
    }


def _detected(images: dict[int, Pixels], margin: float, min_score: float) -> dict[int, _Found | str]:
    found: dict[int, _Found | str] = dict.fromkeys(images, NO_FACE)
    for second, around in ((False, margin), (True, margin + TIGHT)):
        left = [position for position in images if isinstance(found[position], str)]
        if not left:
            break
        for position, faces in zip(left, detection.find_faces([images[key] for key in left], around), strict=True):
            sure = [face for face in faces if face.score >= min_score]
            if face := detection.main_face(sure, *images[position].shape[:2]):
                found[position] = _Found(face.landmarks, face.score, second)
            elif faces:
                score = max(face.score for face in faces)
                found[position] = f"no face was found that scores {min_score:g}: the likeliest has {score:.3f}"
    return found


def _to_template(image: Pixels, landmarks: Points, height: int, width: int) -> Pixels:
    return warp(image, similarity(landmarks, template(height, width)), height, width)


class _Journal:
    """What was done, on disk: settings in the first line, then one line per image."""

    def __init__(self, folder: Path, settings: dict[str, Any], paths: Sequence[str]) -> None:
        self.folder = folder
        self.file = folder / JOURNAL
        self.done: dict[str, dict[str, Any]] = {}
        self._lines: list[str] = []
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: exists, and is not a folder; choose another")
        if not self.file.exists():
            if folder.exists() and any(folder.iterdir()):
                raise ConfigError(f"{folder}: has other things in it; choose a new folder")
            write_text(self.file, json.dumps(settings) + "\n")
            return
        self._resume(settings, set(paths))

    def _resume(self, settings: dict[str, Any], paths: set[str]) -> None:
        whole = self.file.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]  # a line that was being written is done again
        try:
            first, *entries = [json.loads(line) for line in whole.decode().splitlines()]
            entries = [(str(entry["path"]), entry) for entry in entries]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.file}: not a journal of an alignment; choose another folder") from error
        if first != settings:
            raise ConfigError(f"{self.folder}: was begun with other images or options; choose a new folder")
        sweep(self.folder)
        write_bytes(self.file, whole)
        self.done = {path: entry for path, entry in entries if path in paths and self._is_there(entry)}

    def _is_there(self, entry: dict[str, Any]) -> bool:
        written = self.folder / IMAGES / _name(str(entry["path"]))
        return "missed" in entry or (written.is_file() and written.stat().st_size > 0)

    def enter(self, path: str, image: Pixels | ImageError, outcome: _Found | str, height: int, width: int) -> None:
        entry: dict[str, Any] = {"path": path}
        if isinstance(outcome, str) or isinstance(image, ImageError):
            entry["missed"] = str(outcome)
        else:
            points, score, second = outcome
            face = _to_template(image, points, height, width)
            write_bytes(self.folder / IMAGES / _name(path), _jpeg(face), durable=False)
            entry |= {"score": round(score, 4), "landmarks": points.round(2).ravel().tolist(), "second": second}
        self.done[path] = entry
        self._lines.append(json.dumps(entry) + "\n")

    def flush(self) -> None:
        with self.file.open("a") as stream:
            stream.write("".join(self._lines))
        self._lines.clear()


def _finish(listing: Listing, target: Path, journal: _Journal, resumed: int) -> Alignment:
    entries = [journal.done[path] for path in listing.paths]
    kept = [position for position, entry in enumerate(entries) if "missed" not in entry]
    misses = [(entry["path"], entry["missed"]) for entry in entries if "missed" in entry]
    if not kept:
        raise DataError(f"{listing.source}: no face could be aligned, the first is {misses[0][0]} ({misses[0][1]})")
    _write_table(target / MISSES, ("path", "why"), misses)
    names = [name for name in listing.columns if name not in ("path", "identity", "label")]
    known = ("identity",) if listing.labels else ()
    rows = (
        (
            _name(listing.paths[row]),
            *(listing.labels[row] for _ in known),
            *(_plain(listing.columns[name][row]) for name in names),
        )
        for row in kept
    )
    _write_table(target / LABELS, ("path", *known, *names), rows)
    return Alignment(
        images=len(entries),
        aligned=len(kept),
        resumed=resumed,
        second_look=sum(entry.get("second", False) for entry in entries),
        misses=misses,
    )


def _write_table(file: Path, header: Sequence[str], rows: Any) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    write_text(file, text.getvalue())


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, np.bool_) else str(value)


def _name(path: str) -> str:
    """No two images get one name: what is no JPEG already keeps its ending before the new one."""
    return path if PurePosixPath(path).suffix.lower() in (".jpg", ".jpeg") else f"{path}.jpg"


def _jpeg(face: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(face).save(stream, "JPEG", quality=_QUALITY, subsampling=0)
    return stream.getvalue()
