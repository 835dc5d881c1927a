"""Small things to test with: faces in memory, a tiny network, clients that misbehave, a journal in lists."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from personae.algorithms import FedPE
from personae.algorithms.fedpe import Down, Private, Up
from personae.core.algorithm import AnyAlgorithm, Client
from personae.core.embedder import Embedder, embed
from personae.core.events import Entry
from personae.core.holdings import ClientFaces
from personae.core.payload import Count, ModelState, Scalars
from personae.core.stage import Recipe, Stage
from personae.errors import Diverged
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.meta import MetaSGD
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.engine import Benchmark, Engine, Journal
from personae.runtime.federation import Federation, NetworkPlan
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess
from personae.runtime.problems import PROBLEMS
from personae.runtime.public import SharedFaces
from personae.runtime.transport import Answer, Failure, Request, Transport

SIDE = 32
NAMES = ("ann", "bob", "eve", "zoe")


@dataclass(frozen=True, eq=False)
class Faces:
    """Images in memory."""

    pixels: Tensor
    labels: Tensor
    classes: int
    identities: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        return self.pixels[positions.cpu()].to(positions.device)


def random_faces(seed: int, classes: int, images: int, side: int = SIDE) -> Faces:
    """`images` noisy copies of one random picture for each class."""
    source = torch.Generator().manual_seed(seed)
    people = torch.randint(0, 206, (classes, 1, side, side, 3), generator=source)
    noise = torch.randint(0, 50, (classes, images, side, side, 3), generator=source)
    pixels = (people + noise).to(torch.uint8).reshape(-1, side, side, 3)
    names = tuple(f"person-{seed}-{number}" for number in range(classes))
    return Faces(pixels, torch.arange(classes).repeat_interleave(images), classes, names)


PUBLIC = random_faces(1, 4, 4)


@dataclass(frozen=True)
class Crowd:
    """Clients of different sizes, each with people of its own."""

    clients: tuple[str, ...] = NAMES
    newcomers: frozenset[str] = frozenset()

    def of(self, client: str) -> ClientFaces:
        index = self.clients.index(client)
        faces = random_faces(100 + index, 2 + index, 6)
        order = torch.randperm(len(faces), generator=torch.Generator().manual_seed(index))
        parts = order[: len(faces) // 2], order[len(faces) // 2 : -3], order[-3:]
        train, val, test = (replace(faces, pixels=faces.pixels[part], labels=faces.labels[part]) for part in parts)
        return ClientFaces(train, val, test)


@dataclass(frozen=True)
class TinyPlan:
    """A convolution, BatchNorm, a linear layer: everything that a backbone has to handle."""

    embedding: int = 8

    def build(self, generator: torch.Generator | None = None) -> nn.Module:
        module = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=4, bias=False),
            nn.BatchNorm2d(4),
            nn.PReLU(4),
            nn.Flatten(),
            nn.Linear(4 * 8 * 8, self.embedding),
            nn.BatchNorm1d(self.embedding),
        )
        source = generator or torch.Generator().manual_seed(0)
        for layer in (module[0], module[4]):
            nn.init.normal_(layer.weight, std=0.1, generator=source)
        nn.init.zeros_(module[4].bias)
        return module


def evaluator(embedder: Embedder, faces: ClientFaces) -> dict[str, float]:
    """How often the nearest training face is of the right class."""
    nearest = (embed(embedder, faces.test) @ embed(embedder, faces.train).T).argmax(1)
    return {"rank1": float((faces.train.labels[nearest] == faces.test.labels).double().mean())}


@dataclass(frozen=True)
class Accuracy:
    metrics: dict[str, float]


@dataclass(frozen=True)
class ToyBenchmark:
    name: str = "toys"

    def evaluate(self, embedder: Embedder, *, final: bool) -> Accuracy:
        return Accuracy({"spread": float(embed(embedder, random_faces(7, 3, 2)).double().std())})


class Notebook(Journal):
    """A journal in lists."""

    def __init__(self) -> None:
        self.books: dict[str, list[Any]] = {"metrics": [], "ledger": [], "timing": []}
        self.models: dict[str, dict[str, Tensor]] = {}
        self.given: dict[str, dict[str, dict[str, float]]] = {}

    def write(self, entry: Entry) -> None:
        self.books[entry.record].append(json.loads(entry.line()))

    def begun(self, stage: Stage, results: Mapping[str, Any]) -> None:
        self.given = {stage.name: {name: each.metrics for name, each in results.items()}}

    def finished(self, stage: Stage, round_: int, backbone: Any, results: Mapping[str, Any]) -> None:
        self.models[stage.name] = {name: entry.clone() for name, entry in backbone.module.state_dict().items()}

    def position(self) -> dict[str, int]:
        return {name: len(book) for name, book in self.books.items()}

    def rewind(self, position: Mapping[str, int]) -> None:
        for name, book in self.books.items():
            del book[position.get(name, 0) :]

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in self.books["metrics"] if event["event"] == "round"]


TRAINING = LocalSGD(lr=0.05, batch_size=4, iterations=3, augmentation=Augmentation(shift=1))
META = MetaSGD(batch_size=4, iterations=2, augmentation=Augmentation(shift=1))


def quickly(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm with a training budget of a few steps, where it has one."""
    budgets = {"training": TRAINING, "meta": META}
    names = getattr(algorithm, "__dataclass_fields__", {})
    return replace(algorithm, **{name: budget for name, budget in budgets.items() if name in names})  # type: ignore[type-var]


