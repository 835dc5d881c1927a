"""People among a million strangers, as MegaFace asks: is a person's other image found before all of them?

The strangers go by once, a few thousand at a time, and may lie on disk. Of their products with the probes in float32
only those are scored exactly that could be among the highest of a probe, or of all; the others are further away than
the products can err (`screening_error`), so nothing that is left out could have changed a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from personae.core.exact import Floats, Integers, pair_scores, screening_error, unit_on_grid
from personae.core.precision import plain_float32
from personae.errors import ConfigError, DataError
from personae.evaluation.comparisons import Crossed, all_pairs
from personae.evaluation.verification import false_accepts
from personae.progress import Progress, silent
from personae.words import counted

BLOCK = 4096  # strangers at a time
HELD = 2**25  # impostor scores that may be held, 128 MB
CROWDED = 16  # where more than one in so many has to be scored exactly, all are


@dataclass(frozen=True)
class AmongDistractors:
    """Over all ordered pairs of two images of a person, one to be found with the other: rates by rank and by rate."""

    rank: dict[int, float]
    tpr: dict[float, float]
    distractors: int
    searches: int


def among_distractors(
    probes: Tensor,
    labels: Tensor,
    distractors: Tensor,
    *,
    fprs: Sequence[float] = (1e-6,),
    ranks: Sequence[int] = (1,),
    progress: Progress = silent,
) -> AmongDistractors:
    """Each image of a person is looked for with every other one, in a gallery of it and all distractors.

    It is found at rank k when fewer than k distractors score as high: ties count against us. True positive rates are
    over the same pairs; the false positives are among all pairs of a probe and a distractor.
    """
    pairs = all_pairs(probes, labels)
    impostors = len(probes) * len(distractors)
    if not pairs.genuine_pairs or not len(distractors):
        raise DataError(
            f"a search among distractors needs two images of a person, and distractors: there are"
            f" {counted(pairs.genuine_pairs, 'pair')} of one person and {counted(len(distractors), 'distractor')}"
        )
    allowed = {fpr: false_accepts(fpr, impostors) for fpr in fprs}
    most = 1 + max((count for count in allowed.values() if count < impostors), default=0)
    if most > HELD:
        raise ConfigError(
            f"a false positive rate of {max(fprs)} allows {most} false positives, and {HELD} can be held: lower it"
        )
    # The crossing sorts the probes by identity, so the strangers are compared with its rows.
    highest = _Highest(pairs.rows, max(ranks), most)
    with plain_float32(), progress("distractors", len(distractors), "vectors") as advance:
        for start in range(0, len(distractors), BLOCK):
            block = unit_on_grid(distractors[start : start + BLOCK].to(probes.device))
            highest.take(block)
            advance(len(block))
    genuine, first, second = _genuine(pairs)
    found = {}
    for rank in ranks:
        nearest = highest.of_probe[:, rank - 1]
        right = np.count_nonzero(genuine > nearest[first]) + np.count_nonzero(genuine > nearest[second])
        found[rank] = int(right) / (2 * len(genuine))
    of_all = highest.of_all()
    tprs = {}
    for fpr, count in allowed.items():
        refused = of_all[count] if count < impostors else -np.inf
        tprs[fpr] = int(np.count_nonzero(genuine > refused)) / len(genuine)
    return AmongDistractors(found, tprs, len(distractors), 2 * len(genuine))


class _Highest:
    """The highest scores so far: some of each probe, and more of all probes together."""

    def __init__(self, rows: Tensor, each: int, most: int) -> None:
        self.rows, self._float32 = rows, rows.float()
        self.of_probe = np.full((len(rows), each), -np.inf, dtype=np.float32)
        self.most = most
        self._held: list[Floats] = []
        self._count = 0
        self._lowest = -np.inf

    def of_all(self) -> Floats:
        """Falling."""
        self._shrink()
        return -np.sort(-self._held[0])

    def take(self, block: Tensor) -> None:
        """Look at the scores of every row with a block of strangers."""
        rows = self.rows
        # Half of the room would do; the other half is for the rounding of the bounds themselves.
        bounds = np.minimum(self.of_probe[:, -1], self._lowest) - 2 * screening_error(rows.shape[1])
        products = self._float32 @ block.float().T
        near = products >= torch.from_numpy(bounds.astype(np.float32)).to(rows.device)[:, None]
        if int(torch.count_nonzero(near)) * CROWDED > near.numel():
            exact = (rows @ block.T).float()
            best = torch.topk(exact, min(self.of_probe.shape[1], exact.shape[1]), dim=1).values
            self._update(best.cpu().numpy(), exact.flatten().cpu().numpy())
            return
        which, columns = (side.cpu().numpy() for side in torch.nonzero(near, as_tuple=True))
        scores = pair_scores(rows, which, block, columns)
        self._update(_by_row(which, scores, self.of_probe.shape), scores)

    def _update(self, best: Floats, scores: Floats) -> None:
        both = np.concatenate([self.of_probe, best], axis=1)
        self.of_probe = -np.sort(-both, axis=1)[:, : self.of_probe.shape[1]]
        higher = scores[scores > self._lowest] if self._lowest > -np.inf else scores
        self._held.append(higher)
        self._count += len(higher)
        if self._count >= self.most + BLOCK:
            self._shrink()

    def _shrink(self) -> None:
        scores = np.concatenate(self._held)
        if len(scores) >= self.most:
            scores = np.partition(scores, len(scores) - self.most)[len(scores) - self.most :]
            self._lowest = float(scores[0])
        self._held, self._count = [scores], len(scores)


def _by_row(which: Integers, scores: Floats, shape: tuple[int, int]) -> Floats:
    """The highest of the scores of each row, falling; minus infinity where there are fewer."""
    order = np.lexsort((-scores, which))
    which, scores = which[order], scores[order]
    rank = np.arange(len(which)) - np.searchsorted(which, which)
    best = np.full(shape, -np.inf, dtype=np.float32)
    kept = rank < shape[1]
    best[which[kept], rank[kept]] = scores[kept]
    return best


def _genuine(pairs: Crossed) -> tuple[Floats, Integers, Integers]:
    """The scores of all pairs of one person, and which rows they are of."""
    found = []
    for tile, at, scores in pairs.exact_scores(genuine=True):
        assert at is not None  # genuine pairs never fill a tile
        rows, columns = np.divmod(at, tile.columns.stop - tile.columns.start)
        found.append((scores, rows + tile.rows.start, columns + tile.columns.start))
    scores, first, second = (np.concatenate(part) for part in zip(*found, strict=True))
    return scores, first, second
