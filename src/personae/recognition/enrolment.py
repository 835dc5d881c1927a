"""People to enrol, all of them read before the first is kept: who, with which vectors, and what is wrong with them."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from personae.data.images import ImageError
from personae.errors import DataError
from personae.experiment.model import Model
from personae.recognition.faces import Portraits, complaint
from personae.recognition.gallery import checked_name
from personae.recognition.recogniser import vectors


@dataclass(frozen=True)
class Enrolment:
    """Vectors of people's faces, [N, D] each, and what was found on the way to them."""

    vectors: dict[str, Tensor]
    images: int
    unusable: dict[str, ImageError]
    """Images that cannot be used, by the names of their files."""
    not_enrolled: tuple[str, ...]
    """People of whom no image can be used."""
    twice: tuple[tuple[str, str], ...]
    """Files that hold one photograph, under two names."""

    def refuse_gaps(self) -> None:
        """Where images cannot be used, nobody is to be enrolled."""
        if self.unusable:
            told = complaint(self.unusable, self.images)
            raise DataError(f"{told}, or leave such files out with --skip-unreadable. Nobody was enrolled")

    def refuse_nobody(self) -> None:
        if not self.vectors:
            raise DataError(f"{complaint(self.unusable, self.images)}. Nobody was enrolled")


def prepare(people: Iterable[tuple[str, Portraits]], model: Model) -> Enrolment:
    """Read and embed everybody. A person may come several times."""
    found: defaultdict[str, list[Tensor]] = defaultdict(list)
    unusable: dict[str, ImageError] = {}
    images = 0
    seen: dict[bytes, tuple[str, str]] = {}
    twice: list[tuple[str, str]] = []
    for given, portraits in people:
        name = checked_name(given)
        images += len(portraits.faces) + len(portraits.unusable)
        unusable |= portraits.unusable
        for file, face in portraits.faces.items():
            first, other = seen.setdefault(hashlib.sha256(face.numpy().tobytes()).digest(), (file, name))
            if other != name:
                twice.append((first, file))
        of_person = found[name]
        if portraits.faces:
            of_person.append(vectors(model, torch.stack(list(portraits.faces.values()))))
    return Enrolment(
        vectors={name: torch.cat(parts) for name, parts in found.items() if parts},
        images=images,
        unusable=unusable,
        not_enrolled=tuple(name for name, parts in found.items() if not parts),
        twice=tuple(twice),
    )
