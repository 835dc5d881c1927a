"""Templates: sets of images and video frames of a person that are compared as one, as IJB-A, B and C have them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from personae.core.exact import unit
from personae.errors import DataError
from personae.evaluation.comparisons import Scores, listed
from personae.evaluation.identification import rank_rates, search, tpir_at_fpir
from personae.evaluation.pairs import Pairs


@dataclass(frozen=True, eq=False)
class Templates:
    """One vector of length one a template, by rising number."""

    numbers: Tensor
    vectors: Tensor

    def positions(self, numbers: Tensor) -> Tensor:
        found = torch.searchsorted(self.numbers, numbers.contiguous()).clamp_(max=len(self.numbers) - 1)
        if not torch.equal(self.numbers[found], numbers):
            missing = numbers[self.numbers[found] != numbers][0]
            raise DataError(f"template {int(missing)} has no image")
        return found


def pool(embeddings: Tensor, templates: Tensor, media: Tensor) -> Templates:
    """The mean of each medium's images, so that a long video counts as one picture; their sum over the template."""
    both, which, sizes = torch.unique(
        torch.stack([templates, media], dim=1), dim=0, return_inverse=True, return_counts=True
    )
    means = embeddings.new_zeros(len(both), embeddings.shape[1], dtype=torch.float64)
    device = embeddings.device
    means.index_add_(0, which.to(device), embeddings.double()).div_(sizes.to(device)[:, None])
    numbers, of_media = torch.unique(both[:, 0], return_inverse=True)
    sums = means.new_zeros(len(numbers), embeddings.shape[1]).index_add_(0, of_media.to(device), means)
    return Templates(numbers, unit(sums).float())


def template_pairs(templates: Templates, left: Tensor, right: Tensor, same: Tensor) -> Scores:
    """1:1: the listed pairs of templates, for `tar_at_far` and `sweep`."""
    return listed(templates.vectors, Pairs(templates.positions(left), templates.positions(right), same))


@dataclass(frozen=True, eq=False)
class Roster:
    """Templates and whose they are."""

    templates: Tensor
    subjects: Tensor


@dataclass(frozen=True)
class Identification:
    """Means over the galleries: open-set rates by false positive rate, and by rank for the probes that are in one."""

    tpir: dict[float, float]
    rank: dict[int, float]


def template_identification(
    templates: Templates,
    galleries: Sequence[Roster],
    probes: Roster,
    fpirs: Sequence[float],
    ranks: Sequence[int] = (1, 5, 10),
) -> Identification:
    """1:N with each gallery in turn (the field has two); who is not in it is a stranger there."""
    looked_for = templates.vectors[templates.positions(probes.templates)]
    rates, by_rank = [], []
    for gallery in galleries:
        entries = templates.vectors[templates.positions(gallery.templates)]
        found = search(entries, gallery.subjects, looked_for, probes.subjects)
        rates.append(tpir_at_fpir(found, fpirs))
        by_rank.append(rank_rates(found, ranks))
    return Identification(
        {fpir: statistics.mean(each[fpir] for each in rates) for fpir in fpirs},
        {rank: statistics.mean(each[rank] for each in by_rank) for rank in ranks},
    )