def stage_of(algorithm: AnyAlgorithm, **options: Any) -> Stage:
    return Stage(**{"name": algorithm.name, "algorithm": algorithm, "rounds": 2, **options})


@dataclass
class Rehearsal:
    """A federation of toys in a folder, ready to run, to stop and to run again."""

    folder: Path
    recipe: Recipe
    holdings: Crowd = field(default_factory=Crowd)
    public: Faces | None = PUBLIC
    firewall: Firewall = field(default_factory=Firewall)
    seed: int = 5
    source: str | None = None
    experiment: str = "toys"
    network: NetworkPlan = field(default_factory=TinyPlan)
    benchmarks: Sequence[Benchmark] = (ToyBenchmark(),)
    notebook: Notebook = field(default_factory=Notebook)
    notices: list[str] = field(default_factory=list)
    excluded: Callable[[], frozenset[str]] = frozenset

    @property
    def federation(self) -> Federation:
        return Federation(
            seed=self.seed,
            recipe=self.recipe,
            network=self.network,
            holdings=self.holdings,
            private=self.folder / "private",
            evaluator=evaluator,
            public=SharedFaces(self.public, self.folder / "public") if self.public else None,
            source=self.source,
        )

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", self.experiment, self.recipe, self.federation.backbone().layout)

    def engine(self, transport: Transport | None = None) -> Engine:
        return Engine(
            federation=self.federation,
            transport=transport or SameProcess(self.federation),
            checkpoints=self.checkpoints,
            journal=self.notebook,
            scratch=self.folder / "scratch",
            public=self.public,
            pooled=lambda names: random_faces(len(names), 4, 4),
            benchmarks=self.benchmarks,
            firewall=self.firewall,
            notify=self.notices.append,
            excluded=self.excluded,
        )

    @property
    def problems(self) -> str:
        """What clients keep to themselves about their failures."""
        path = self.folder / "private" / PROBLEMS
        return path.read_text() if path.exists() else ""

    def run(self, transport: Transport | None = None) -> "Rehearsal":
        self.engine(transport).run()
        return self

    def final(self, stage: str | None = None) -> Tensor:
        """The model after the last round of a stage."""
        return self.checkpoints.finished(stage or self.recipe[-1].name).model.flat

    def files(self) -> dict[str, bytes]:
        """What clients keep and where the run stands, byte for byte."""
        places = [path for part in ("private", "checkpoints") for path in (self.folder / part).rglob("*")]
        kept = [path for path in places if path.is_file() and path.name != PROBLEMS]  # that one tells the time
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in kept}


