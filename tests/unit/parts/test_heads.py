"""How rows of a classification layer begin."""

from dataclasses import replace

import torch

from personae.core.backbone import Backbone
from personae.parts.corrections import softmax_regulariser
from personae.parts.heads import first_rows
from personae.parts.margins import Margin
from toys import TinyPlan, random_faces


def test_a_class_without_training_images_gets_a_random_direction_and_the_others_their_means():
    backbone = Backbone(TinyPlan().build(), TinyPlan().embedding)
    whole = random_faces(3, 4, 5)
    there = replace(whole, pixels=whole.pixels[whole.labels != 2], labels=whole.labels[whole.labels != 2])
    means = first_rows("mean", backbone, whole, torch.Generator().manual_seed(1))
    rows = first_rows("mean", backbone, there, torch.Generator().manual_seed(1))
    others = [0, 1, 3]
    torch.testing.assert_close(rows[others], means[others])
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
    assert not torch.equal(rows[2], first_rows("mean", backbone, there, torch.Generator().manual_seed(2))[2])
    owners = torch.tensor([0, 0, 1, 1])
    gradient = softmax_regulariser(rows, owners, Margin(kind="cosface", scale=16.0, margin=0.2)).gradient
    assert gradient.norm(dim=1).max() < 100  # of a row of zeros it is some 1e7
