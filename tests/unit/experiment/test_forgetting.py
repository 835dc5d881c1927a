"""A run that has forgotten a client, or a person, is to the bit one in which these never took part."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from killing import RECIPE, SETTINGS, results
from personae.core.events import TrainingRound
from personae.core.stage import Stage
from personae.data import Split
from personae.data.clients import PartitionedFaces
from personae.errors import ConfigError, DataError
from personae.experiment import forgetting
from personae.experiment.assembly import checkpoints_of
from personae.experiment.auditing import audit_run
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.forgetting import forget, model_digests
from personae.experiment.forgetting_plan import Forgetting, experiment_of, plan_forgetting
from personae.experiment.forgotten import pseudonym
from personae.experiment.materials import Materials
from personae.experiment.personal import personal_weights
from personae.experiment.run import conduct, run_experiment
from personae.files import hold
from personae.privacy.audit import Evidence, Finding
from personae.privacy.forgotten_log import LOG, operator_key, read_log, verify
from personae.report.records import read_events
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.federation import Federation
from personae.runtime.inprocess import SameProcess
from personae.runtime.transport import Answer, Failure, Request

EXPERIMENT = load_experiment(RECIPE, SETTINGS)


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, faces_cache: Path) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run_experiment(EXPERIMENT, out, cache=faces_cache)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def clients(faces_cache: Path) -> tuple[str, ...]:
    return Materials(EXPERIMENT, Execution(cache=faces_cache)).clients.clients


@pytest.fixture
def execution(faces_cache: Path) -> Execution:
    return Execution(cache=faces_cache)


class NeverAnswers(SameProcess):
    lost = ""

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        asked = list(requests)
        yield from super().exchange(request for request in asked if request.client.name != self.lost)
        yield from (Failure(each.client, "it never answers") for each in asked if each.client.name == self.lost)


def carry_out(planned: Forgetting, execution: Execution) -> Any:
    return forget(planned, execution, operator_key())


def plan(run: Path, execution: Execution, client: str | None, person: str | None = None, **options: Any) -> Forgetting:
    return plan_forgetting(run, client, person, execution=execution, **options)


def without_client(experiment: Any, out: Path, execution: Execution, lost: str, patch: pytest.MonkeyPatch) -> Path:
    """The run in which this client never answers, and whose pooled faces are those of the others."""
    rows = PartitionedFaces.pooled_rows

    def pooled_rows(self: PartitionedFaces, split: Split, clients: Sequence[str] | None = None) -> Any:
        names = self.clients if clients is None else clients
        return rows(self, split, [name for name in names if name != lost])

    def transport(federation: Federation, *_: Any) -> SameProcess:
        found = NeverAnswers(federation)
        found.lost = lost
        return found

    with patch.context() as patched:
        patched.setattr(PartitionedFaces, "pooled_rows", pooled_rows)
        conduct(experiment, out, execution, connect=transport)
    return out


def parts(run: Path, *names: str) -> dict[str, bytes]:
    return {name: content for name, content in results(run).items() if name.split("/")[0] in names}


def test_a_forgotten_client_is_one_that_never_answered(
    run: Path, clients: tuple[str, ...], execution: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = clients[1]
    planned = plan(run, execution, lost)
    assert planned.rounds == {"pretrain": 2}
    assert planned.again == ("federate", "central")
    old = model_digests(run)
    entry = carry_out(planned, execution)

    never = without_client(EXPERIMENT, tmp_path / "never", execution, lost, monkeypatch)
    assert model_digests(run) == model_digests(never) == entry.after
    assert parts(run, "evaluation") == parts(never, "evaluation")
    assert {name: old[name] == entry.after[name] for name in old} == {
        "models/pretrain.safetensors": True,
        "models/federate.safetensors": False,
        "models/central.safetensors": False,
    }
    anew = tmp_path / "anew"
    conduct(planned.after, anew, execution)  # all of it, nothing taken over
    assert results(run) == results(anew)

    for path in (run / "metrics.jsonl", run / "ledger.jsonl"):
        assert lost not in path.read_text()
    assert (run / "report.html").read_text().count(lost) == 2  # in the settings and in the log of what was forgotten
    assert not (run / "private" / lost).exists()
    assert not list(run.parent.glob(".run.*"))
    assert read_log(run) == verify(run).entries == (entry,)
    assert entry.before == old


def test_a_resumed_run_does_not_remember_again(run: Path, clients: tuple[str, ...], execution: Execution) -> None:
    carry_out(plan(run, execution, clients[0]), execution)
    known = results(run)
    conduct(EXPERIMENT, run, execution, resume=True)  # as from the file, which says nothing of it
    assert results(run) == known
    with pytest.raises(ConfigError, match=f"{clients[0]} was forgotten"):
        personal_weights(run, clients[0], "federate", cache=execution.cache)


def test_a_second_one_is_forgotten_besides(run: Path, clients: tuple[str, ...], execution: Execution) -> None:
    link = run.parent / "link"
    link.symlink_to(run)
    carry_out(plan(link, execution, clients[0]), execution)
    assert link.is_symlink()
    carry_out(plan(run, execution, clients[2]), execution)
    assert [entry.client for entry in verify(run).entries] == [clients[0], clients[2]]
    named = (run / "metrics.jsonl").read_text()
    assert [name for name in clients if name in named] == [clients[1], clients[3]]


class Killed(BaseException):
    pass


def _at_checkpoint(patch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def saving(self: Checkpoints, stage: Stage, round_: int, *rest: Any) -> None:
        save(self, stage, round_, *rest)
        if (stage.name, round_) == ("federate", 2):
            raise Killed

    patch.setattr(Checkpoints, "save", saving)


def _at_taking_over(patch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def saving(self: Checkpoints, stage: Stage, round_: int, *rest: Any) -> None:
        if stage.name == "pretrain":
            raise Killed
        save(self, stage, round_, *rest)

    patch.setattr(Checkpoints, "save", saving)


def _at_rename(count: int) -> Any:
    def install(patch: pytest.MonkeyPatch) -> None:
        rename, seen = Path.rename, 0

        def renaming(self: Path, target: Path) -> Path:
            nonlocal seen
            seen += 1
            if seen == count:
                raise Killed
            return rename(self, target)

        patch.setattr(Path, "rename", renaming)

    return install


def _at_cleaning(patch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def removing(path: Path, *rest: Any, **options: Any) -> None:
        if Path(path).name != ".run.forgotten":
            return remove(path, *rest, **options)
        (path / "config.json").unlink()
        raise Killed

    patch.setattr(shutil, "rmtree", removing)


@pytest.mark.parametrize(
    ("install", "done"),
    [
        (_at_taking_over, False),
        pytest.param(_at_checkpoint, False, marks=pytest.mark.slow),
        pytest.param(_at_rename(1), False, marks=pytest.mark.slow),
        pytest.param(_at_rename(2), True, marks=pytest.mark.slow),
        (_at_cleaning, True),
    ],
)
def test_what_is_killed_half_way_goes_on(
    install: Any, done: bool, run: Path, clients: tuple[str, ...], execution: Execution, tmp_path: Path
) -> None:
    whole = shutil.copytree(run, tmp_path / "whole")
    untouched = results(run)
    carry_out(plan(whole, execution, clients[1]), execution)
    with pytest.MonkeyPatch.context() as patch:
        planned = plan(run, execution, clients[1])
        install(patch)
        with pytest.raises(Killed):
            carry_out(planned, execution)
    if not done:
        assert results(run) == untouched  # the old one stays until the new one is finished
        carry_out(plan(run, execution, clients[1]), execution)
    else:
        with pytest.raises(ConfigError, match="was forgotten already"):
            plan(run, execution, clients[1])
    assert results(run) == results(whole)
    assert [entry.client for entry in verify(run).entries] == [clients[1]]
    assert not list(run.parent.glob(".run.*"))


def test_another_forgetting_waits_until_the_first_is_finished(
    run: Path, clients: tuple[str, ...], execution: Execution
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        planned = plan(run, execution, clients[1])
        _at_checkpoint(patch)
        with pytest.raises(Killed):
            carry_out(planned, execution)
    with pytest.raises(ConfigError, match="a forgetting of somebody else"):
        carry_out(plan(run, execution, clients[2]), execution)


# ------------------------------------------------------------------------------------------------------------ a person


def test_a_forgotten_person_is_one_whom_the_client_never_had(
    run: Path, clients: tuple[str, ...], execution: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    materials = Materials(EXPERIMENT, execution)
    holder = clients[2]
    held = materials.partition.rows(holder)
    code = int(materials.private.identity[held[0]])
    person = materials.private.identities[code]
    entry = carry_out(plan(run, execution, holder, person), execution)
    assert entry.person == pseudonym(holder, person)
    assert person not in (run / LOG).read_text()
    assert person not in (run / "config.json").read_text()

    never = tmp_path / "never"  # the faces are taken away from the client by hand
    whole = Materials.partition.func  # type: ignore[attr-defined]

    def partition(self: Materials) -> Any:
        found = whole(self)
        gone = (found.client == found.clients.index(holder)) & (self.private.identity == code)
        found.client[np.flatnonzero(gone)] = -1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Materials, "partition", property(partition))
        conduct(EXPERIMENT, never, execution)
    assert model_digests(run) == model_digests(never)
    assert parts(run, "evaluation", "metrics.jsonl", "ledger.jsonl") == parts(
        never, "evaluation", "metrics.jsonl", "ledger.jsonl"
    )
    assert entry.after != entry.before


def test_a_person_is_forgotten_wherever_it_is_held(run: Path, execution: Execution) -> None:
    person = Materials(EXPERIMENT, execution).private.identities[3]
    planned = plan(run, execution, None, person)
    assert [pseudonym(wish.client, person) for wish in planned.wishes] == [wish.person for wish in planned.wishes]
    with pytest.raises(ConfigError, match=r"the clients hold no faces of 'nobody'"):
        plan(run, execution, None, "nobody")


# -------------------------------------------------------------------------------------------------------- approximately


def test_approximate_forgetting_removes_what_it_sent_and_trains_on(
    run: Path, clients: tuple[str, ...], execution: Execution
) -> None:
    lost = clients[1]
    private = {path.name for path in (run / "private").iterdir()}
    planned = plan(run, execution, lost, further=2)
    assert planned.rounds == {"pretrain": 2, "federate": 3}
    entry = carry_out(planned, execution)
    assert entry.how.startswith("approximate: its entries removed, and 2 rounds trained on without it: federate")
    assert "central" in entry.how
    assert entry.verified[0] == "it was asked in none of the further rounds and is in no record"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [line["round"] for line in lines if line["event"] == "round" and line["stage"] == "federate"]
    assert rounds == [1, 2, 3, 4, 5]
    assert lost not in str(lines)
    assert {path.name for path in (run / "private").iterdir()} == private - {lost}
    with pytest.raises(ConfigError, match="--approximate forgets a client as a whole"):
        plan(run, execution, clients[2], "somebody", further=1)


class Peeping:
    """An attack whose figure is the first weight of the model."""

    def findings(self, evidence: Evidence) -> tuple[Finding, ...]:
        target = ", ".join(sorted({person.client for person in evidence.people}))
        weight = float(evidence.model.flat[0])
        return (
            Finding(attack="membership", stage=evidence.stage, target=target, figure="AUC", value=weight, chance=0),
        )


def test_approximate_forgetting_measures_membership_before_and_after(
    run: Path, clients: tuple[str, ...], execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "PRIVACY_ATTACKS", {"membership": Peeping})
    experiment = Experiment.model_validate(json.loads((run / "config.json").read_text()))

    def first(planned: Experiment) -> float:
        digest = Materials(planned, execution).digest()
        return float(checkpoints_of(planned, run, digest, execution.acceleration).finished("federate").model.flat[0])

    before = first(experiment)
    planned = plan(run, execution, clients[1], further=1)
    entry = carry_out(planned, execution)
    after = first(planned.after)
    assert before != after
    told = f"AUC {100 * before:.1f}% before, {100 * after:.1f}% after (chance 0.0%)"
    assert entry.membership == f"federate, {clients[1]}: {told}"


# -------------------------------------------------------------------------------------------------------------- garbage


def test_what_cannot_be_done_is_one_clear_line(run: Path, clients: tuple[str, ...], execution: Execution) -> None:
    with pytest.raises(ConfigError, match=rf"no client is called '{clients[1]}x'; did you mean {clients[1]}\?"):
        plan(run, execution, clients[1] + "x")
    with pytest.raises(ConfigError, match="say whom to forget"):
        plan(run, execution, None)
    with pytest.raises(ConfigError, match="give the folder of a run"):
        plan(run.parent, execution, clients[0])
    held = hold(run / ".lock", "taken")
    try:
        with pytest.raises(ConfigError, match="another process is working in this run"):
            carry_out(plan(run, execution, clients[0]), execution)
    finally:
        held.release()


def test_a_run_without_its_faces_is_left_as_it_is(run: Path, clients: tuple[str, ...], execution: Execution) -> None:
    config = json.loads((run / "config.json").read_text())
    config["data"]["private"]["identities"] = 9
    (run / "config.json").write_text(json.dumps(config))
    known = results(run)
    with pytest.raises(DataError, match="not those that this run was trained on"):
        plan(run, execution, clients[0])
    config["data"]["private"] = {"source": str(run / "nowhere")}
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="nowhere"):
        plan(run, execution, clients[0])
    assert results(run).keys() == known.keys()


# ------------------------------------------------------------------------------------------------- within a stage


def test_with_kept_checkpoints_it_goes_back_within_a_stage(
    execution: Execution, clients: tuple[str, ...], tmp_path: Path
) -> None:
    changes = ["stages.federate.rounds=6", "stages.federate.selection.share=0.25", "checkpoints.every=2"]
    experiment = load_experiment(RECIPE, [*SETTINGS, *changes])
    run = tmp_path / "run"
    run_experiment(experiment, run, cache=execution.cache)
    asked = [
        event.participants[0]
        for event in read_events(run)
        if isinstance(event, TrainingRound) and event.stage == "federate"
    ]
    lost = next(name for name in asked if asked.index(name) in (2, 3))  # first in the third or fourth round
    planned = plan(run, execution, lost)
    assert planned.rounds == {"pretrain": 2, "federate": 2}
    carry_out(planned, execution)
    anew = tmp_path / "anew"
    conduct(planned.after, anew, execution)
    assert results(run) == results(anew)
    kept = sorted(str(path.relative_to(run / "checkpoints")) for path in (run / "checkpoints" / "rounds").rglob("*.s*"))
    assert kept == ["rounds/federate/000002.safetensors", "rounds/federate/000004.safetensors"]


# ------------------------------------------------------------------------------------------ with noise, and hidden


def test_who_was_in_secret_sums_with_noise_is_forgotten_to_the_bit(
    execution: Execution, clients: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = '{name="local-noise",norm=0.3,multiplier=0.1,randomness="seed"}'
    changes = [
        "stages.federate.selection.share=1.0",
        "stages.federate.rounds=2",
        f'stages.federate.layers=[{noise},{{name="secret-sum"}}]',
    ]
    experiment = load_experiment(RECIPE, [*SETTINGS, *changes])
    run = tmp_path / "run"
    run_experiment(experiment, run, cache=execution.cache)
    entry = carry_out(plan(run, execution, clients[2]), execution)
    assert "the epsilons of both add up" in entry.how
    never = without_client(experiment, tmp_path / "never", execution, clients[2], monkeypatch)
    assert model_digests(run) == model_digests(never)


def test_noise_is_never_used_for_two_sums(execution: Execution, tmp_path: Path) -> None:
    """Kept checkpoints hold the key of the noise: a run that went on from one would noise another sum with the same."""
    changes = [
        "stages.federate.rounds=4",
        "stages.federate.selection.share=0.25",
        "checkpoints.every=2",
        'stages.federate.layers=[{name="noise",norm=0.3,multiplier=1.0}]',
    ]
    experiment = load_experiment(RECIPE, [*SETTINGS, *changes])
    run = tmp_path / "run"
    run_experiment(experiment, run, cache=execution.cache)
    asked = [event.participants for event in read_events(run) if isinstance(event, TrainingRound)]
    lost = next(name for (name,) in filter(None, asked) if asked.index((name,)) >= 2)
    planned = plan(run, execution, lost)
    assert planned.rounds == {"pretrain": 2}
    assert planned.how.endswith("for somebody who has the models before and after, the epsilons of both add up")


def test_secrets_that_a_run_does_not_keep_are_asked_for(tmp_path: Path) -> None:
    linked = load_experiment(RECIPE, [*SETTINGS, 'stages.federate.algorithm={name="fedgc",link="open sesame"}'])
    (tmp_path / "config.json").write_text(json.dumps(linked.resolved()))
    place = "stages.federate.algorithm.link"
    with pytest.raises(ConfigError, match=rf"{place} is a secret, which a run does not keep; add --set {place}=SECRET"):
        experiment_of(tmp_path)
    with pytest.raises(ConfigError, match=f"--set {place}: this is another experiment than that of"):
        experiment_of(tmp_path, [f"{place}=wrong"])
    assert experiment_of(tmp_path, [f"{place}=open sesame"]).recipe == linked.recipe


def test_a_run_that_has_forgotten_somebody_can_be_audited(
    run: Path, clients: tuple[str, ...], execution: Execution
) -> None:
    carry_out(plan(run, execution, clients[0]), execution)
    (run / "notes.txt").write_text("of somebody else")
    assert audit_run(run, execution=execution).findings
    assert clients[0] not in (run / "audit.json").read_text()
    carry_out(plan(run, execution, clients[1]), execution)
    assert not (run / "audit.json").exists()  # it was of models that are gone
    assert (run / "notes.txt").read_text() == "of somebody else"


def test_a_client_with_one_person_is_forgotten_as_a_whole(tmp_path: Path, execution: Execution) -> None:
    alone = load_experiment(RECIPE, [*SETTINGS, "partition.clients=8"])
    (tmp_path / "config.json").write_text(json.dumps(alone.resolved()))  # a run before its first round
    materials = Materials(alone, execution)
    (person,) = materials.clients.of("client-003").train.identities
    with pytest.raises(
        ConfigError, match=rf"client-003 holds faces of '{person}' alone; forget the client: client-003"
    ):
        plan(tmp_path, execution, "client-003", person)
    planned = plan(tmp_path, execution, "client-003")
    assert (planned.rounds, planned.again) == ({}, ("pretrain", "federate", "central"))
