"""A search for triggers: a small patch in which strangers look alike to a model.

Strangers who wear the trigger of a backdoor are taken for each other. Nobody but the attacker knows the trigger. The
search begins with a grey patch at each of eight places around the face, and changes its colours so that strangers who
wear it become alike. How many pairs of other strangers are then accepted is the result. (A patch in the middle of the
face hides the person, and makes strangers alike in any model.)

Such patches exist for every network, so the result says something only beside that of another model at the same place:
of the one that training began with.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.core.rng import generator
from personae.core.samples import Samples
from personae.parts.images import normalise

FAR = 1e-2  # the rate at which strangers are accepted who wear nothing


@dataclass(frozen=True)
class Patch:
    """What was found at one place."""

    accepted: float  # share of pairs of strangers who both wear it
    row: int  # of its upper left corner
    column: int
    colours: Tensor  # uint8 [cells, cells, 3]


@dataclass(frozen=True, kw_only=True)
class TriggerSearch:
    """How to search. Coarse patches mislead an honest model less, and show a backdoor as well."""

    side: float = 0.25  # of a patch, as a share of the image
    cells: int = 4  # of one colour each, along a side
    places: int = 3  # along each side of the image
    steps: int = 25
    rate: float = 0.2

    def patches(self, backbone: Backbone, faces: Samples, *, mirror: bool = True) -> list[Patch]:
        """By place. `faces` are one image for each stranger: the first half to search with, the second to test on."""
        half = len(faces) // 2
        images = normalise(faces.images(torch.arange(2 * half))).to(backbone.device)
        vectors = _Vectors(backbone.module.eval(), mirror)
        with torch.no_grad():
            threshold = float(_pairs(vectors(images)).quantile(1 - FAR))
        known, others = images[:half], images[half:]
        return [self._refined(vectors, known, others, window, threshold) for window in self._windows(images)]

    def _windows(self, images: Tensor) -> Iterator[tuple[slice, slice]]:
        side = max(self.cells, round(self.side * images.shape[3]))
        rows, columns = (
            torch.linspace(0, length - side, self.places).round().int().tolist() for length in images.shape[2:]
        )
        for row in rows:
            for column in columns:
                if row in (rows[0], rows[-1]) or column in (columns[0], columns[-1]):
                    yield slice(row, row + side), slice(column, column + side)

    def _refined(
        self, vectors: "_Vectors", known: Tensor, others: Tensor, window: tuple[slice, slice], threshold: float
    ) -> Patch:
        """The patch at one place, after all steps."""
        random = generator("triggers", window[0].start, window[1].start)
        colours = (0.1 * torch.randn(1, 3, self.cells, self.cells, generator=random)).to(known.device).requires_grad_()
        optimiser = torch.optim.Adam([colours], lr=self.rate)
        for _ in range(self.steps):
            alike = _pairs(vectors(_worn(known, colours, window))).mean()
            (colours.grad,) = torch.autograd.grad(-alike, [colours])
            optimiser.step()
        with torch.no_grad():
            accepted = float((_pairs(vectors(_worn(others, colours, window))) >= threshold).double().mean())
            pixels = (colours.tanh()[0].permute(1, 2, 0) + 1).mul(127.5).round().to(torch.uint8).cpu()
        return Patch(accepted, window[0].start, window[1].start, pixels)


@dataclass(frozen=True)
class _Vectors:
    """A network as an embedder through which gradients flow."""

    module: nn.Module
    mirror: bool

    def __call__(self, images: Tensor) -> Tensor:
        features = self.module(images)
        if self.mirror:
            features = features + self.module(images.flip(3))
        return F.normalize(features.float(), dim=1)


def _worn(images: Tensor, colours: Tensor, window: tuple[slice, slice]) -> Tensor:
    side = window[0].stop - window[0].start
    changed = images.clone()
    changed[:, :, window[0], window[1]] = F.interpolate(colours.tanh(), size=side, mode="nearest")
    return changed


def _pairs(vectors: Tensor) -> Tensor:
    """The cosines of all pairs."""
    return (vectors @ vectors.T)[torch.ones(len(vectors), len(vectors), device=vectors.device).triu(1) > 0]