def cut_off(run: Rehearsal, after: int, transport: Transport | None = None) -> Rehearsal:
    """The same federation, ready to go on, after a run that ended when this round's checkpoint was written."""
    save = Checkpoints.save

    class Cut(BaseException):
        pass

    def once(self: Checkpoints, stage: Stage, number: int, *rest: Any) -> None:
        save(self, stage, number, *rest)
        if number == after:
            raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", once)
        with pytest.raises(Cut):
            run.run(transport)
    return replace(run)


class Relay:
    """A transport that hands another one's answers on; subclasses tamper with them."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.problems = inner, inner.problems
        self.requests: list[Request] = []

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        yield from self.tamper(list(self.inner.exchange(self.noted(requests))))

    def noted(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            self.requests.append(request)
            yield request

    def tamper(self, answers: Sequence[Answer | Failure]) -> Iterable[Answer | Failure]:
        return answers

    def settle(self) -> None:
        self.inner.settle()

    def close(self) -> None:
        self.inner.close()


class Reversed(Relay):
    """Clients answer in the opposite order."""

    def tamper(self, answers: Sequence[Answer | Failure]) -> Iterable[Answer | Failure]:
        return list(reversed(answers))


class Dropping(Relay):
    """One client never answers; the transport tells so, or keeps silent."""

    def __init__(self, inner: Transport, lost: str, *, silently: bool = False) -> None:
        super().__init__(inner)
        self.lost, self.silently = lost, silently

    def tamper(self, answers: Sequence[Answer | Failure]) -> Iterable[Answer | Failure]:
        for answer in answers:
            if answer.client.name != self.lost:
                yield answer
            elif not self.silently:
                yield Failure(answer.client, "it went out of reach")


@dataclass(frozen=True, kw_only=True)
class Troubled(FedPE):
    """FedPE with clients that misbehave: (client, how), from the given round on."""

    trouble: tuple[tuple[str, str], ...] = ()
    since: int = 1

    def local(self, down: Down, private: Private | None, client: Client) -> tuple[Up, Private]:
        up, kept = super().local(down, private, client)
        how = dict(self.trouble).get(client.info.name)
        if how is None or client.round < self.since:
            return up, kept
        return self.spoil(how, up, down), kept

    def spoil(self, how: str, up: Up, down: Down) -> Up:
        flat, layout = up.model.flat, up.model.layout
        match how:
            case "raises":
                raise ZeroDivisionError("a bug in the client")
            case "diverges":
                raise Diverged("the loss is nan")
            case "dies":
                os._exit(7)
            case "nan":
                flat[3] = float("nan")
            case "long":
                weights = slice(layout.trainable_size)
                flat[weights] = down.model.flat[weights] + 100 * (flat - down.model.flat)[weights]
            case "huge":
                flat.fill_(1e38)
            case "short model":
                return replace(up, model=ModelState(layout, flat[:-1].clone()))
            case "double model":
                return replace(up, model=ModelState(layout, flat.double()))
            case "fractional":
                return replace(up, samples=Count(2.5))  # type: ignore[arg-type]
            case "tensor":
                return replace(up, training=Scalars({"loss": torch.ones(())}))  # type: ignore[dict-item]
            case "other layout":
                other = replace(layout, names=tuple(f"x{name}" for name in layout.names))
                return replace(up, model=ModelState(other, flat))
            case "undeclared":
                return Smuggler(model=up.model, samples=up.samples, training=up.training, more=Count(1))
            case _:
                return replace(up, samples=Count(int(how)))
        return up


@dataclass(frozen=True, kw_only=True)
class Smuggler(Up):
    """More than FedPE declares."""

    more: Count
