"""The attacks of an audit on a run: what is there to attack, and what they found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from personae.core.acceleration import Acceleration
from personae.core.message import ServerState
from personae.core.payload import ClassEmbeddings, ModelState
from personae.core.rng import generator
from personae.core.samples import Samples, is_labelled
from personae.core.stage import Stage, predecessors
from personae.data.clients import PartitionedFaces
from personae.errors import ConfigError
from personae.experiment.assembly import checkpoints_of, federation_of, initial_weights
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.explain import nearest
from personae.experiment.materials import Materials
from personae.experiment.section import SYNTHETIC
from personae.experiment.sources import Source
from personae.privacy.audit import (
    PRIVACY_ATTACKS,
    Audit,
    Evidence,
    Finding,
    Person,
    PrivacyAttack,
    Received,
    read_audit,
    write_audit,
)
from personae.report.records import is_networked, read_run
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.recording import recorded

ALL = "all"
PHOTOS = 8  # of one person, that an attacker has
MOST_PEOPLE = 1000  # of the clients, and as many whom nobody trained on


def audit_run(
    run: str | Path,
    attacks: Sequence[str] = (ALL,),
    *,
    stages: Sequence[str] = (),
    shadows: int | None = None,
    execution: Execution | None = None,
) -> Audit:
    """Carry out the attacks on a finished run, and write what they found into its folder.

    `stages`: those to attack; by default every federated one that is finished. `shadows`: how many people whom nobody
    trained on the attacker has; by default as many as were trained on, or all who are held out.
    """
    run, execution = Path(run), execution or Execution()
    chosen = attacks_called(attacks)
    content = read_run(run)
    experiment = parse_experiment(content.config, str(run / "config.json"))
    if is_networked(content):
        raise ConfigError(
            f"{run}: the faces of this run are with its clients, and an audit needs them; run the same experiment "
            "with personae run on faces that are here, and audit that"
        )
    speed = Acceleration(**content.environment.get("acceleration", {}))
    materials = Materials(experiment, replace(execution, acceleration=speed))
    grounds = _Grounds(run, experiment, materials, speed, shadows)
    wanted = [stage for stage in grounds.finished() if not stages or stage.name in stages]
    if unknown := set(stages) - {stage.name for stage in wanted}:
        names = ", ".join(stage.name for stage in grounds.finished()) or "none"
        raise ConfigError(
            f"{run}: {min(unknown)} is not a finished stage in which clients take part; there are {names}"
        )
    if not wanted:
        raise ConfigError(f"{run}: no stage in which clients take part is finished; resume the run, then audit it")
    findings: list[Finding] = []
    with execution.progress("audit", len(wanted) * len(chosen), "attacks") as advance:
        for stage in wanted:
            evidence = grounds.evidence(stage, execution.device)
            for attack in chosen:
                advance(0, f"{stage.name}, {attack.name}")
                findings += attack.findings(evidence)
                advance(1)
    audit = Audit(tuple(attack.described() for attack in chosen), tuple(findings))
    earlier = read_audit(run)
    write_audit(run, earlier.followed_by(audit) if earlier else audit)
    return audit


def evidence_of(run: Path, experiment: Experiment, execution: Execution) -> dict[str, Evidence]:
    """What there is to attack in a run, by each of its finished stages in which clients take part."""
    grounds = _Grounds(run, experiment, Materials(experiment, execution), execution.acceleration)
    return {stage.name: grounds.evidence(stage, execution.device) for stage in grounds.finished()}


def attacks_called(names: Sequence[str]) -> list[PrivacyAttack]:
    """With their usual settings."""
    known = list(PRIVACY_ATTACKS)
    for name in names:
        if name != ALL and name not in PRIVACY_ATTACKS:
            raise ConfigError(f"no privacy attack is called {name!r}{nearest(name, known)}")
    return [PRIVACY_ATTACKS[name]() for name in (known if ALL in names else dict.fromkeys(names))]


class _Grounds:
    """A run as its auditor sees it, who has everything."""

    def __init__(
        self,
        run: Path,
        experiment: Experiment,
        materials: Materials,
        speed: Acceleration,
        shadows: int | None = None,
    ) -> None:
        self.run, self.experiment, self.materials, self.speed = run, experiment, materials, speed
        self.federation = federation_of(experiment, materials.clients, run / "private", acceleration=speed)
        self.checkpoints: Checkpoints = checkpoints_of(experiment, run, materials.digest(), speed)
        self.people = list(_people(materials.clients, experiment.seed))
        self.shadows = list(_shadows(materials, shadows, max(1, len(self.people))))

    def finished(self) -> list[Stage]:
        """The federated stages that have come to their end."""
        done = (self.run / "models").glob("*.safetensors")
        names = {path.stem for path in done}
        return [stage for stage in self.experiment.recipe if stage.algorithm.federated and stage.name in names]

    def evidence(self, stage: Stage, device: str) -> Evidence:
        if not self.checkpoints.last(stage.name):
            raise ConfigError(
                f"{self.run}: its checkpoints are not there, and an audit needs them (personae purge removes them); "
                "run the experiment again, and audit that"
            )
        state = self.checkpoints.finished(stage.name)
        backbone = self.federation.backbone(device)
        rows = {name: self.materials.clients.of(name).train for name in self.materials.clients.clients}
        private = self.experiment.require_private()
        return Evidence(
            stage=stage.name,
            algorithm=stage.algorithm,
            backbone=backbone,
            model=state.model,
            begin=self._before(stage),
            people=self.people,
            shadows=self.shadows,
            templates=_templates(stage, state),
            rows={name: samples.identities for name, samples in rows.items() if is_labelled(samples)},
            received=list(self._received(stage)),
            mirror=self.experiment.evaluation.mirror,
            made_up=all(part.source == SYNTHETIC for part in private.all_parts().values()),
            folder=self.run,
            seed=self.experiment.seed,
        )

    def _before(self, stage: Stage) -> ModelState:
        before = predecessors(self.experiment.recipe)[stage.name]
        if before is not None:
            return self.checkpoints.finished(before).model
        return initial_weights(self.experiment, self.speed) or self.federation.backbone().state()

    def _received(self, stage: Stage) -> Iterator[Received]:
        layout = self.checkpoints.layout
        for kept in recorded(self.run, stage.name):
            begin = kept.model(layout).model
            for client in self.materials.clients.clients:
                if (message := kept.update(client, stage.algorithm.types.up, layout)) is not None:
                    yield Received(client, kept.round, begin, message)


def _people(clients: PartitionedFaces, seed: int) -> Iterator[Person]:
    """Whom clients trained on, with photographs that were kept out of it."""
    holders = [name for name in clients.clients if name not in clients.newcomers]
    found = [(name, label) for name in holders for label in _trained(clients.of(name).train)]
    order = torch.randperm(len(found), generator=generator(seed, "people of the audit"))[:MOST_PEOPLE]
    for place in sorted(order.tolist()):
        client, label = found[place]
        faces = clients.of(client)
        photos = _images(faces.test, label)
        yield Person(faces.train.identities[label], photos, client, _images(faces.train, label))


def _trained(samples: Samples) -> list[int]:
    return torch.unique(samples.labels).tolist() if is_labelled(samples) else []


def _shadows(materials: Materials, wanted: int | None, usual: int) -> Iterator[Person]:
    """People whom nobody trained on: the next that the generator of synthetic faces makes, or those held out."""
    source = materials.experiment.require_private()
    if source.source == SYNTHETIC and source.parts is None:
        faces = materials.opened(_next(materials.experiment, source, wanted or min(usual, MOST_PEOPLE)))
    elif materials.heldout is not None:
        faces = materials.heldout
    else:
        return
    samples = faces.samples()
    for label in _trained(samples)[: wanted or MOST_PEOPLE]:
        yield Person(samples.identities[label], _images(samples, label))


def _next(experiment: Experiment, source: Source, identities: int) -> Source:
    """People of the same generator after all that the experiment has."""
    data = (experiment.data.public, experiment.data.private, experiment.data.heldout)
    parts = [part for each in data if each for part in each.all_parts().values() if part.source == SYNTHETIC]
    first = max(part.first + (part.identities or 0) for part in parts)
    made = {"first": first, "identities": identities, "images": min(source.images, PHOTOS)}
    return source.model_copy(update={**made, "unlabelled": False})


def _images(samples: Samples, label: int) -> Tensor:
    return samples.images(torch.nonzero(samples.labels == label).flatten()[:PHOTOS])


def _templates(stage: Stage, state: ServerState) -> dict[str, dict[str, Tensor]]:
    """By kind as it was sent, and by client: rows that stand for people, of those that the server keeps by client."""
    sent, found = stage.algorithm.types.up.kinds(), dict[str, dict[str, Tensor]]()
    for name in state.by_client():
        for client, payload in getattr(state, name).items():
            if isinstance(payload, ClassEmbeddings):
                kind = sent.get(name, type(payload)).__name__
                found.setdefault(kind, {})[client] = payload.vectors
    return found
