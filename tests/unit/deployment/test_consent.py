"""A client takes part in what somebody accepted, and in nothing else."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from personae.algorithms import FedPE, Pretrain
from personae.core.algorithm import ClientInfo
from personae.core.message import Trouble
from personae.core.problem import Problem
from personae.deployment.consent import ACCEPTED, ALL, Consent, accepted_of, digest_of, in_words
from personae.deployment.job import Job
from personae.deployment.join import Member
from personae.errors import ConfigError, Refused
from personae.experiment.execution import Execution
from personae.privacy.accountant import Accountant
from personae.runtime.host import ClientHost
from personae.runtime.transport import Request
from toys import Rehearsal, quickly, stage_of

EXPERIMENT: dict[str, Any] = {
    "name": "offices",
    "data": {"public": {"identities": 5}},
    "stages": [
        {"name": "start", "algorithm": {"name": "pretrain"}},
        {
            "name": "together",
            "rounds": 7,
            "algorithm": {"name": "fedpe"},
            "layers": [{"name": "clip", "norm": 2.5}, {"name": "secret-sum"}],
        },
    ],
}
JOB = Job("a1b2c3d4e5", EXPERIMENT, clients=12)


def consent(home: Path, *answers: bool, accept: tuple[str, ...] = ()) -> tuple[Consent, list[str], list[bool]]:
    """With a person who gives these answers, one after the other, if there are any."""
    told, left = list[str](), list(answers)
    ask = (lambda: left.pop(0)) if answers else None
    return Consent(home=home, server="hub:9093", accept=frozenset(accept), ask=ask, notify=told.append), told, left


def changed(**more: Any) -> Job:
    other = json.loads(json.dumps(EXPERIMENT))
    other["stages"][1] |= more
    return replace(JOB, experiment=other)


def test_the_plan_says_who_what_how_often_and_what_leaves() -> None:
    text = "\n".join(in_words(JOB, "hub:9093"))
    for words in (
        "the server hub:9093 plans the run offices (a1b2c3d4) with 12 clients",
        "stage start: pretrain, 1 round, at the server alone",
        "stage together: fedpe, 7 rounds; leaves this client: ",
        "layer clip: norm = 2.5",
        "layer secret-sum: threshold = 0.66",
        "MaskedModelState: uniform numbers",
        "the server checks none of them, and trusts its clients to be honest",
        "differential privacy: none;",
        f"digest of this plan: {digest_of(JOB)}",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("policy", "clients", "words"),
    [
        (
            {"name": "passes", "clients": 1},
            12,
            "in a round of one client, the next client receives the model of this one",
        ),
        ({"name": "passes", "clients": 2}, 12, "in a round of two clients, each can work out the other's update"),
        ({"name": "passes", "clients": 2}, 11, "in a round of one client"),
        ({"name": "count", "clients": 1}, 0, "in a round of one client"),  # how many there are is not told
        ({"name": "all"}, 2, "in a round of two clients"),
        ({"name": "all"}, 3, None),
        ({"name": "all"}, 0, None),
    ],
)
def test_the_plan_says_what_clients_see_of_each_other(policy: dict[str, Any], clients: int, words: str | None) -> None:
    told = in_words(replace(changed(selection=policy, layers=[]), clients=clients), "hub:9093")
    found = [line for line in told if "what clients see of each other" in line]
    assert [words in line for line in found] == [True] if words else found == []


def test_the_source_is_one_client_and_a_stage_that_averages_nothing_shows_nobody() -> None:
    def told(algorithm: str, **more: Any) -> bool:
        stages = [{"name": "train", "rounds": 2, "algorithm": {"name": algorithm}, **more}]
        job = Job("a1b2c3d4e5", {**EXPERIMENT, "stages": stages}, clients=3)
        return any("what clients see of each other" in line for line in in_words(job, "hub"))

    assert told("fedpe", clients="source")
    assert told("fedpe", clients="targets")
    assert not told("fedpe")
    assert not told("local", selection={"name": "count", "clients": 1})


def test_the_plan_says_what_epsilon_all_rounds_spend() -> None:
    noise = {"name": "local-noise", "norm": 1.0, "multiplier": 20.0}
    job = changed(layers=[noise, {"name": "secret-sum"}])
    experiment = job.parsed()
    accountant = Accountant(experiment.recipe, {"start": 12, "together": 12}, experiment.budget)
    (spent,) = accountant.spent(experiment.recipe[1], 7)
    assert 0 < spent.epsilon < 10
    line = next(line for line in in_words(job, "hub") if line.startswith("differential privacy"))
    assert f"epsilon {spent.epsilon:.3g} at delta 1e-05 for each client, from the server, too" in line


def test_a_person_is_asked_once_and_remembered(tmp_path: Path) -> None:
    asked, told, left = consent(tmp_path, True, False)
    asked.require(JOB)
    assert told
    assert left == [False]
    told.clear()
    asked.require(JOB)
    again, heard, _ = consent(tmp_path)  # another day, and nobody at the terminal
    again.require(JOB)
    again.check(JOB)
    assert not told
    assert not heard
    kept = json.loads((tmp_path / ACCEPTED).read_text())
    assert kept[digest_of(JOB)]["server"] == "hub:9093"
    assert stat.S_IMODE((tmp_path / ACCEPTED).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "other",
    [
        changed(rounds=8),
        changed(layers=[]),
        changed(algorithm={"name": "fedpe", "weighting": "uniform"}),
        replace(JOB, run="another"),  # twice the same plan is twice as much
        replace(JOB, coding="fp16"),
        replace(JOB, clients=2),
    ],
    ids=["rounds", "layers", "algorithm", "run", "coding", "clients"],
)
def test_a_plan_that_changes_is_asked_anew(tmp_path: Path, other: Job) -> None:
    asked, _, left = consent(tmp_path, True, False)
    asked.require(JOB)
    assert not asked.given(other)
    with pytest.raises(Refused, match=f"the plan {digest_of(other)} was not accepted; nothing was sent"):
        asked.require(other)
    assert not left
    asked.check(JOB)
    with pytest.raises(Refused, match="which was not accepted here"):
        asked.check(other)


def test_what_an_answer_may_hold_is_no_part_of_the_plan(tmp_path: Path) -> None:
    asked, _, _ = consent(tmp_path, True)
    asked.require(JOB)
    asked.check(replace(JOB, max_bytes=7))


def test_where_nobody_is_the_line_to_use_is_said(tmp_path: Path) -> None:
    alone, told, _ = consent(tmp_path)
    with pytest.raises(ConfigError, match=f"join with --accept {digest_of(JOB)}"):
        alone.require(JOB)
    assert any("leaves this client" in line for line in told)
    assert not (tmp_path / ACCEPTED).exists()
    for words in (digest_of(JOB), ALL):
        given, _, _ = consent(tmp_path / words, accept=(words,))
        given.require(JOB)
        given.check(JOB)


def test_a_damaged_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / ACCEPTED).write_text("{")
    with pytest.raises(ConfigError, match=r"accepted\.json: this file is damaged"):
        consent(tmp_path)[0].given(JOB)


def test_only_digests_can_be_accepted() -> None:
    assert accepted_of([digest_of(JOB), "all"]) == {digest_of(JOB), ALL}
    with pytest.raises(ConfigError, match="--accept yes: this is not the digest"):
        accepted_of(["yes"])


def test_faces_are_not_opened_for_a_plan_that_nobody_accepted(tmp_path: Path) -> None:
    member = Member(data=tmp_path / "never read", home=tmp_path / "home", execution=Execution())
    with pytest.raises(Refused, match=f"the plan {digest_of(JOB)}, which was not accepted here"):
        member.host(JOB)


@pytest.mark.parametrize(
    ("task", "stage", "round_"),
    [("train", "fedpe", 3), ("train", "fedpe", 0), ("evaluate", "fedpe", 3), ("train", "pretrain", 1)],
)
def test_requests_outside_the_plan_are_refused(tmp_path: Path, task: str, stage: str, round_: int) -> None:
    recipe = (stage_of(quickly(Pretrain()), rounds=1), stage_of(quickly(FedPE())))  # two rounds
    run = Rehearsal(tmp_path, recipe)
    host = ClientHost(run.federation)
    model = run.federation.backbone().state()
    down = FedPE.types.down(model=model) if stage == "fedpe" else Pretrain.types.down(model=model)
    answer = host.handle(Request(task, stage, round_, ClientInfo("ann", 0), down)).message
    assert isinstance(answer, Trouble)
    assert answer.failure.value is Problem.REFUSED
    within = host.handle(Request("train", "fedpe", 2, ClientInfo("ann", 0), FedPE.types.down(model=model))).message
    assert not isinstance(within, Trouble)
