"""Faces of one client in a deployment: how it opens its own, and how an experiment's are dealt into files."""

import csv
import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from PIL import Image

from personae.core.holdings import ClientFaces
from personae.data import FaceSet, Partition, PartitionPlan, Split, open_faces
from personae.data.clients import PartitionedFaces
from personae.data.handling import Handling
from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.labels import require_labels
from personae.experiment.materials import Materials
from personae.experiment.section import SYNTHETIC
from personae.experiment.sources import Source
from personae.files import replacing

_OWN = "own"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same faces make the same file


@dataclass(frozen=True)
class OwnFaces:
    """`personae.core.holdings.Holdings` of a client: its own faces, whatever the server calls it."""

    held: PartitionedFaces
    labelled_client: str = ""
    """The client that has to know who is on its faces, which are not labelled here: it cannot be this one."""

    @property
    def clients(self) -> tuple[str, ...]:
        return ()

    @property
    def newcomers(self) -> frozenset[str]:
        return frozenset()

    def of(self, client: str) -> ClientFaces:
        if client == self.labelled_client:
            raise ConfigError(f"{client} is the source, whose faces have to be labelled; join without --unlabelled")
        return replace(self.held.of(_OWN), strangers=None)


def own_faces(
    path: Path,
    experiment: Experiment,
    execution: Execution,
    *,
    unlabelled: bool = False,
    **handling: Unpack[Handling],
) -> OwnFaces:
    """The faces at `path`. They say themselves what they are for (a column `split`), or are divided as planned.

    `unlabelled`: labels are not read, and an experiment that needs some is refused.
    """
    if unlabelled:
        require_labels(experiment.recipe, {False: str(path)})
    network = experiment.network
    faces = open_faces(
        path,
        height=network.height,
        width=network.width,
        cache=execution.cache,
        progress=execution.progress,
        notify=execution.notify,
        unlabelled=unlabelled,
        **handling,
    )
    labelled = experiment.partition.source if unlabelled else ""
    if "split" in faces.columns:
        return OwnFaces(PartitionedFaces(faces, _as_marked(faces, path)), labelled)
    plan = experiment.partition
    alone = PartitionPlan(
        by="equal",
        clients=1,
        train=plan.train,
        val=plan.val,
        test=plan.test,
        min_images=plan.min_images,
        drop_small=plan.drop_small,
    )
    division = replace(alone.apply(faces, experiment.seed), clients=(_OWN,))
    return OwnFaces(PartitionedFaces(faces, division), labelled)


def public_source(experiment: Experiment, copy: Path | None, handling: Handling) -> Source | None:
    """The public faces as a client has them: its `copy`, or synthetic ones; None where it has none."""
    source = experiment.data.public
    if source is None or (source.source != SYNTHETIC and copy is None) or source.parts is not None:
        return None
    if copy is None:
        return source
    limits = source.model_dump(include=source.model_fields_set - {"source"})
    return Source.model_validate(limits | {"source": str(copy)}).handled(handling)


def public_faces(experiment: Experiment, source: Source, execution: Execution) -> FaceSet:
    data = experiment.data.model_copy(update={"public": source})
    with_these = experiment.model_copy(update={"data": data})
    faces = Materials(with_these, execution).public
    assert faces is not None
    return faces


def deal(materials: Materials, folder: Path) -> list[Path]:
    """Each client's faces of an experiment as a zip to carry to its machine; what it is for is marked in it."""
    return [_write(materials, name, folder / f"{name}.zip") for name in materials.partition.clients]


def _as_marked(faces: FaceSet, path: Path) -> Partition:
    names = [split.name.lower() for split in Split]
    unknown = sorted(set(faces.columns["split"].tolist()) - set(names))
    if unknown:
        raise DataError(f"{path}: the column split holds {unknown[0]!r}; there are {', '.join(names)}")
    split = np.array([names.index(name) for name in faces.columns["split"].tolist()], dtype=np.uint8)
    return Partition((_OWN,), np.zeros(len(faces), dtype=np.int64), split)


def _write(materials: Materials, client: str, path: Path) -> Path:
    faces, partition = materials.private, materials.partition
    table = io.StringIO(newline="")
    lines = csv.writer(table, lineterminator="\n")
    labelled = bool(faces.labelled[partition.rows(client)].all())
    lines.writerow(("path", "identity", "split") if labelled else ("path", "split"))
    with replacing(path, private=True) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for number, row in enumerate(partition.rows(client).tolist()):
            name = f"{number:08d}.png"
            person = [faces.identities[faces.identity[row]]] if labelled else []
            lines.writerow((name, *person, Split(partition.split[row]).name.lower()))
            image = io.BytesIO()
            Image.fromarray(faces.images(np.array([row]))[0]).save(image, "PNG")
            archive.writestr(zipfile.ZipInfo(f"images/{name}", _LONG_AGO), image.getvalue())
        archive.writestr(zipfile.ZipInfo("labels.csv", _LONG_AGO), table.getvalue())
    return path
