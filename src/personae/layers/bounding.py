"""What layers with noise share: which algorithms they go around, what they keep from leaving, and bounds on updates."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from personae.core.algorithm import AnyAlgorithm, Types
from personae.core.layer import Layered, described, layers_of, recast, reduced
from personae.core.message import Message
from personae.core.payload import Count, ModelState, NetworkVector, Payload, Scalars

STANDING: Mapping[type[Payload], Payload] = {Count: Count(1), Scalars: Scalars({})}  # for what clients do not send


def require_model_alone(layer: str, algorithm: AnyAlgorithm) -> None:
    """That a client sends a model, and besides it at most figures, which can be left out."""
    refused = f"layer {layer} hides a client in the mean of the models"
    for other in layers_of(algorithm):
        if other.mechanism:
            raise ValueError(f"layer {other.name} adds noise already; layer {layer} would not be accounted for")
        if other.hides_single_updates:
            raise ValueError(
                f"layer {layer} bounds single updates, which layer {other.name} hides; put local-noise before "
                f"{other.name}, so that clients add noise to what is hidden"
            )
    kinds = algorithm.types.up.kinds()
    for name, kind in kinds.items():
        if kind in STANDING or name == "model" or name in algorithm.withheld:
            continue
        what = "a template of every person leaves without noise" if kind.is_template else "it would leave without noise"
        raise ValueError(f"{refused}, and {described(algorithm)} sends {name} ({kind.__name__}) besides: {what}")
    if not issubclass(kinds.get("model", Payload), NetworkVector):
        raise ValueError(f"{refused}, and clients of {described(algorithm)} send none")
    if algorithm.aggregates != "vectors":
        raise ValueError(f"{refused}, and {described(algorithm)} does not take a plain mean of them")


def without_figures(inner: Types) -> type[Message]:
    """What leaves, without losses and counts: no noise hides these, and by a count an update would weigh more."""
    return reduced(inner.up, *figures_of(inner))


def figures_of(inner: Types) -> list[str]:
    return [name for name, kind in inner.up.kinds().items() if kind in STANDING]


def model_alone(around: Layered, model: NetworkVector) -> Message:
    """What leaves, if it is this model."""
    return around.types.up(**{**dict.fromkeys(around.types.up.hints()), "model": model})


def counted_alike(around: Layered, up: Message, **others: Payload) -> Message:
    """The message as the algorithm inside knows it: every client rests on one sample, so that all weigh the same."""
    kinds = around.inner.types.up.kinds()
    standing: dict[str, Any] = {name: STANDING[kinds[name]] for name in figures_of(around.inner.types)}
    return recast(around.inner.types.up, up, **{**standing, **others})


def shortened(way: Tensor, bound: float) -> Tensor:
    """A way that is no longer than the bound; one that has no finite length is for the firewall to refuse."""
    length = float(way.double().norm())
    return way * (bound / length) if bound < length < math.inf else way


def with_sane_variances(model: ModelState, before: ModelState) -> ModelState:
    """Noise may take a running variance of BatchNorm below zero: none falls below a tenth of what it was."""
    flat = model.flat.clone()
    views, old = model.layout.views(flat), before.layout.views(before.flat.to(flat.device))
    for name in model.layout.statistics:
        if name.endswith("running_var"):
            torch.maximum(views[name], old[name] / 10, out=views[name])
    return ModelState(model.layout, flat)
