"""The personal model of one client of a finished run, made where that client's private state is."""

import dataclasses
import tempfile
from pathlib import Path

from torch import Tensor

from personae.core.acceleration import Acceleration
from personae.core.algorithm import ClientInfo
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.experiment.materials import Materials
from personae.experiment.run import federation_of
from personae.models import Network
from personae.parts.embedding import BackboneEmbedder
from personae.progress import Progress, silent
from personae.report.records import read_run
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import torch_threads
from personae.runtime.public import SharedFaces
from personae.runtime.transport import Request


def personal_weights(
    run: Path, client: str, stage: str, *, cache: Path | None = None, progress: Progress = silent
) -> tuple[Network, dict[str, Tensor]]:
    """The network that this client uses after the stage, and its `state_dict`: to the bit the one it was judged by.

    It is what the algorithm's `personal` makes of the private state. Where that trains (as `tune` does), it trains now,
    on the client's own faces.
    """
    content = read_run(run)
    experiment = parse_experiment(content.config, str(run / "config.json"))
    materials = Materials(experiment, progress=progress, cache=cache)
    if client not in materials.clients.clients:
        raise ConfigError(f"{run}: no client is called {client!r}; there are {', '.join(materials.clients.clients)}")
    speed = Acceleration(**content.environment.get("acceleration", {}))
    # Features of public faces, if any are asked for, go to a folder that nobody else uses.
    with tempfile.TemporaryDirectory() as scratch, torch_threads(1):  # a client works with one thread
        public = None if materials.public is None else SharedFaces(materials.public.samples(), Path(scratch))
        federation = federation_of(materials, run, speed, public)
        host = ClientHost(federation)
        recipe = experiment.recipe
        checkpoints = Checkpoints(run / "checkpoints", materials.digest(speed), recipe, host.backbone.layout)
        chosen = next(each for each in recipe if each.name == stage)
        info = ClientInfo(client, materials.clients.clients.index(client), client == federation.source)
        down = chosen.algorithm.send(checkpoints.finished(stage), info)
        embedder = host.personal(Request("assess", stage, chosen.rounds, info, down))
    if not isinstance(embedder, BackboneEmbedder):
        raise ConfigError(f"{run}: {chosen.algorithm.name} gives {client} no network of its own to take out")
    state = {name: entry.detach().cpu().clone() for name, entry in embedder.backbone.module.state_dict().items()}
    plain = experiment.network
    for network in (plain, dataclasses.replace(plain, hidden=plain.embedding)):
        if network.layout().state_dict().keys() == state.keys():
            return network, state
    raise ConfigError(
        f"{run}: {client} has a layer behind a network that ends with one already ([network] hidden); "
        "such a model cannot be taken out"
    )
