"""A look at a model after a merge: does it still tell people apart?"""

import torch

from personae.core.embedder import Embedder, embed
from personae.core.finite import all_finite
from personae.core.samples import Samples

MEANINGFUL = 0.6  # of what a model must have come to before it can be said to have lost it
COLLAPSED = 0.5  # of what it was above chance


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
