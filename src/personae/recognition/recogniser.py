"""A model in use: are two faces one person, is this the person they claim to be, and who is it?"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from personae.core.exact import unit_on_grid
from personae.errors import ConfigError, DataError
from personae.evaluation.identification import class_means
from personae.experiment.model import Model
from personae.recognition.gallery import Gallery
from personae.recognition.threshold import Threshold

AT_ONCE = 256


@dataclass(frozen=True)
class Match:
    """The person that a face is nearest to (None where two faces were compared), and how near."""

    name: str | None
    score: float
    threshold: float

    @property
    def accepted(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True)
class Recogniser:
    """A model, the score from which on two faces count as one person, and people it knows.

    Faces are uint8 [N, height, width, 3], RGB, aligned. Scores are those of an evaluation, to the bit, so that a
    threshold means here what it means there. A person is the mean direction of their enrolled faces, so that a search
    makes one comparison a person. (The nearest of the faces instead lets more strangers in: docs/howto/models.md.)
    """

    model: Model
    threshold: Threshold
    gallery: Gallery | None = None

    def __post_init__(self) -> None:
        if self.gallery is not None:
            check_model(self.gallery, self.model)

    def compare(self, left: Tensor, right: Tensor) -> Match:
        """Whether two faces [height, width, 3] are of one person."""
        return self._match(None, self._scores(vectors(self.model, left[None]), vectors(self.model, right[None])))

    def verify(self, name: str, face: Tensor) -> Match:
        """Whether a face [height, width, 3] is that of the enrolled person it claims to be."""
        faces = self._known().of(name)
        known = class_means(faces, torch.zeros(len(faces), dtype=torch.int64), 1)
        return self._match(name, self._scores(vectors(self.model, face[None]), known))

    def identify(self, faces: Tensor) -> list[Match]:
        """Of each face, the nearest of all people; whether that is near enough is up to `accepted`."""
        known = self._known()
        everybody = known.everybody()
        if not everybody.names:
            raise DataError(f"{known.path}: nobody is enrolled yet; use `personae enroll`")
        means = class_means(everybody.vectors, everybody.person, len(everybody.names))
        scores, nearest = self._scores(vectors(self.model, faces), means).max(dim=1)
        found = zip(nearest.tolist(), scores.tolist(), strict=True)
        return [Match(everybody.names[person], score, self.threshold.score) for person, score in found]

    def _match(self, name: str | None, scores: Tensor) -> Match:
        return Match(name, float(scores), self.threshold.score)

    @staticmethod
    def _scores(faces: Tensor, known: Tensor) -> Tensor:
        return (unit_on_grid(faces) @ unit_on_grid(known).T).float()

    def _known(self) -> Gallery:
        if self.gallery is None:
            raise ConfigError("this needs a gallery; give one")
        return self.gallery


def enroll(gallery: Gallery, model: Model, name: str, faces: Tensor) -> int:
    """Keep the vectors of a person's faces; gives how many of these were not there before."""
    check_model(gallery, model)
    return gallery.add(name, vectors(model, faces))


def open_gallery(path: str | Path, model: Model) -> Gallery:
    """The gallery at this path if it is of this model; a new one where there is none."""
    path = Path(path)
    if not path.exists():
        blank = torch.zeros(1, model.height, model.width, 3, dtype=torch.uint8)
        return Gallery.create(path, model.digest, vectors(model, blank).shape[1])
    gallery = Gallery.open(path)
    check_model(gallery, model)
    return gallery


def check_model(gallery: Gallery, model: Model) -> None:
    if gallery.model != model.digest:
        raise ConfigError(
            f"{gallery.path}: this gallery is of another model (or with other mirror images), and vectors of two models"
            " cannot be compared; use its own, or enrol everybody again"
        )


def vectors(model: Model, faces: Tensor) -> Tensor:
    """float32 [N, D], of length one."""
    fitting = faces.ndim == 4 and faces.shape[1:] == (model.height, model.width, 3) and faces.dtype == torch.uint8
    if not fitting or not len(faces):
        raise DataError(
            f"faces of {list(faces.shape)} {str(faces.dtype).removeprefix('torch.')} came, and the model takes uint8"
            f" [N, {model.height}, {model.width}, 3]; align them first, as `read_face` does with align=True"
        )
    return torch.cat([model.embedder(faces[at : at + AT_ONCE]) for at in range(0, len(faces), AT_ONCE)])
