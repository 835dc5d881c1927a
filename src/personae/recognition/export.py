"""A trained model as a file that goes where it is used, evaluated as it is there, with its card beside it."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from personae.errors import ConfigError, PersonaeError
from personae.evaluation.protocols import EvaluationProtocol
from personae.evaluation.suite import Evaluation
from personae.evaluation.suite import evaluate as evaluate_on
from personae.experiment.model import Model, load_model, load_state
from personae.files import require_place, together
from personae.models import Network, save_weights
from personae.models.weights import SAFETENSORS
from personae.parts.onnx import INPUT, OUTPUT, SUFFIX, save_onnx
from personae.progress import Notify, Progress, silent, unheard
from personae.recognition import card as cards
from personae.recognition.origin import origin_of
from personae.recognition.threshold import plain_evaluation


@dataclass(frozen=True)
class Exported:
    """What was written where, and how far a model in ONNX is from the one in PyTorch."""

    model: Path
    page: Path
    card: Path
    parity: float | None
    evaluation: Evaluation


def export_model(
    source: str | Path,
    to: str | Path,
    *,
    stage: str | None = None,
    client: str | None = None,
    run: str | None = None,
    personal: bool = False,
    data: str | Path | None = None,
    network: Network | None = None,
    raw: bool = False,
    unit: bool = False,
    mirror: bool = True,
    evaluate: bool = True,
    on: Callable[[Model], Sequence[EvaluationProtocol]] | None = None,
    fars: Sequence[float] = (),
    resamples: int = 200,
    cache: str | Path | None = None,
    progress: Progress = silent,
    notify: Notify = unheard,
) -> Exported:
    """Write the model of a run, of one of its clients, of a client's home or of a file to a .safetensors or .onnx file.

    `run`, `personal`, `data`: of a home, as for `load_model`. `raw`, `unit`: of ONNX, whether it takes pixels from 0 to
    255, and whether it gives vectors of length one. Unless told not to `evaluate`, what was written is evaluated: `on`
    benchmarks of the user's choice, or of a run on its own held-out faces, or of a home on the client's test faces (at
    `fars` beside the run's own rates), with intervals from so many `resamples`. The card has the figures, and the
    thresholds for `personae enroll`. Model and card appear together when all that is done.
    """
    source, to = Path(source), Path(to)
    writer = WRITERS.get(to.suffix.lower())
    if writer is None:
        raise ConfigError(f"{to}: a model is exported to a file that ends with {' or '.join(WRITERS)}")
    if to.resolve() == source.resolve():
        raise ConfigError(f"{to}: this is the model itself; choose another file")
    if source.resolve() in to.resolve().parent.parents:  # where a run keeps its own models and states
        raise ConfigError(f"{to}: a run keeps its own files there; choose another place")
    require_place(to)
    network, state = load_state(
        source, stage, network, client=client, run=run, personal=personal, data=data, progress=progress, notify=notify
    )
    origin = origin_of(source, stage, client, run, personal, data)
    with together(to, *cards.card_paths(to)) as (file, page, plain):
        try:
            parity = writer(file, network, state, raw, unit)
        except PersonaeError as error:
            raise type(error)(str(error).replace(str(file), str(to))) from error
        model = load_model(file, mirror=mirror)
        protocols: Sequence[EvaluationProtocol] = ()
        if evaluate:
            protocols = on(model) if on is not None else origin.benchmarks(fars, resamples, progress, notify)
        found = evaluate_on(model.embedder, protocols, cache=cache, progress=progress)
        content = {
            "format": cards.FORMAT,
            **_plain(model, found),
            **origin.history(),
            "intended_use": list(cards.INTENDED),
            "limits": [*([cards.MADE_UP] if origin.made_up else []), *cards.LIMITS],
        }
        content["model"] |= {
            "file": to.name,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "network": dataclasses.asdict(network),
            "parameters": sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point()),
            "client": origin.client,
            "input": {
                "name": INPUT,
                "height": network.height,
                "width": network.width,
                "pixels": "0 to 255" if raw else "-1 to 1",
            },
            "output": OUTPUT,
            "unit": unit,
            "mirror": mirror,
            "parity": parity,
        }
        cards.write_card(page, plain, content)
    return Exported(to, *cards.card_paths(to), parity, found)


def _to_safetensors(to: Path, network: Network, state: Mapping[str, Tensor], raw: bool, unit: bool) -> None:
    if raw or unit:
        raise ConfigError(f"{to}: weights alone take no pixels and scale no vectors; this goes with {SUFFIX}")
    save_weights(to, network, state)


def _to_onnx(to: Path, network: Network, state: Mapping[str, Tensor], raw: bool, unit: bool) -> float:
    module = network.build()
    module.load_state_dict(state)
    return save_onnx(module, to, network.height, network.width, raw=raw, unit=unit)


Writer = Callable[[Path, Network, Mapping[str, Tensor], bool, bool], float | None]
WRITERS: Mapping[str, Writer] = {SAFETENSORS: _to_safetensors, SUFFIX: _to_onnx}


def _plain(model: Model, found: Evaluation) -> dict[str, Any]:
    """Without the curves, which would make up nearly all of a card."""
    plain = plain_evaluation(model, found)
    for result in plain["benchmarks"].values():
        del result["roc"], result["histogram"]
    return plain
