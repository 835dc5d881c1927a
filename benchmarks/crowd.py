"""A crowd of clients with random pixels, and rounds of FedPE over it through the engine's own parts."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from personae import Augmentation, ClientInfo, Federation, FedPE, Firewall, LocalSGD, Margin, Network, Stage
from personae.core.acceleration import Acceleration
from personae.core.algorithm import AnyAlgorithm, Server
from personae.core.holdings import ClientFaces
from personae.core.rng import generator
from personae.core.selection import Everybody, Occasion, Selection
from personae.core.threads import torch_threads
from personae.data.pixels import PixelStore
from personae.data.samples import FaceSamples
from personae.runtime.exchange import Exchange
from personae.runtime.inprocess import local_transport
from personae.runtime.round import federated_round
from personae.runtime.transport import Transport

IDENTITIES = 5
MARGIN = Margin(kind="cosface", scale=30.0, margin=0.4)
NETWORKS = {
    "small": Network(name="small", embedding=64, height=64, width=64),
    "mobilefacenet": Network(name="mobilefacenet", embedding=128, height=112, width=112),
}


def training(batch: int = 32, **options: object) -> LocalSGD:
    """One epoch, with a flip alone: what the plainest loop has."""
    flips = Augmentation(flip=True, shift=0, colour=0.0)
    return LocalSGD(**{"batch_size": batch, "epochs": 1, "augmentation": flips, **options})  # type: ignore[arg-type]


def random_pixels(folder: Path, side: int, count: int = 4000) -> PixelStore:
    """A memory-mapped file of noise that all clients share."""
    path = folder / f"pixels-{side}"
    if not path.exists():
        np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8).tofile(path)
    return PixelStore(path, count, side, side, "noise")


@dataclass(frozen=True)
class Crowd:
    """`count` clients with a window each into the pixels; identities are either all alike or of several numbers."""

    pixels: PixelStore
    count: int
    images: int
    identities: tuple[int, ...] = (IDENTITIES,)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(f"client-{index:05d}" for index in range(self.count))

    @property
    def newcomers(self) -> frozenset[str]:
        return frozenset()

    def of(self, client: str) -> ClientFaces:
        index = int(client.removeprefix("client-"))
        classes = self.identities[index % len(self.identities)]
        stored = (index * self.images + np.arange(self.images)) % self.pixels.count
        names = tuple(f"{client}/{number}" for number in range(classes))
        faces = FaceSamples(names, torch.arange(self.images) % classes, self.pixels, stored)
        return ClientFaces(faces, faces, faces)


def nothing_to_evaluate(*_: object) -> dict[str, float]:
    return {}


@dataclass
class Rounds:
    """Rounds of FedPE: transport, firewall, spool, averaging, private state on disk."""

    folder: Path
    crowd: Crowd
    network: Network
    training: LocalSGD
    workers: int = 1
    device: str = "cpu"
    acceleration: Acceleration = field(default_factory=Acceleration)
    selection: Selection = field(default_factory=Everybody)
    algorithm: AnyAlgorithm | None = None
    firewall: Firewall = field(default_factory=Firewall)

    def __post_init__(self) -> None:
        algorithm = self.algorithm or FedPE(training=self.training, margin=MARGIN, head_init="random")
        self.stage = Stage(name="round", algorithm=algorithm, rounds=100_000, selection=self.selection)
        recipe = (self.stage,)
        self.federation = Federation(
            seed=0,
            recipe=recipe,
            network=self.network,
            holdings=self.crowd,
            private=self.folder / "private",
            evaluator=nothing_to_evaluate,
            acceleration=self.acceleration,
        )
        self.transport: Transport = local_transport(self.federation, self.workers, self.device)
        self.backbone = self.federation.backbone(self.device)
        self.clients = [ClientInfo(name, index) for index, name in enumerate(self.crowd.clients)]
        self.state = self.stage.algorithm.start(None, self._server(0))
        self.rounds = 0

    def round(self) -> None:
        self.rounds += 1
        exchange = Exchange(self.transport, "train", self.stage, self.rounds)
        with torch_threads(1):  # as in the engine
            outcome = federated_round(
                self.stage,
                self.state,
                self._server(self.rounds),
                self.stage.selection.select(Occasion(self.clients, 0, self.stage.name, self.rounds, self.stage.rounds)),
                exchange,
                self.firewall,
                self.folder / "scratch",
                lambda _: None,
            )
        if outcome.failed or outcome.rejected:
            raise RuntimeError(f"{outcome.failed} {outcome.rejected}")
        self.state = outcome.state
        self.transport.settle()
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _server(self, round_: int) -> Server:
        return Server(self.backbone.state(), self.backbone, None, None, generator(0, round_), round_, 100_000)
