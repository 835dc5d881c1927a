"""What the statistics of BatchNorm come to in most updates of a round, and how far each update is from that.

Nothing is learnt from a model's statistics until somebody uses it, so nobody can say from an update alone whether they
are right. But clients that trained the same model agree on them, far more closely than on weights. Distances are
therefore from the middle of the round. From the model that was sent they would be longer in every round in which
clients put right what attackers have done to it, and with them what attackers may do.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import Gradient, ModelState, NetworkVector

DEAD = 0.01  # of the mean variance of a layer: a channel with less hardly varies, and is no unit to measure by
EPSILON = 1e-5  # what BatchNorm adds to a variance


@dataclass
class Consensus:
    """Of the updates of one round: whatever in them no optimiser moves."""

    sent: ModelState
    _layouts: list[Layout] = field(default_factory=list, init=False)
    _found: dict[str, Tensor] = field(default_factory=dict, init=False)

    def hear(self, client: str, update: Message) -> None:
        vectors = [
            each for each in update.parts() if isinstance(each, NetworkVector) and not isinstance(each, Gradient)
        ]
        tails = [part.flat[part.layout.trainable_size :].cpu() for part in vectors]
        if any(map(len, tails)):
            self._layouts, self._found[client] = [part.layout for part in vectors], torch.cat(tails)

    def distances(self) -> dict[str, float]:
        """By client, of the entry that is farthest off: the root mean square of its values, in standard deviations.

        Layers differ by orders of magnitude, and a small one is as easily ruined as a large one.
        """
        if not self._found:
            return {}
        middle = self._middle
        units = torch.cat([_unit(name, entries) for entries in self._entries(middle) for name in entries])

        def distance(found: Tensor) -> float:
            off = self._entries(((found - middle) / units).square())
            return math.sqrt(max(float(values.mean()) for entries in off for values in entries.values()))

        return {client: distance(found) for client, found in self._found.items()}

    @property
    def model(self) -> ModelState:
        """The one that was sent, with the statistics of the middle."""
        model = self.sent
        for layout, entries in zip(self._layouts, self._entries(self._middle) if self._found else (), strict=False):
            flat = model.entries(layout).clone()
            flat[layout.trainable_size :] = torch.cat(list(entries.values())).to(flat.device)
            model = model.with_entries(layout, flat)
        return model

    @property
    def _middle(self) -> Tensor:
        """The median of each value."""
        ordered = torch.stack(list(self._found.values())).sort(dim=0).values
        return ordered[(len(ordered) - 1) // 2].lerp(ordered[len(ordered) // 2], 0.5)

    def _entries(self, found: Tensor) -> Iterator[dict[str, Tensor]]:
        """By vector of an update: its entries by name, each as a row of numbers."""
        for layout in self._layouts:
            sizes = [math.prod(shape) for shape in layout.shapes[layout.trainable :]]
            *own, found = torch.split_with_sizes(found, [*sizes, len(found) - sum(sizes)])
            yield dict(zip(layout.names[layout.trainable :], own, strict=True))


def _unit(name: str, entries: dict[str, Tensor]) -> Tensor:
    """What an entry is measured by: a mean by the deviation beside it, anything else by its own size."""
    is_mean = name.endswith("running_mean")
    size = entries[name.removesuffix("running_mean") + "running_var" if is_mean else name].abs() + EPSILON
    size = size.clamp_min(DEAD * float(size.mean()))
    return size.sqrt() if is_mean else size
