"""Benchmarks by name and place."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from personae.core.registry import Registry
from personae.data import FaceSet, PairSet, open_faces, read_group_pairs, read_pairs
from personae.data.handling import Handling
from personae.data.ijb import IjbMeta, open_ijb
from personae.data.ijb import Roster as IjbRoster
from personae.data.megaface import open_megaface
from personae.data.readers.naming import canonical, named_layout
from personae.errors import ConfigError, DataError
from personae.evaluation.protocols import (
    DISTRACTOR_FPRS,
    FARS,
    TEMPLATE_FARS,
    Benchmark,
    DistractorBenchmark,
    EvaluationProtocol,
    Gaps,
    GroupBenchmark,
    PairBenchmark,
    TemplateBenchmark,
    TemplateSplit,
)
from personae.evaluation.templates import Roster
from personae.evaluation.verification import Pairs, sample_pairs
from personae.progress import Notify, Progress, silent, unheard


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a benchmark is opened: the size of its images, the rates asked for, and how intervals are found."""

    height: int
    width: int
    fars: tuple[float, ...] | None = None
    """None: those that are usual for the benchmark."""
    resamples: int = 0
    seed: int = 0
    progress: Progress = silent
    notify: Notify = unheard
    cache: Path | None = None
    handling: Handling = field(default_factory=Handling)
    """Of images that are not aligned faces, or that cannot be used."""


def open_protocol(name: str, path: Path, setting: Setting) -> EvaluationProtocol:
    """The benchmark at `path`. Its name says how to read it (lfw, calfw, rfw, ijbc, megaface ..., or one that another
    package registers, or `module:Class`); of any other name, it is recognised by what is there."""
    path = Path(path).expanduser()
    known = next((each for each in (name, canonical(name)) if each in BENCHMARKS), None)
    if known is None:
        return _open_faces(name, path, setting)
    return BENCHMARKS[known]().open(name.rpartition(":")[2], path, setting)


def _open_faces(name: str, path: Path, setting: Setting) -> EvaluationProtocol:
    """All-pairs rates and rank-1 on these faces, and 10-fold accuracy.

    The pairs are those that come with the faces; of a `.bin` and of most lists they are all there is to compare. Where
    none come, they are drawn, if there are enough identities.
    """
    layout = named_layout(name)
    faces = open_faces(
        path,
        height=setting.height,
        width=setting.width,
        cache=setting.cache,
        progress=setting.progress,
        notify=setting.notify,
        layout=layout,
        **setting.handling,
    )
    fars = setting.fars or FARS
    samples = faces.samples()
    if groups := read_group_pairs(path, faces) if path.is_dir() else None:
        of_groups = {group: _pairs(given) for group, given in groups.items()}
        return GroupBenchmark(name, samples, of_groups, fars, setting.resamples, _gaps(faces, *groups.values()))
    if canonical(name) == "rfw":
        raise DataError(f"{path}: no txts/GROUP/GROUP_pairs.txt in it; give the folder that has data and txts")
    given = read_pairs(path, faces, layout, incomplete=setting.handling.get("skip_unreadable", False))
    if given is None:
        return Benchmark(name, samples, fars, _drawn(faces, setting.seed), setting.resamples, _gaps(faces))
    gaps = _gaps(faces, given)
    if given.alone:
        return PairBenchmark(name, samples, _pairs(given), fars, given.named, setting.resamples, gaps)
    return Benchmark(name, samples, fars, _pairs(given), setting.resamples, gaps)


def _gaps(faces: FaceSet, *pairs: PairSet) -> Gaps:
    return Gaps(faces.unreadable, sum(each.left_out for each in pairs), faces.plain)


def _as_they_are(name: str, setting: Setting) -> bool:
    """Whether images may have any size; of a benchmark that is read image by image, nothing else can be handled."""
    others = [option for option, value in setting.handling.items() if value and option != "as_they_are"]
    if others:
        raise ConfigError(
            f"{name}: its images are read one by one, as they are listed; it does not go with --align, --missed or"
            " --skip-unreadable"
        )
    return setting.handling.get("as_they_are", False)


class BenchmarkReader(ABC):
    """Reads one benchmark from its own files."""

    name: ClassVar[str]

    @abstractmethod
    def open(self, label: str, path: Path, setting: Setting) -> EvaluationProtocol:
        """The benchmark at `path`; tables call it `label`."""


class _Templates(BenchmarkReader):
    def open(self, label: str, path: Path, setting: Setting) -> EvaluationProtocol:
        found = open_ijb(path, self.name, setting.height, setting.width, as_they_are=_as_they_are(label, setting))
        splits = tuple(_split(torch.from_numpy(rows), meta) for rows, meta in found.splits)
        fars = setting.fars or TEMPLATE_FARS
        return TemplateBenchmark(label, found.samples, splits, fars, resamples=setting.resamples)


class IjbA(_Templates):
    name = "ijba"


class IjbB(_Templates):
    name = "ijbb"


class IjbC(_Templates):
    name = "ijbc"


class MegaFace(BenchmarkReader):
    name = "megaface"

    def open(self, label: str, path: Path, setting: Setting) -> EvaluationProtocol:
        found = open_megaface(path, setting.height, setting.width, as_they_are=_as_they_are(label, setting))
        distractors = found.distractors if found.vectors is None else torch.from_numpy(found.vectors)
        assert distractors is not None
        fprs = setting.fars or DISTRACTOR_FPRS
        return DistractorBenchmark(label, found.probes, distractors, fprs, progress=setting.progress)


BENCHMARKS: Registry[BenchmarkReader] = Registry("personae.benchmarks", BenchmarkReader, (IjbA, IjbB, IjbC, MegaFace))


def _split(rows: torch.Tensor, meta: IjbMeta) -> TemplateSplit:
    sides = (meta.templates, meta.media, meta.left, meta.right, meta.same)
    templates, media, left, right, same = (torch.from_numpy(side) for side in sides)
    galleries = tuple(_roster(gallery) for gallery in meta.galleries)
    probes = None if meta.probes is None else _roster(meta.probes)
    return TemplateSplit(rows, templates, media, left, right, same, galleries, probes)


def _roster(roster: IjbRoster) -> Roster:
    templates, subjects = (torch.from_numpy(side) for side in roster)
    return Roster(templates, subjects)


def _pairs(given: PairSet) -> Pairs:
    left, right, same = (torch.from_numpy(part) for part in (given.left, given.right, given.same))
    return Pairs(left, right, same, given.folds)


def _drawn(faces: FaceSet, seed: int) -> Pairs | None:
    """Folds of up to 600 pairs, as many as the identities yield; None where even small folds do not fill."""
    labels = faces.samples().labels
    for pairs_per_fold in (600, 300, 100, 50, 20):
        try:
            return sample_pairs(labels, pairs_per_fold=pairs_per_fold, seed=seed)
        except DataError:
            continue
    return None
