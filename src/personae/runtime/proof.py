"""A look at a model after a merge: does it still tell people apart?"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.finite import all_finite
from personae.core.payload import ModelState
from personae.core.samples import Samples

MEANINGFUL = 0.6  # of what a model must have come to before it can be said to have lost it
COLLAPSED = 0.5  # of what it was above chance


@dataclass
class Proof:
    """Puts models to the proof on `faces` that the server has rendered; without any, it sees whether they are finite.

    It loads them into the server's backbone.
    """

    backbone: Backbone
    embedder: Callable[[Backbone], Embedder]
    faces: Samples | None
    _last: tuple[Tensor, float] | None = field(default=None, init=False)  # the last model, and its separation

    def collapse(self, before: ModelState, after: ModelState) -> str | None:
        """What has become of a model that was of use, if it is of none any more."""
        if not all_finite(before.flat):
            return None
        if not all_finite(after.flat):
            return "the merged model is not finite"
        if self.faces is None or not has_collapsed(self.separation(before), self.separation(after)):
            return None
        return "the merged model does not tell rendered faces apart any more"

    def figures(self, before: ModelState, after: ModelState) -> dict[str, float]:
        """How far a model's weights went, if that can be said, and how well it tells rendered faces apart."""
        if not all_finite(after.flat):
            return {"separation": 0.0}
        found = {"step": float((after.flat - before.flat)[: after.layout.trainable_size].norm())}
        return found | ({"separation": self.separation(after)} if self.faces is not None else {})

    @property
    def judge(self) -> Callable[[Tensor], float] | None:
        """For a rule or one update: how well a vector tells rendered faces apart; one, if it is no whole model."""
        layout = self.backbone.layout

        def judged(vector: Tensor) -> float:
            return self._measured(ModelState(layout, vector)) if len(vector) == layout.size else 1.0

        return judged if self.faces is not None else None

    def separation(self, model: ModelState) -> float:
        """Of a merged model, on the rendered faces; that of the last one is known."""
        if self._last is None or self._last[0] is not model.flat:
            self._last = model.flat, self._measured(model)
        return self._last[1]

    def _measured(self, model: ModelState) -> float:
        assert self.faces is not None
        self.backbone.load(model)
        return separation(self.embedder(self.backbone), self.faces)


def separation(embedder: Embedder, faces: Samples) -> float:
    """The chance that two images of one person are more alike than two of two people; nothing where it gives none."""
    vectors, labels = embed(embedder, faces).double(), faces.labels
    if not all_finite(vectors):
        return 0.0
    scores, same = vectors @ vectors.T, labels[:, None] == labels
    upper = torch.ones_like(same).triu(1)
    genuine, impostor = scores[same & upper], scores[~same & upper].sort().values
    below = torch.searchsorted(impostor, genuine) + torch.searchsorted(impostor, genuine, right=True)
    return float((below / 2 / len(impostor)).mean())


def has_collapsed(before: float, after: float) -> bool:
    return before >= MEANINGFUL and after < 0.5 + COLLAPSED * (before - 0.5)
