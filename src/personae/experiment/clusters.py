"""Identities among faces that nobody has labelled, under a trained model."""

import csv
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from personae.core.embedder import embed
from personae.core.rng import generator
from personae.data import FaceSet, open_faces
from personae.data.handling import Handling
from personae.data.readers.folders import is_flat
from personae.errors import ConfigError
from personae.experiment.explain import explain
from personae.experiment.model import Model
from personae.files import replacing, write_text
from personae.parts.clustering import METHODS, NOBODY, Method, Shape, agreement, large_enough
from personae.progress import Notify, Progress, silent, unheard
from personae.report.contact_sheet import draw_clusters

LABELS, SUMMARY, SHEET = "labels.csv", "clusters.json", "clusters.png"


@dataclass(frozen=True, eq=False)
class Clusters:
    """Faces, and which cluster each of them is in; -1 for none."""

    faces: FaceSet
    labels: Tensor
    clustering: Method
    min_images: int
    shape: Shape

    @property
    def images(self) -> int:
        return len(self.labels)

    @cached_property
    def sizes(self) -> Tensor:
        return torch.bincount(self.labels[self.labels != NOBODY])

    @property
    def clusters(self) -> int:
        return len(self.sizes)

    @property
    def dropped(self) -> int:
        return int((self.labels == NOBODY).sum())

    @cached_property
    def people(self) -> int | None:
        """How many there are; None where nobody says who is on the faces."""
        return len(self.faces.identities) or None

    @cached_property
    def agreement(self) -> dict[str, float] | None:
        """How well clusters agree with the people on the faces, where it is known who that is."""
        if self.people is None:
            return None
        found = agreement(self.labels, torch.from_numpy(self.faces.identity))
        return {"F-score": found.f_score, "precision": found.precision, "recall": found.recall, "NMI": found.nmi}

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "faces": self.faces.name,
            "clustering": dataclasses.asdict(self.clustering),
            "min_images": self.min_images,
            "images": self.images,
            "clusters": self.clusters,
            "sizes": self.sizes.tolist(),
            "in_no_cluster": self.dropped,
            "silhouette": self.shape.silhouette,
            "odd": self.shape.oddity,
            "people": self.people,
            "agreement": self.agreement,
        }

    def write(self, out: Path) -> None:
        """The cluster of every image, the figures, and a picture."""
        paths = self.faces.columns.get("path", np.arange(self.images))
        with replacing(out / LABELS) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("image", "cluster"))
            for path, label in zip(paths.tolist(), self.labels.tolist(), strict=True):
                table.writerow((path, "" if label == NOBODY else label))
        write_text(out / SUMMARY, json.dumps(self.summary, indent=2) + "\n")
        draw_clusters(self.faces, self.labels.numpy(), out / SHEET, marked=self.agreement is not None)


def clustering_of(method: str, options: Mapping[str, Any]) -> Method:
    """A method by its name, with options that are its own."""
    kind = METHODS[method]
    for name in options:
        if name not in {field.name for field in dataclasses.fields(kind)}:
            owners = [other for other, each in METHODS.items() if name in each.__dataclass_fields__]
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} does not go with {method}, but with {', '.join(owners)}")
    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        raise ConfigError(explain(error, kind, method)) from error


def cluster_faces(
    model: Model,
    faces_at: Path,
    clustering: Method,
    min_images: int = 2,
    *,
    seed: int = 0,
    unlabelled: bool = False,
    progress: Progress = silent,
    notify: Notify = unheard,
    **handling: Unpack[Handling],
) -> Clusters:
    """Embed the faces under the model and divide them; what identities they have is only used to evaluate.

    Images right below a folder are unlabelled in any case.
    """
    faces = open_faces(
        faces_at,
        height=model.height,
        width=model.width,
        progress=progress,
        notify=notify,
        unlabelled=unlabelled or is_flat(Path(faces_at).expanduser()),
        **handling,
    )
    if not faces.identities and "path" in faces.columns:
        faces = faces.select(np.argsort(faces.columns["path"], kind="stable"))  # as one looks for them in the table
    with progress(f"embedding {faces.name}", len(faces), "images") as advance:

        def counted(images: Tensor) -> Tensor:
            vectors = model.embedder(images)
            advance(len(images))
            return vectors

        features = embed(counted, faces.samples())
    labels = large_enough(clustering(features, generator(seed, "clustering")), min_images)
    return Clusters(faces, labels, clustering, min_images, Shape.of(features, labels))
