"""One voice for each group of updates that are suspiciously alike, and the middle of the voices: a rule of ours.

Honest clients of a federation for faces differ widely, because their people do: their steps are almost at right angles.
A distance from the others therefore says little about harm. Likeness does: attackers who want the same have steps that
are far more alike than two honest ones. So this rule does not ask who is far away. It asks who belongs together.

1. Steps longer than the median one are shortened to it.
2. Steps whose cosine is far above what is usual in the round form a group, and a group is one voice: its mean.
3. A voice after which the model does not tell rendered faces apart any more is left out (where the server renders any).
4. Of the voices, entry by entry, the mean without the highest and the lowest `trimmed` share.

What a client did in earlier rounds is the business of the firewall, which leaves suspects out before any rule.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from personae.aggregation.stack import Stack, stacked
from personae.core.aggregation import Aggregation, Vectors, Workbench
from personae.core.bounds import above, within

LEAST = 0.02  # of a deviation of cosines: those of unrelated steps differ by as much
COLLAPSED = 0.5  # of how far above chance faces were told apart before


@dataclass(frozen=True, kw_only=True)
class Grouped(Aggregation):
    """Likeness instead of distance: groups of like steps count once, and the trimmed mean of the groups is taken."""

    name: ClassVar[str] = "grouped"

    trimmed: Annotated[float, within("[0, 0.5)")] = 0.2
    """The share of voices on either side that do not count, entry by entry."""
    alike: Annotated[float, above(0)] = 4.0
    """How many deviations above the usual a cosine makes two updates belong together."""

    def combine(self, vectors: Vectors, around: Tensor, bench: Workbench) -> Tensor:
        with stacked(vectors, bench) as stack:
            products = stack.products(around, bench.weights)
            lengths = products.diagonal().clamp_min(0).sqrt()
            factors = (lengths.median() / lengths.clamp_min(1e-30)).clamp_max(1)
            voices = torch.zeros(stack.count, stack.count, dtype=torch.float64)  # one in a row: weights of its steps
            groups = self._groups(products, lengths)
            for group in groups:
                for member in group:
                    voices[group[0], member] = factors[member] / len(group)
            voices = voices[[group[0] for group in groups]]
            voices = voices[self._sound(stack, voices, around, bench)]
            return self._middle(stack, voices, around)

    def _groups(self, products: Tensor, lengths: Tensor) -> list[list[int]]:
        """Members of a group are linked by cosines far above the usual, each with one other at least."""
        count = len(lengths)
        if count < 5:  # too few to say what is usual
            return [[index] for index in range(count)]
        cosines = products / (lengths[:, None] * lengths).clamp_min(1e-30)
        pairs = cosines[~torch.eye(count, dtype=torch.bool)]
        middle = pairs.median()
        deviation = max(1.4826 * float((pairs - middle).abs().median()), LEAST)
        linked = cosines > middle + self.alike * deviation
        groups, seen = [], set[int]()
        for first in range(count):
            group, reached = [], [first] if first not in seen else []
            while reached:
                index = reached.pop()
                if index not in seen:
                    seen.add(index)
                    group.append(index)
                    reached += linked[index].nonzero().flatten().tolist()
            if group:
                groups.append(sorted(group))
        return groups if 3 * len(groups) >= 2 * count else [[index] for index in range(count)]

    def _sound(self, stack: Stack, voices: Tensor, around: Tensor, bench: Workbench) -> list[int]:
        """Those that leave a model of use; all where none does, or where nobody can say."""
        if bench.judge is None:
            return list(range(len(voices)))
        before = bench.judge(around)
        least = 0.5 + COLLAPSED * (before - 0.5)
        sound = [k for k, voice in enumerate(voices) if bench.judge(_moved(stack, voice, around)) >= least]
        return sound or list(range(len(voices)))

    def _middle(self, stack: Stack, voices: Tensor, around: Tensor) -> Tensor:
        cut = int(self.trimmed * len(voices))
        result = torch.empty_like(around, device=stack.device)
        for columns, block in stack.blocks():
            begin = around[columns].to(block.device).double()
            steps = voices.to(block.device) @ (block.double() - begin)
            kept = steps.sort(dim=0).values[cut : len(voices) - cut]
            result[columns] = (begin + kept.mean(0)).float()
        return result


def _moved(stack: Stack, voice: Tensor, around: Tensor) -> Tensor:
    """The vector to which one voice alone would lead."""
    begin = around.to(stack.device)
    return (begin.double() * (1 - float(voice.sum())) + stack.combined(voice).double()).float()
