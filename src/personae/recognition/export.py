"""A trained model as a file that goes where it is used, judged as it is there, with its card beside it."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from personae.errors import ConfigError
from personae.evaluation.protocols import EvaluationProtocol
from personae.evaluation.suite import Evaluation, evaluate
from personae.experiment.assess import Model, finished_stage, load_model, load_state
from personae.experiment.config import SYNTHETIC, Experiment, parse_experiment
from personae.experiment.materials import Materials
from personae.models import Network, save_weights
from personae.models.weights import SAFETENSORS
from personae.parts.onnx import INPUT, OUTPUT, SUFFIX, save_onnx
from personae.progress import Progress, silent
from personae.recognition import card as cards
from personae.recognition.threshold import plain_evaluation
from personae.report.records import Run, read_run


@dataclass(frozen=True)
class Exported:
    """What was written where, and how far a model in ONNX is from the one in PyTorch."""

    model: Path
    page: Path
    card: Path
    parity: float | None
    evaluation: Evaluation


@dataclass(frozen=True)
class _Origin:
    """A run, and which of its models it is."""

    run: Run
    experiment: Experiment
    stage: str


def export_model(
    source: str | Path,
    to: str | Path,
    *,
    stage: str | None = None,
    client: str | None = None,
    network: Network | None = None,
    raw: bool = False,
    unit: bool = False,
    mirror: bool = True,
    judge: bool = True,
    on: Callable[[Model], Sequence[EvaluationProtocol]] | None = None,
    fars: Sequence[float] = (),
    resamples: int = 200,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a run's model, or that of one of its clients, or a weights file, to a .safetensors or .onnx file.

    `raw`, `unit`: of ONNX, whether it takes pixels from 0 to 255, and whether it gives vectors of length one. Unless
    told not to `judge`, the file that was written is evaluated: `on` benchmarks of the user's choice, or of a run on
    its own held-out faces (at `fars` beside its own rates), with intervals from so many `resamples`. The card has the
    figures, and the thresholds for `personae enroll`.
    """
    source, to = Path(source), Path(to)
    writer = WRITERS.get(to.suffix.lower())
    if writer is None:
        raise ConfigError(f"{to}: a model is exported to a file that ends with {' or '.join(WRITERS)}")
    if to.resolve() == source.resolve():
        raise ConfigError(f"{to}: this is the model itself; choose another file")
    origin = _origin(source, stage)
    network, state = load_state(source, stage, network, client=client, progress=progress)
    parity = writer(to, network, state, raw, unit)
    model = load_model(to, mirror=mirror)
    protocols: Sequence[EvaluationProtocol] = ()
    if judge and on is not None:
        protocols = on(model)
    elif judge and origin is not None:
        protocols = _own_benchmarks(origin.experiment, client, fars, resamples, progress)
    found = evaluate(model.embedder, protocols, cache=cache, progress=progress)
    content = {
        "format": cards.FORMAT,
        **_plain(model, found),
        **_history(origin, client),
        "intended_use": list(cards.INTENDED),
        "limits": _limits(origin),
    }
    content["model"] |= {
        "file": to.name,
        "sha256": hashlib.sha256(to.read_bytes()).hexdigest(),
        "network": dataclasses.asdict(network),
        "parameters": sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point()),
        "client": client,
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
    return Exported(to, *cards.write_card(to, content), parity, found)


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


def _origin(source: Path, stage: str | None) -> _Origin | None:
    if not source.is_dir():
        return None
    run = read_run(source)
    return _Origin(run, parse_experiment(run.config, str(source / "config.json")), finished_stage(source, stage))


def _own_benchmarks(
    experiment: Experiment, client: str | None, fars: Sequence[float], resamples: int, progress: Progress
) -> list[EvaluationProtocol]:
    """The run's own benchmarks; one client's model has nothing to do with the faces of the others."""
    found = Materials(experiment, progress=progress).benchmarks()
    chosen = [each for each in found if client is None or each.name.partition("/")[0] != "private"]
    rates = tuple(sorted({*experiment.evaluation.fars, *fars}, reverse=True))
    return [dataclasses.replace(each, fars=rates, resamples=resamples) for each in chosen]


def _plain(model: Model, found: Evaluation) -> dict[str, Any]:
    """Without the curves, which would make up nearly all of a card."""
    plain = plain_evaluation(model, found)
    for result in plain["benchmarks"].values():
        del result["roc"], result["histogram"]
    return plain


def _history(origin: _Origin | None, client: str | None) -> dict[str, Any]:
    if origin is None:
        return {"training": None, "left_the_clients": [], "at_the_client": {}}
    record = origin.run.records[origin.stage]
    return {
        "training": cards.training(origin.run, origin.experiment, origin.stage),
        "left_the_clients": cards.left_the_clients(origin.run, origin.experiment, origin.stage),
        "at_the_client": dict(record.last_clients.get(client, {})) if client else {},
    }


def _limits(origin: _Origin | None) -> list[str]:
    if origin is None or origin.experiment.weights is not None:
        return list(cards.LIMITS)
    sources = (origin.experiment.data.public, origin.experiment.data.private)
    made_up = all(each.source == SYNTHETIC and each.parts is None for each in sources if each)
    return [*([cards.MADE_UP] if made_up else []), *cards.LIMITS]
