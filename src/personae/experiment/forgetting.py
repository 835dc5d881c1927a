"""Forget a client, or a person of a client: train again from before it took part, as if it had never answered.

The new run is made beside the old one, in `.NAME.forgetting`, and takes its place when it is finished. Until then the
old one stays as it is. What was interrupted goes on when the same is asked for again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.core.acceleration import Acceleration
from personae.core.events import RoundTime, TrainingRound, Transfer, entries, ledger
from personae.core.layer import innermost
from personae.core.stage import Stage, predecessors
from personae.data.pixels import default_cache
from personae.errors import ConfigError, DataError
from personae.experiment.assembly import checkpoints_of
from personae.experiment.auditing import evidence_of
from personae.experiment.concealed import MARK
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.explain import nearest
from personae.experiment.forgotten import Forgotten, absent, people_of, pseudonym
from personae.experiment.materials import Materials
from personae.experiment.overrides import apply
from personae.experiment.run import conduct
from personae.experiment.section import SYNTHETIC
from personae.experiment.successor import AUDITED, MADE, alone_in, finish_swap, folder_of_new, log_and_swap, others_in
from personae.privacy.audit import PRIVACY_ATTACKS
from personae.privacy.forgotten_log import ForgottenEntry
from personae.report.records import is_networked, read_events, read_run
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.past import OF_NO_CLIENT, Past
from personae.runtime.store import PrivateStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NOT_MEASURED = "not measured"
MEMBERSHIP = "membership"  # the attack that is made before and after


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


# --------------------------------------------------------------------------------------------------------- planning


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


# ------------------------------------------------------------------------------------------------------ carrying out


def forget(forgetting: Forgetting, execution: Execution, key: "Ed25519PrivateKey") -> ForgottenEntry:
    """Do it. The run takes the place of the old one when it is finished, checked and logged."""
    run, out = forgetting.run, folder_of_new(forgetting.run)
    with alone_in(run):
        execution = execution_for(run, execution)
        _require_same_wish(out, forgetting)
        past, digests = _past(forgetting, execution), model_digests(run)
        conduct(forgetting.after, out, execution, resume=True, past=past)
        entry = ForgottenEntry(
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            client=", ".join(forgetting.clients),
            person=", ".join(wish.person for wish in forgetting.wishes if wish.person is not None) or None,
            how=forgetting.how,
            verified=_verified(out, forgetting, execution),
            membership=_membership(out, forgetting, execution),
            before=digests,
            after=model_digests(out),
        )
        log_and_swap(run, entry, key)
    return entry


def _require_same_wish(out: Path, forgetting: Forgetting) -> None:
    known = out / "config.json"
    if known.is_file() and json.loads(known.read_text()) != json.loads(json.dumps(forgetting.after.resolved())):
        raise ConfigError(
            f"{out}: there is a forgetting of somebody else that was not finished; finish that, or delete the folder"
        )


def _past(forgetting: Forgetting, execution: Execution) -> Past:
    run, materials = forgetting.run, Materials(forgetting.before, execution)
    wish = forgetting.wishes[0]
    whole = wish.person is None
    return Past(
        rounds=forgetting.rounds,
        checkpoints=checkpoints_of(forgetting.before, run, materials.digest(), execution.acceleration),
        records=[*read_events(run), *_transfers(run), *_times(run)],
        private=run / "private",
        forgotten=wish.client if whole else None,
        index=materials.partition.clients.index(wish.client) if whole else None,
    )


def _transfers(run: Path) -> list[Transfer]:
    path = run / "ledger.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as lines:
        return [entry for entry in ledger(lines, path) if isinstance(entry, Transfer)]


def _times(run: Path) -> list[RoundTime]:
    path = run / "timing.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as lines:
        return list(entries(RoundTime, lines, path))


# ---------------------------------------------------------------------------------------------------------- checking


def model_digests(run: Path) -> dict[str, str]:
    """The models of a run by file."""
    return {
        f"models/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((run / "models").glob("*.safetensors"))
    }


def _verified(out: Path, forgetting: Forgetting, execution: Execution) -> tuple[str, ...]:
    """What was looked at in the new run, before it takes the place of the old one."""
    materials = Materials(forgetting.after, execution)
    gone = absent(forgetting.wishes)
    found = []
    if gone:
        _require_none(out, gone, "its records", named_in_records(out))
        checkpoints = checkpoints_of(forgetting.after, out, materials.digest(), execution.acceleration)
        states = [checkpoints.finished(stage.name) for stage in forgetting.after.recipe]
        known = {name for state in states for field in state.by_client() for name in getattr(state, field)}
        _require_none(out, gone, "a state of the server", known)
        kept = {name for name in gone if PrivateStore.of(out / "private", name).root.exists()}
        _require_none(out, gone, "private state", kept)
        asked = "in none of the further rounds" if forgetting.further else "in no round"
        found += [f"it was asked {asked} and is in no record", "no state of the server has an entry of it"]
        found += ["it has no private state"]
    for wish in forgetting.wishes:
        if wish.person is not None:
            people = people_of(materials.partition, materials.private, wish.client)
            remaining = {pseudonym(wish.client, name) for name in people}
            _require_none(out, {wish.person}, f"the faces of {wish.client}", remaining)
            found.append(f"{wish.client} was given no face of this person")
    if not forgetting.further:
        found.append("nothing that it took part in was taken over")
    return tuple(found)


def _membership(out: Path, forgetting: Forgetting, execution: Execution) -> str:
    """How well an attack tells that the people of the client were trained on, with the models before and after."""
    if not forgetting.further:
        return f"{NOT_MEASURED}: nothing that it took part in was taken over"
    if MEMBERSHIP not in PRIVACY_ATTACKS:
        return NOT_MEASURED
    attack, digest = PRIVACY_ATTACKS[MEMBERSHIP](), Materials(forgetting.after, execution).digest()
    after = checkpoints_of(forgetting.after, out, digest, execution.acceleration)
    told = []
    for stage, whole in evidence_of(forgetting.run, forgetting.before, execution).items():
        people = [person for person in whole.people if person.client in forgetting.clients]
        known = replace(whole, people=people, received=(), templates={}, rows={})
        now = replace(known, model=after.finished(stage).model)
        told += [
            f"{stage}, {one.target}: {one.figure} {_percent(one.value)} before, {_percent(two.value)} after"
            f" (chance {_percent(one.chance)})"
            for one, two in zip(attack.findings(known), attack.findings(now), strict=True)
            if one.value is not None
        ]
    return "; ".join(told) or NOT_MEASURED


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f}%"


def named_in_records(run: Path) -> set[str]:
    """All names by which the records of a run tell of clients, and some others."""
    named = {transfer.client for transfer in _transfers(run)}
    for event in read_events(run):
        said = {name: value for name, value in event.plain().items() if name not in OF_NO_CLIENT}
        named |= {name for value in said.values() if isinstance(value, Mapping | tuple) for name in value}
    return named


def _require_none(out: Path, gone: Iterable[str], where: str, found: Iterable[str]) -> None:
    if left := set(gone) & set(found):
        raise DataError(f"{out}: {where} still has {sorted(left)[0]}; the old run was left as it is")


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
