"""What it takes to forget a client, or a person of a client: how far to go back, and what holds something of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from personae.core.acceleration import Acceleration
from personae.core.events import TrainingRound
from personae.core.layer import innermost
from personae.core.stage import Stage, predecessors
from personae.data.pixels import default_cache
from personae.errors import ConfigError, DataError
from personae.experiment.assembly import checkpoints_of
from personae.experiment.concealed import MARK
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.explain import nearest
from personae.experiment.forgotten import Forgotten, absent, people_of, pseudonym
from personae.experiment.materials import Materials
from personae.experiment.overrides import apply
from personae.experiment.section import SYNTHETIC
from personae.experiment.successor import AUDITED, MADE, finish_swap, others_in
from personae.report.records import is_networked, read_events, read_run
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.store import PrivateStore


@dataclass(frozen=True)
class Trace:
    """A place that holds something of whoever is forgotten, and what becomes of it."""

    place: str
    fate: str


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """What it takes to forget somebody."""

    run: Path
    wishes: tuple[Forgotten, ...]
    before: Experiment
    after: Experiment
    rounds: Mapping[str, int]  # by stage: how many rounds are taken over
    whole: frozenset[str] = frozenset()  # the stages of which that is all
    traces: tuple[Trace, ...]
    further: int = 0  # rounds that are trained on, where nothing is trained again; 0 for exact forgetting

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(wish.client for wish in self.wishes)

    @property
    def again(self) -> tuple[str, ...]:
        """The stages that are trained again, from their beginning or from a later round."""
        left = self.rounds if self.further else self.whole
        return tuple(stage.name for stage in self.after.recipe if stage.name not in left)

    @property
    def taken(self) -> tuple[str, ...]:
        """And what is not, with the round where that is a part of a stage."""
        return tuple(name if name in self.whole else f"{name} up to round {last}" for name, last in self.rounds.items())

    @property
    def how(self) -> str:
        trained = (
            f"trained again without it: {', '.join(self.again)}" if self.again else "nothing had to be trained again"
        )
        if self.further:
            longer = [name for name in self.rounds if name not in self.whole]
            approximately = f"its entries removed, and {self.further} rounds trained on without it: {', '.join(longer)}"
            return f"approximate: {approximately}; {trained}; what it put into averages before is not undone"
        kept = f"; taken over, since it took no part: {', '.join(self.taken)}" if self.taken else ""
        return f"exact: {trained}{kept}{self.about_noise}"

    @property
    def about_noise(self) -> str:
        """What has to be said where differential privacy hid the others, who are asked again."""
        if not any(_noised(stage) for stage in self.after.recipe if stage.name in self.again):
            return ""
        return "; noise is drawn again: for somebody who has the models before and after, the epsilons of both add up"


def _noised(stage: Stage) -> bool:
    return any(layer.mechanism for layer in stage.layers)


def plan_forgetting(
    run: Path,
    client: str | None,
    person: str | None = None,
    *,
    execution: Execution | None = None,
    settings: Sequence[str] = (),
    further: int = 0,
) -> Forgetting:
    """Find out what is to be done; nothing is changed.

    `settings` give secrets of the experiment, which a run does not keep. With `further`, so many rounds are trained on
    instead of going back.
    """
    if further and person is not None:
        raise ConfigError("--approximate forgets a client as a whole; a person is forgotten by going back")
    finish_swap(run)
    before, execution = experiment_of(run, settings), execution_for(run, execution or Execution())
    materials = Materials(before, execution)
    wishes = _wishes(run, materials, client, person)
    checkpoints = checkpoints_of(before, run, materials.digest(), execution.acceleration)
    _require_same_faces(run, checkpoints)
    changed: dict[str, Any] = {"forgotten": (*before.forgotten, *wishes)}
    rounds, whole = _taken_over(run, materials, checkpoints, {wish.client for wish in wishes})
    if further:
        longer = {stage.name for stage in before.recipe if stage.algorithm.federated} - whole
        finished = {name: checkpoints.last(name) for name in longer}
        if not longer or not all(finished.values()):
            raise ConfigError(f"{run}: --approximate goes on from finished federated stages, in which the client was")
        rounds |= finished
        changed["stages"] = tuple(
            replace(each, rounds=each.rounds + further) if each.name in longer else each for each in before.stages
        )
    return Forgetting(
        run=run,
        wishes=wishes,
        before=before,
        after=before.model_copy(update=changed),
        rounds=rounds,
        whole=frozenset(whole),
        traces=tuple(traces(run, before, wishes, execution.cache)),
        further=further,
    )


def experiment_of(run: Path, settings: Sequence[str] = ()) -> Experiment:
    """What a run is of, with its secrets from `settings`."""
    content = read_run(run)
    if is_networked(content):
        raise ConfigError(f"{run}: this run is over a network")  # its own way is in deployment/forgetting.py
    raw, known = json.loads(json.dumps(content.config)), content.config
    for setting in settings:
        apply(raw, setting)
    experiment = parse_experiment(raw, str(run / "config.json"))
    if settings and json.loads(json.dumps(experiment.resolved())) != known:
        place = settings[0].partition("=")[0]
        raise ConfigError(f"--set {place}: this is another experiment than that of {run}; give its secrets alone")
    for stage in experiment.recipe:
        for secret in sorted(innermost(stage.algorithm).secrets):
            value = getattr(innermost(stage.algorithm), secret)
            if isinstance(value, str) and value.startswith(MARK):
                place = f"stages.{stage.name}.algorithm.{secret}"
                raise ConfigError(f"{run}: {place} is a secret, which a run does not keep; add --set {place}=SECRET")
    return experiment


def execution_for(run: Path, execution: Execution) -> Execution:
    """As the run was computed, since bits depend on it, with the workers of this machine."""
    environment = read_run(run).environment
    speed = Acceleration(**environment.get("acceleration", {}))
    folder = run / "tracking"
    followed = tuple(sorted(each.name for each in folder.iterdir() if each.is_dir())) if folder.is_dir() else ()
    return replace(execution, acceleration=speed, device=environment.get("device", execution.device), trackers=followed)


def _wishes(run: Path, materials: Materials, client: str | None, person: str | None) -> tuple[Forgotten, ...]:
    """Who is to be forgotten; a person without a client, at all clients that hold their faces."""
    partition, faces = materials.partition, materials.private
    gone = absent(materials.experiment.forgotten)
    if client is None and person is None:
        raise ConfigError("say whom to forget: a client, or a person with --person")
    if client is not None and client not in partition.clients:
        raise ConfigError(f"{run}: no client is called {client!r}{nearest(client, partition.clients)}")
    if client in gone:
        raise ConfigError(f"{run}: {client} was forgotten already; personae forget {run} --verify tells when and how")
    asked = [each for each in partition.clients if each not in gone] if client is None else [client]
    left = [each for each in partition.clients if each not in gone]
    if person is None:
        if len(left) == 1:
            raise ConfigError(f"{run}: {client} is the only client that is left; delete the run instead")
        return tuple(Forgotten(client=each) for each in asked)
    people = {each: people_of(partition, faces, each) for each in asked}
    holders = [each for each in asked if person in people[each]]
    if not holders:
        names = sorted({name for each in people.values() for name in each})
        whose = f"{client} holds" if client else "the clients hold"
        raise ConfigError(f"{run}: {whose} no faces of {person!r}{nearest(person, names) if names else ''}")
    for each in holders:
        if len(people[each]) == 1:
            raise ConfigError(f"{run}: {each} holds faces of {person!r} alone; forget the client: {each}")
    return tuple(Forgotten(client=each, person=pseudonym(each, person)) for each in holders)


def _require_same_faces(run: Path, checkpoints: Checkpoints) -> None:
    try:
        checkpoints.latest()
    except ConfigError as error:
        raise DataError(
            f"{run}: the faces, or the weights it began with, are not those that this run was trained on; put them "
            "back where they were"
        ) from error


def _taken_over(
    run: Path, materials: Materials, checkpoints: Checkpoints, clients: set[str]
) -> tuple[dict[str, int], set[str]]:
    """By stage, how many rounds nothing of these clients has gone into, as far as states were kept after them.

    And the stages of which that is all.
    """
    first = dict[str, int]()  # the round in which one of them first took part
    for event in read_events(run):
        if isinstance(event, TrainingRound) and clients & set(event.participants):
            first.setdefault(event.stage, event.round)
    partition, recipe = materials.partition, checkpoints.recipe
    trained = clients & set(partition.trained)
    before, found, whole = predecessors(recipe), dict[str, int](), set[str]()
    for stage in recipe:
        parent = before[stage.name]
        if parent is not None and parent not in whole:
            continue
        pooled = stage.algorithm.pools_faces and any(stage.takes(name == partition.source) for name in trained)
        free = 0 if pooled else first.get(stage.name, stage.rounds + 1) - 1
        end = checkpoints.last(stage.name)
        # To go on within a stage would use its noise again, and both runs together would show what it hides.
        kept = () if _noised(stage) else checkpoints.kept(stage.name)
        last = max((each for each in (*kept, end) if each <= free), default=0)
        if last:
            found[stage.name] = last
            whole |= {stage.name} if last == end else set()
    return found, whole


# ------------------------------------------------------------------------------------------------------- what holds it


def traces(run: Path, experiment: Experiment, wishes: Sequence[Forgotten], cache: Path | None) -> Iterator[Trace]:
    """Every place that is known to hold something of those who are forgotten."""
    again, gone = "made again without it", "deleted; personae audit measures the new run"
    for name in MADE:
        if (run / name).exists():
            yield Trace(str(run / name), gone if name in AUDITED else again)
    for wish in wishes:
        private = PrivateStore.of(run / "private", wish.client).root
        if private.exists():
            yield Trace(str(private), "deleted" if wish.person is None else again)
    for path in others_in(run):
        yield Trace(str(path), "kept: look whether it holds anything of it")
    if experiment.data.private is not None:
        real = {name: each for name, each in experiment.data.private.all_parts().items() if each.source != SYNTHETIC}
        for name, source in real.items():
            title = f"the faces, {name}: {source.source}" if name else f"the faces: {source.source}"
            yield Trace(title, "kept: nobody holds them in this run; delete them there")
    yield Trace(
        f"decoded faces: {cache or default_cache()}", "kept: delete it once the faces are gone; it is made again"
    )
    yield Trace(
        "exports and galleries made of the old models",
        "kept where they are: export again, enrol again, and delete them (the log has the digests of the old models)",
    )
