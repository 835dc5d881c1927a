"""A client's people among everybody's: the protocols of personalized face recognition, 1:1 and 1:N.

`own` are vectors of the client's people and `others` those of everybody else; labels share one coding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from personae.core.exact import GRID, blocks, pair_scores, unit, unit_on_grid
from personae.errors import ConfigError
from personae.evaluation.comparisons import Comparisons, Crossed, Scores, check_both_kinds, from_within, held
from personae.evaluation.identification import class_means, search, tpir_at_fpir
from personae.evaluation.verification import rate_name, tar_at_far, tar_name

Protocol = Literal["correct", "paper"]
HALF = "half "


@dataclass(frozen=True, kw_only=True)
class AmongEverybody:
    """Which rates a client's people are to have among everybody's: 1:1 at `fars`, 1:N at `fpirs`."""

    fars: tuple[float, ...] = (1e-2, 1e-3)  # false accept rates, 1:1
    fpirs: tuple[float, ...] = (1e-1, 1e-2)  # false positive identification rates, 1:N
    protocols: tuple[Protocol, ...] = ("correct",)  # 1:N as NIST defines it, or as FedFR's authors computed it
    half: bool = False  # whether 1:1 is also told where half of the impostor pairs are of two own people
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for rate in (*self.fars, *self.fpirs):
            if not 0 < rate <= 1:
                raise ValueError(f"a rate of {rate} is not in (0, 1]")

    def rates(
        self,
        train: Tensor,
        train_labels: Tensor,
        own: Tensor,
        labels: Tensor,
        others: Tensor,
        other_labels: Tensor,
    ) -> dict[str, float]:
        """`1:1 tar@1e-03`, `1:1 half tar@1e-03`, `1:N tpir@1e-02` and `1:N tpir@1e-02 (paper)`.

        What cannot be computed is left out.
        """
        found: dict[str, float] = {}
        kinds: dict[str, Comparisons] = {"": personal_pairs(own, labels, others, other_labels)}
        if self.half:
            kinds[HALF] = half_own_pairs(own, labels, others, other_labels)
        for kind, pairs in kinds.items():
            if pairs.genuine_pairs and pairs.impostor_pairs:
                found |= {_verification(far, kind): tar for far, tar in tar_at_far(pairs, self.fars).items()}
        probes, probe_labels = torch.cat([own, others]), torch.cat([labels, other_labels])
        mated = torch.isin(probe_labels, train_labels)
        if not mated.any() or mated.all():
            return found
        for protocol in self.protocols:
            rates = personal_identification(train, train_labels, probes, probe_labels, self.fpirs, protocol)
            found |= {_identification(fpir, protocol): rate for fpir, rate in rates.items()}
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of all rates that there may be."""
        identification = (_identification(fpir, protocol) for protocol in self.protocols for fpir in self.fpirs)
        kinds = ("", HALF) if self.half else ("",)
        return (*(_verification(far, kind) for kind in kinds for far in self.fars), *identification)


def _verification(far: float, kind: str = "") -> str:
    return f"1:1 {kind}{tar_name(far)}"


def _identification(fpir: float, protocol: Protocol) -> str:
    return f"1:N {rate_name('tpir', fpir)}" + ("" if protocol == "correct" else f" ({protocol})")


def personal_pairs(own: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Crossed:
    """1:1: every unordered pair with at least one image of the client's, for `tar_at_far` and `sweep`.

    The paper's pairs are the same; it reads its rates off a histogram with bins of 0.001, interpolated, and here they
    are exact.
    """
    return from_within(own, labels, others, other_labels)


def half_own_pairs(own: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Scores:
    """1:1 with as many impostor pairs of two own people as of one of them and somebody else.

    Of all pairs the second kind is far more: there everybody else decides. Its pairs are taken in equal distances.
    """
    within = held(own, labels)
    rows, columns = (labels[:, None] != other_labels).nonzero(as_tuple=True)
    count = min(within.impostor_pairs, len(rows))
    chosen = torch.arange(count) * len(rows) // max(count, 1)
    ours, theirs = unit_on_grid(own), unit_on_grid(others)
    across = pair_scores(ours, rows[chosen].numpy(), theirs, columns[chosen].numpy())
    return Scores(within.genuine, np.concatenate([within.impostor, across]))


def personal_identification(
    train: Tensor,
    train_labels: Tensor,
    probes: Tensor,
    probe_labels: Tensor,
    fpirs: Sequence[float],
    protocol: Protocol = "correct",
) -> dict[float, float]:
    """1:N: true positive identification rates of everybody's probes in a gallery of the client's training images.

    `correct` is open-set identification (`tpir_at_fpir`): the mean vector of an identity is its gallery entry, a
    stranger counts once, with its best score, and a true positive is at rank 1.

    `paper` is what published figures were computed with: means of unit vectors that are not scaled to length one again;
    the threshold is the ceil(P f)-th highest of all scores of a probe and somebody else's entry, P being the number of
    probes; whoever reaches it with their own entry is a true positive, at whatever rank.
    """
    names, entries = torch.unique(train_labels, return_inverse=True)
    if protocol == "correct":
        gallery = class_means(train, entries, len(names))
        return tpir_at_fpir(search(gallery, names, probes, probe_labels), fpirs)
    if protocol != "paper":
        raise ConfigError(f"protocol {protocol!r}: there are correct and paper")
    scores = _against_means(train, entries, names, probes, probe_labels)
    check_both_kinds(scores)
    if not all(0 < fpir <= 1 for fpir in fpirs):
        raise ConfigError(f"false positive rates of the paper's protocol are above 0 and at most 1, not {list(fpirs)}")
    places = [min(math.ceil(len(probes) * fpir), scores.impostor_pairs) - 1 for fpir in fpirs]
    thresholds = scores.impostors_at(places)
    reached = [int(np.count_nonzero(scores.genuine >= threshold)) for threshold in thresholds]
    return {fpir: count / scores.genuine_pairs for fpir, count in zip(fpirs, reached, strict=True)}


def _against_means(train: Tensor, entries: Tensor, names: Tensor, probes: Tensor, probe_labels: Tensor) -> Scores:
    """Products with means of unit vectors; being shorter than one, these stay exact on the grid too."""
    vectors = unit(train)
    entries, names = entries.to(vectors.device), names.to(vectors.device)
    sums = vectors.new_zeros(len(names), vectors.shape[1]).index_add_(0, entries, vectors)
    means = (sums / torch.bincount(entries)[:, None] * GRID).round() / GRID
    unknown = unit_on_grid(probes)
    genuine, impostor = [], []
    for rows in blocks(len(probes), len(names)):
        scores = (unknown[rows] @ means.T).float()
        same = probe_labels[rows, None].to(names.device) == names
        genuine.append(scores[same])
        impostor.append(scores[~same])
    return Scores(torch.cat(genuine).cpu().numpy(), torch.cat(impostor).cpu().numpy())
