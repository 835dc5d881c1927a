"""What rates are computed from: pairs of images with a score, whether they are listed or too many for that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from personae.core.exact import Floats, Integers, pair_scores, unit_on_grid
from personae.errors import DataError
from personae.evaluation.crossing import Crossing
from personae.evaluation.pairs import Pairs
from personae.evaluation.ranking import Ranked, Span, spans
from personae.evaluation.screening import impostors_at


class Comparisons(Protocol):
    """Pairs of one person (genuine) and of two (impostor)."""

    @property
    def genuine_pairs(self) -> int: ...

    @property
    def impostor_pairs(self) -> int: ...

    def impostors_at(self, places: Sequence[int]) -> Floats:
        """The impostor scores at these places, the highest being at 0."""

    def genuine_above(self, scores: Floats) -> Integers:
        """How many genuine scores are strictly above each of these."""

    def spans(self) -> Iterator[Span]:
        """All scores from the highest to the lowest, in stretches that fit into memory."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores themselves, as of a list of pairs."""

    genuine: Floats
    impostor: Floats

    @property
    def genuine_pairs(self) -> int:
        return len(self.genuine)

    @property
    def impostor_pairs(self) -> int:
        return len(self.impostor)

    def impostors_at(self, places: Sequence[int]) -> Floats:
        at = [len(self.impostor) - 1 - place for place in places]
        return np.partition(self.impostor, at)[at] if at else np.empty(0, dtype=np.float32)

    def genuine_above(self, scores: Floats) -> Integers:
        return len(self.genuine) - np.searchsorted(np.sort(self.genuine), scores, side="right")

    def spans(self) -> Iterator[Span]:
        yield Span(Ranked(np.sort(self.genuine)), Ranked(np.sort(self.impostor)))


@dataclass(frozen=True, eq=False)
class Identified(Scores):
    """Scores with the identities they are of: one for a genuine pair, two for an impostor pair."""

    genuine_of: Integers
    impostor_of: tuple[Integers, Integers]


class Crossed(Crossing):
    """All pairs of two sets, or of one, never held at the same time."""

    def impostors_at(self, places: Sequence[int]) -> Floats:
        found = impostors_at(self, places)
        missing = np.array(sorted(set(places) - found.keys()), dtype=np.int64)
        if len(missing):
            found |= dict(zip(missing.tolist(), self._ranked(missing), strict=True))
        return np.array([found[place] for place in places], dtype=np.float32)

    def genuine_above(self, scores: Floats) -> Integers:
        counts = np.zeros(len(scores), dtype=np.int64)
        for _, _, genuine in self.exact_scores(genuine=True):
            for at, score in enumerate(scores):
                counts[at] += np.count_nonzero(genuine > score)
        return counts

    def spans(self) -> Iterator[Span]:
        return spans(self)

    def _ranked(self, places: Integers) -> Floats:
        """`impostors_at` from all scores in order: slower, but nothing is too much for it."""
        scores = np.empty(len(places), dtype=np.float32)
        seen = 0
        for span in self.spans():
            here = (places >= seen) & (places < seen + len(span.impostor))
            scores[here] = span.impostor.at(seen + len(span.impostor) - 1 - places[here])
            seen += len(span.impostor)
        return scores


def all_pairs(embeddings: Tensor, labels: Tensor) -> Crossed:
    """Every unordered pair of different images."""
    return Crossed(embeddings, labels)


def across(gallery: Tensor, gallery_labels: Tensor, probes: Tensor, probe_labels: Tensor) -> Crossed:
    """Every entry of a gallery with every probe."""
    return Crossed(probes, probe_labels, (gallery, gallery_labels), itself=False)


def from_within(own: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Crossed:
    """Every unordered pair of which at least one image is our own; `others` are the images that are not."""
    return Crossed(own, labels, (others, other_labels))


def listed(embeddings: Tensor, pairs: Pairs) -> Scores:
    """The pairs of a list of positions."""
    scores, genuine = _scored(embeddings, pairs), pairs.same.numpy()
    return Scores(scores[genuine], scores[~genuine])


def identified(embeddings: Tensor, pairs: Pairs, labels: Tensor) -> Identified:
    """The pairs of a list, with whose they are; `labels` are the identities of the embeddings."""
    scores, genuine = _scored(embeddings, pairs), pairs.same.numpy()
    left, right = (labels[side].numpy() for side in (pairs.left, pairs.right))
    if not np.array_equal(left == right, genuine):
        raise DataError("a pair is said to be of one person, but its images are of two, or the other way around")
    return Identified(scores[genuine], scores[~genuine], left[genuine], (left[~genuine], right[~genuine]))


def held(embeddings: Tensor, labels: Tensor) -> Identified:
    """All pairs of a few images, with whose they are."""
    left, right = torch.triu_indices(len(labels), len(labels), 1)
    return identified(embeddings, Pairs(left, right, labels[left] == labels[right]), labels)


def _scored(embeddings: Tensor, pairs: Pairs) -> Floats:
    vectors = unit_on_grid(embeddings)
    return pair_scores(vectors, pairs.left.numpy(), vectors, pairs.right.numpy())


def check_both_kinds(comparisons: Comparisons) -> None:
    if not comparisons.genuine_pairs or not comparisons.impostor_pairs:
        raise DataError(
            f"rates need pairs of one person and pairs of two, but there are {comparisons.genuine_pairs} and"
            f" {comparisons.impostor_pairs}: take two images of one identity and one of another at least"
        )
