"""What a captured step may share with another: read from the objective of a local step, on any device."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from personae.core.backbone import Backbone
from personae.parts.batches import Batch
from personae.parts.graphs import Uncapturable, _Contents
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin
from personae.parts.terms import EmbeddingRegularisation, Proximal, Term, Value

TERMS = {"none": (), "proximal": (Proximal(weight=0.1),), "embedding": (EmbeddingRegularisation(weight=1.0),)}


def read(backbone: Backbone, step: LocalStep, rows: Tensor, *parts: Tensor):
    contents = _Contents(backbone, [rows])
    objective = step.objective(backbone, backbone.state(), step.classification(rows, *parts))
    return contents.read("loss", objective), contents


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_clients_with_the_same_objective_share_a_program(backbone: Backbone, terms: tuple[Term, ...]):
    """Each has rows and received weights of its own: these are moved, and never taken for one another."""
    step = LocalStep(terms=terms)
    (one, first), (other, second) = (read(backbone, step, torch.zeros(classes, 8)) for classes in (3, 5))
    assert one == other
    assert hash(one) == hash(other)
    assert [tensor.ndim for tensor in first.tensors] == [2, *(1 for _ in terms)]
    assert all(a is not b for a, b in zip(first.tensors, second.tensors, strict=True))
    assert backbone.module in first.objects


def test_other_terms_weights_margins_and_parts_are_other_programs(backbone: Backbone):
    steps = [LocalStep(terms=terms) for terms in TERMS.values()]
    steps += [LocalStep(terms=(Proximal(weight=0.2),)), LocalStep(margin=Margin(margin=0.1))]
    found = [read(backbone, step, torch.zeros(3, 8))[0] for step in steps]
    found.append(read(backbone, LocalStep(), torch.zeros(3, 8), torch.zeros(2, 8))[0])
    assert len(set(found)) == len(found)


@dataclass(frozen=True, kw_only=True)
class Counting(Term):
    """One that changes from step to step."""

    name: ClassVar[str] = "counting"

    def begin(self, backbone: Backbone, received) -> Value:
        seen: list[int] = []

        def value(batch: Batch, features: Tensor) -> Tensor:
            seen.append(len(batch.labels))
            return features.mean() / len(seen)

        return value


def test_a_term_that_may_change_from_step_to_step_is_not_captured(backbone: Backbone):
    with pytest.raises(Uncapturable, match="its loss uses seen, a list"):
        read(backbone, LocalStep(terms=(Counting(weight=1.0),)), torch.zeros(3, 8))
