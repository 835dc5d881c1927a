"""A trained model by where it is: a run, a client's home, a weights file, or a model in ONNX."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor

from personae.core.backbone import Backbone
from personae.core.embedder import Embedder
from personae.core.threads import available_cores
from personae.errors import ConfigError, DataError
from personae.experiment.home import is_home, own_run
from personae.experiment.personal import own_weights, personal_weights
from personae.files import read_json
from personae.models import Network, load_weights
from personae.parts.embedding import BackboneEmbedder
from personae.parts.onnx import SUFFIX, load_onnx
from personae.progress import Notify, Progress, silent, unheard


@dataclass(frozen=True)
class Model:
    """An embedder, and the size of the images it takes."""

    embedder: Embedder
    height: int
    width: int
    digest: str
    """Another for another model: vectors under one digest can be compared with each other."""


def load_model(
    model: str | Path,
    stage: str | None = None,
    network: Network | None = None,
    *,
    client: str | None = None,
    run: str | None = None,
    personal: bool = False,
    data: str | Path | None = None,
    mirror: bool = True,
    raw: bool = False,
    size: int = 112,
    device: str = "cpu",
    progress: Progress = silent,
    notify: Notify = unheard,
) -> Model:
    """Of a run's last finished stage (or the one named), of a client's home, of a weights file, or in ONNX.

    `client`: of a run, the personal model of this client instead of the global one. `run`, `personal`, `data`: of a
    home, which run, whether it is this client's own model, and where its faces are now. `mirror`: vectors are of an
    image and its mirror image together. `raw` and `size` are for ONNX: whether it wants pixels from 0 to 255, and of
    which size, where it does not say.
    """
    model = Path(model)
    if model.suffix.lower() == SUFFIX and not model.is_dir():
        if stage is not None or network is not None or client is not None:
            raise ConfigError(f"{model}: a model in ONNX has neither --stage nor --backbone nor --client")
        _require_no_home(model, run, personal, data)
        onnx = load_onnx(model, mirror=mirror, raw=raw, size=size)
        return Model(onnx, onnx.height, onnx.width, onnx.fingerprint)
    network, state = load_state(
        model, stage, network, client=client, run=run, personal=personal, data=data, progress=progress, notify=notify
    )
    module = network.build()
    module.load_state_dict(state)
    embedder = BackboneEmbedder(Backbone(module, network.embedding, device), mirror, available_cores())
    return Model(embedder, network.height, network.width, _digest(network, state, mirror))


def load_state(
    model: Path,
    stage: str | None = None,
    network: Network | None = None,
    *,
    client: str | None = None,
    run: str | None = None,
    personal: bool = False,
    data: str | Path | None = None,
    progress: Progress = silent,
    notify: Notify = unheard,
) -> tuple[Network, dict[str, Tensor]]:
    """The network and its trained weights, of a run (or of one of its clients), a client's home or a weights file."""
    if is_home(model):
        if client is not None:
            raise ConfigError(f"--client goes with a run, and {model} is the home of one client; use --personal")
        own = own_run(model, run, notify)
        chosen = own.last_stage(stage)
        return own_weights(own, chosen, personal=own.personal(chosen, personal, notify), data=data, progress=progress)
    _require_no_home(model, run, personal, data)
    if not model.is_dir():
        if stage is not None or client is not None:
            raise ConfigError(f"--stage and --client go with a run, and {model} is not a run")
        if not model.exists():
            raise DataError(f"{model}: no such file or folder; give a run, a client's home or a weights file")
        return load_weights(model, network)
    config = model / "config.json"
    if not config.is_file():
        raise ConfigError(
            f"{model}: this folder is neither a run nor the home of a client that has taken part in one; "
            "give such a folder or a weights file"
        )
    chosen = finished_stage(model, stage)
    if client is not None:
        return personal_weights(model, client, chosen, progress=progress)
    network = read_json(config, lambda known: TypeAdapter(Network).validate_python(known["network"]))
    return load_weights(model / "models" / f"{chosen}.safetensors", network)


def _require_no_home(model: Path, run: str | None, personal: bool, data: str | Path | None) -> None:
    if run is not None or personal or data is not None:
        raise ConfigError(f"--run, --personal and --data go with the home of a client, and {model} is not one")


def _digest(network: Network, state: Mapping[str, Tensor], mirror: bool) -> str:
    """Of what determines the vectors, however a version of this package or of PyTorch describes the network."""
    digest = hashlib.sha256(repr((network.height, network.width, mirror)).encode())
    for name, tensor in sorted(state.items()):
        if tensor.is_floating_point():
            digest.update(repr((name, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def finished_stage(run: Path, stage: str | None = None) -> str:
    """The name of a run's last finished stage, or `stage` itself if that is finished."""
    names = read_json(run / "summary.json", lambda known: [str(item["name"]) for item in known["stages"]])
    done = [name for name in names if (run / "models" / f"{name}.safetensors").is_file()]
    if stage is not None and stage not in names:
        raise ConfigError(f"{run}: no stage is called {stage!r}; there are {', '.join(names)}")
    if not done or (stage is not None and stage not in done):
        raise ConfigError(
            f"{run}: {stage or 'no stage'} is finished yet; resume the run (--resume, in Python resume=True)"
        )
    return stage or done[-1]
