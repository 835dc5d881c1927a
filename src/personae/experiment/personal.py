"""The model that one client uses, made where that client's private state is."""

import dataclasses
import tempfile
from collections.abc import Callable
from functools import cache as once
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from personae.core.acceleration import Acceleration
from personae.core.algorithm import ClientInfo
from personae.core.embedder import Embedder
from personae.core.holdings import ClientFaces
from personae.core.message import Broadcast
from personae.core.samples import Samples
from personae.core.threads import torch_threads
from personae.errors import ConfigError, DataError
from personae.experiment.assembly import checkpoints_of, federation_of
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import OwnFaces, own_faces, public_faces, public_source
from personae.experiment.forgotten import absent
from personae.experiment.home import OwnRun
from personae.experiment.materials import Materials
from personae.models import Network
from personae.parts.embedding import BackboneEmbedder
from personae.progress import Progress, silent
from personae.report.records import is_networked, read_run
from personae.runtime.host import ClientHost
from personae.runtime.public import SharedFaces
from personae.runtime.transport import Request


def personal_weights(
    run: Path, client: str, stage: str, *, cache: Path | None = None, progress: Progress = silent
) -> tuple[Network, dict[str, Tensor]]:
    """The network that this client uses after the stage, and its `state_dict`: to the bit the one that was evaluated.

    It is what the algorithm's `personal` makes of the private state. Where that trains (as `tune` does), it trains now,
    on the client's own faces.
    """
    content = read_run(run)
    if is_networked(content):
        raise ConfigError(
            f"{run}: the personal model of {client} is at the office of {client}, where its private state is; "
            "there it is had with: personae export HOME --personal --to FILE"
        )
    experiment = parse_experiment(content.config, str(run / "config.json"))
    speed = Acceleration(**content.environment.get("acceleration", {}))
    materials = Materials(experiment, Execution(acceleration=speed, progress=progress, cache=cache))
    if client not in materials.clients.clients:
        raise ConfigError(f"{run}: no client is called {client!r}; there are {', '.join(materials.clients.clients)}")
    if client in absent(experiment.forgotten):
        raise ConfigError(f"{run}: {client} was forgotten, and with it its personal model")
    # Features of public faces, if any are asked for, go to a folder that nobody else uses.
    with tempfile.TemporaryDirectory() as scratch, torch_threads(1):  # a client works with one thread
        public = None if materials.public is None else SharedFaces(materials.public.samples(), Path(scratch))
        holdings = materials.clients
        federation = federation_of(experiment, holdings, run / "private", acceleration=speed, public=public)
        host = ClientHost(federation)
        checkpoints = checkpoints_of(experiment, run, materials.digest(), speed)
        chosen = next(each for each in experiment.recipe if each.name == stage)
        info = ClientInfo(client, materials.clients.clients.index(client), client == federation.source)
        down = chosen.algorithm.send(checkpoints.finished(stage), info)
        embedder = host.personal(Request("evaluate", stage, chosen.rounds, info, down))
    return _taken_out(embedder, experiment.network, f"{run}: {client}")


def own_weights(
    own: OwnRun,
    stage: str,
    *,
    personal: bool = False,
    data: str | Path | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
) -> tuple[Network, dict[str, Tensor]]:
    """The shared or the `personal` model that a client has after what it received last of a stage, at its own home.

    Its faces (at `data`, or where they were) are opened only if the algorithm's `personal` looks at them.
    """
    request = own.last_request(stage)
    with tempfile.TemporaryDirectory() as scratch, torch_threads(1):
        faces = _Unopened(lambda: faces_of(own, data, cache, progress).of(request.client.name))
        federation = own.federation(faces, _public(own, Path(scratch), cache, progress))
        host = ClientHost(federation)
        if personal:
            embedder = host.personal(request)
        else:
            assert isinstance(request.down, Broadcast)
            host.backbone.load(request.down.model)
            embedder = federation.embedder(host.backbone)
        return _taken_out(embedder, own.experiment.network, f"{own.title}: {request.client.name}")


def faces_of(own: OwnRun, data: str | Path | None, cache: Path | None = None, progress: Progress = silent) -> OwnFaces:
    """The faces that a client had in a run, where they were or at `data`."""
    place = Path(data or own.data)
    if not place.exists():
        raise DataError(f"{place}: this client's faces are not here any more; say where they are with --data")
    execution = Execution(cache=cache, progress=progress)
    found = own_faces(place, own.experiment, execution, unlabelled=own.unlabelled, **own.handling)
    if found.held.faces.fingerprint != own.faces:
        raise DataError(
            f"{place}: these are not the faces that this client had in {own.title}: some were added, removed or "
            "changed; give those with --data, or take part in a new run"
        )
    return found


def _public(own: OwnRun, scratch: Path, cache: Path | None, progress: Progress) -> SharedFaces | None:
    source = public_source(own.experiment, Path(own.public) if own.public else None, own.handling)
    if source is None:
        return None
    execution = Execution(cache=cache, progress=progress)
    samples = _Later(lambda: public_faces(own.experiment, source, execution).samples())
    return SharedFaces(cast(Samples, samples), scratch)


class _Later:
    """Samples that are opened when somebody looks at them: most personal models are made without any."""

    def __init__(self, opened: Callable[[], Samples]) -> None:
        self._opener = opened

    @cached_property
    def _opened(self) -> Samples:
        return self._opener()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __len__(self) -> int:
        return len(self._opened)


class _Unopened:
    """`personae.core.holdings.Holdings` of a client whose faces may not be needed."""

    clients: tuple[str, ...] = ()
    newcomers: frozenset[str] = frozenset()

    def __init__(self, opened: Callable[[], ClientFaces]) -> None:
        self._opened = once(opened)

    def of(self, client: str) -> ClientFaces:  # noqa: ARG002 - there is but one
        opened = self._opened
        later = _Later(lambda: opened().train), _Later(lambda: opened().val), _Later(lambda: opened().test)
        train, val, test = (cast(Samples, part) for part in later)
        return ClientFaces(train, val, test)


def _taken_out(embedder: Embedder, plain: Network, whose: str) -> tuple[Network, dict[str, Tensor]]:
    """The network behind an embedder and its `state_dict`."""
    if not isinstance(embedder, BackboneEmbedder):
        raise ConfigError(f"{whose} has no network of its own to take out")
    state = {name: entry.detach().cpu().clone() for name, entry in embedder.backbone.module.state_dict().items()}
    for network in (plain, dataclasses.replace(plain, hidden=plain.embedding)):
        if network.layout().state_dict().keys() == state.keys():
            return network, state
    raise ConfigError(
        f"{whose} has a layer behind a network that ends with one already ([network] hidden); "
        "such a model cannot be taken out"
    )
