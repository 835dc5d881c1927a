"""What a run will take, before it starts."""

from dataclasses import dataclass, replace

from personae.core.layer import described
from personae.core.layout import Layout
from personae.core.payload import Expectation
from personae.core.stage import Stage
from personae.data.holdings import Holding
from personae.errors import ConfigError
from personae.experiment.materials import Materials
from personae.privacy.accountant import Accountant
from personae.privacy.disclosure import descriptions, message_bytes, seen_by_others, sends, withheld
from personae.runtime.spool import MEMORY

ALL_FACES = "the faces themselves, to one place"
COPIES = 4  # of the weights in a process that trains: the weights, their gradient, the momentum, the update


@dataclass(frozen=True)
class StageForecast:
    """One stage: who is asked, and how much crosses in a round when nobody fails."""

    name: str
    algorithm: str
    rounds: int
    clients_per_round: int
    images_per_round: int
    bytes_down: int
    bytes_up: int
    leaves: list[str]
    others_see: str | None  # of a single client, where few are asked in a round


@dataclass(frozen=True)
class Forecast:
    """Clients, samples, traffic and memory of an experiment."""

    clients: int
    new_clients: int
    unlabelled_clients: int
    identities: int
    train_images: int
    test_images: int
    parameters: int
    model_bytes: int
    memory_bytes: int  # of weights and updates in all processes; the activations of a batch come on top
    pixel_bytes: int  # mapped from disk, shared by all processes
    stages: list[StageForecast]
    kinds: dict[str, str]  # what may leave, by the name of its type, in two or three words
    privacy: list[str]  # epsilon at the end, in words; nothing, where no layer adds noise


def forecast(materials: Materials) -> Forecast:
    experiment, workers = materials.experiment, materials.execution.workers
    materials.benchmarks()  # what cannot be evaluated is said before anything runs
    summary = materials.partition.summary(materials.private)
    trainers = [holding for holding in summary if not holding.new]
    layout = Layout.of(experiment.network.layout())
    width = experiment.network.embedding
    sets = [faces for faces in (materials.public, materials.private, materials.heldout) if faces is not None]
    eligible = {stage.name: len(_side(stage, trainers, materials)) for stage in experiment.recipe}
    return Forecast(
        clients=len(summary),
        new_clients=len(summary) - len(trainers),
        unlabelled_clients=sum(not holding.identities for holding in summary),
        identities=sum(holding.identities for holding in summary),
        train_images=sum(holding.train for holding in trainers),
        test_images=sum(holding.test for holding in summary),
        parameters=layout.trainable_size,
        model_bytes=4 * layout.size,
        memory_bytes=4 * layout.size * COPIES * (workers + (workers > 1)) + MEMORY,
        pixel_bytes=sum(len(faces) * faces.size[0] * faces.size[1] * 3 for faces in sets),
        stages=[_stage(stage, trainers, layout, width, materials) for stage in experiment.recipe],
        kinds={name: kind.short for name, kind in descriptions(stage.algorithm for stage in experiment.recipe).items()},
        privacy=Accountant(experiment.recipe, eligible, experiment.budget).outlook(),
    )


def _side(stage: Stage, trainers: list[Holding], materials: Materials) -> list[Holding]:
    source = materials.partition.source
    chosen = [holding for holding in trainers if stage.takes(holding.client == source)]
    if not chosen:
        raise ConfigError(f"stage {stage.name}: clients = {stage.clients!r}, but no client that trains is on that side")
    return chosen


def _stage(stage: Stage, trainers: list[Holding], layout: Layout, width: int, materials: Materials) -> StageForecast:
    algorithm, trainers = stage.algorithm, _side(stage, trainers, materials)
    stage.require_enough(len(trainers))
    if remark := stage.remark(len(trainers)):
        materials.execution.notify(remark)
    number = asked(stage, len(trainers)) if algorithm.federated else 0
    people = sum(holding.identities for holding in trainers)
    classes = people // len(trainers)
    images = sum(holding.train for holding in trainers)
    if not algorithm.federated and not algorithm.pools_faces:
        public = materials.public if getattr(algorithm, "use_public_faces", False) else None
        images = 0 if public is None else len(public)
    public_people = 0 if materials.public is None else materials.public.samples().classes
    sent = Expectation(layout=layout, width=width, classes=classes, public_classes=public_people, clients=number)
    received = replace(sent, classes=people - classes) if algorithm.shows_others else sent  # everybody else's
    return StageForecast(
        name=stage.name,
        algorithm=described(algorithm),
        rounds=stage.rounds,
        clients_per_round=number,
        images_per_round=images * number // len(trainers) if number else images,
        bytes_down=number * sum(message_bytes(each, received, withheld(algorithm)) for each in algorithm.types.downs),
        bytes_up=number * sum(message_bytes(each, sent, withheld(algorithm)) for each in algorithm.types.ups),
        leaves=[ALL_FACES] if algorithm.pools_faces else sends(algorithm),
        others_see=seen_by_others(stage, len(trainers)),
    )


def asked(stage: Stage, eligible: int) -> int:
    """How many clients are asked in a round on average, where their number changes over the stage."""
    counts = [stage.selection.count(eligible, round_, stage.rounds) for round_ in range(1, stage.rounds + 1)]
    return round(sum(counts) / len(counts))
