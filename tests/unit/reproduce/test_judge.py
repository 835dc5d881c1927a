"""Verdicts while runs are still going on: in which order claims are run, and what is kept when time ends in between."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from personae.console import output
from personae.errors import ConfigError, OutOfTime
from personae.experiment.execution import Execution
from personae.reproduce.claims import Above, Claim, System
from personae.reproduce.plan import Job
from personae.reproduce.quantities import Outcomes, Quantity, constant
from personae.reproduce.reproduce import choose_claims, reproduce
from personae.reproduce.runner import Ended, Runner
from personae.reproduce.systems import SYSTEMS
from personae.screen.runs import findings_of_claims

RECIPE = """
name = "tiny"
network = { name = "small", embedding = 8, height = 32, width = 32 }
data.private = { identities = 4, images = 4 }
data.heldout = { first = 4, identities = 4, images = 2 }
partition = { clients = 2 }

[[stages]]
name = "train"
algorithm = { name = "fedpe" }

[variants]
one.stages.train.rounds = 1
two.stages.train.rounds = 2
three.stages.train.rounds = 3
"""


def seed_of(variant: str) -> Quantity:
    """Ten times the seed of the run, and one."""

    def read(outcomes: Outcomes) -> float:
        return 10 * outcomes[variant].experiment.seed + 1

    return Quantity(variant, (variant,), read)


FIRST = Claim("T-1", "one and two", "", (Above(seed_of("one"), constant(0)), Above(seed_of("two"), constant(0))))
SECOND = Claim("T-2", "two and three", "", (Above(seed_of("two"), constant(0)), Above(seed_of("three"), constant(0))))


@dataclass(frozen=True)
class Scripted(Runner):
    """Ends runs in the order given, without training, and then has no more time."""

    runs: int = 99

    def run(self, jobs: Sequence[Job], out: Path, ended: Ended = lambda folder, problem: None) -> dict[str, str]:
        for job in jobs[: self.runs]:
            folder = out / job.folder
            folder.mkdir(parents=True)
            for name, content in (("config.json", "{}"), ("environment.json", "{}"), ("metrics.jsonl", "")):
                (folder / name).write_text(content)
            ended(job.folder, None)
        if self.runs < len(jobs):
            raise OutOfTime("the time is spent")
        return {}


@pytest.fixture
def system(tmp_path: Path) -> System:
    (tmp_path / "recipes" / "tiny").mkdir(parents=True)
    (tmp_path / "recipes" / "tiny" / "small.toml").write_text(RECIPE)
    return System("tiny", "Nobody, Nothing", (FIRST, SECOND), recipes=tmp_path / "recipes")


def order(out: Path) -> list[str]:
    return [json.loads(line)["run"] for line in (out / "records.jsonl").read_text().splitlines()]


def test_all_seeds_of_a_claim_come_before_the_next_and_the_one_that_leads_before_all(system: System, tmp_path: Path):
    told: list[str] = []
    result = reproduce(system, tmp_path / "a", seeds=2, runner=Scripted(Execution()), notify=told.append)
    assert order(tmp_path / "a") == [f"seed-{seed}/{name}" for seed in (0, 1) for name in ("one", "two")] + [
        "seed-0/three",
        "seed-1/three",
    ]
    assert [finding.claim.id for finding in result.findings] == ["T-1", "T-2"]
    assert told == ["T-1 within noise: one and two", "T-2 within noise: two and three"]

    leading = reproduce(replace(system, leads="T-2"), tmp_path / "b", seeds=2, runner=Scripted(Execution()))
    assert order(tmp_path / "b")[:4] == [f"seed-{seed}/{name}" for seed in (0, 1) for name in ("two", "three")]
    assert [finding.claim.id for finding in leading.findings] == ["T-2", "T-1"]


def test_the_screen_ends_with_the_claim_that_leads(system: System, tmp_path: Path):
    result = reproduce(system, tmp_path / "a", seeds=2, runner=Scripted(Execution()))
    with output.capture() as shown:
        findings_of_claims(result, tmp_path / "a", as_json=False)
    text = " ".join(shown.get().split())
    end = text[text.index(" within noise: T-1, T-2 tables and plots: ") :]
    assert end.index("claims.json") < end.index("T-1 within noise: one and two (")


def test_seeds_begin_where_one_says(system: System, tmp_path: Path):
    reproduce(system, tmp_path / "a", claims=["T-1"], seeds=2, first_seed=5, runner=Scripted(Execution()))
    assert order(tmp_path / "a") == [f"seed-{seed}/{name}" for seed in (5, 6) for name in ("one", "two")]
    assert json.loads((tmp_path / "a" / "claims.json").read_text())["seeds"] == [5, 6]
    with pytest.raises(ConfigError, match="--first-seed -1: seeds are 0 or more"):
        reproduce(system, tmp_path / "b", first_seed=-1, runner=Scripted(Execution()))


@pytest.mark.parametrize(("runs", "judged"), [(3, None), (4, ["T-1"]), (5, ["T-1"])])
def test_whoever_has_no_more_time_keeps_the_claims_that_are_decided(
    runs: int, judged: list[str] | None, system: System, tmp_path: Path
):
    with pytest.raises(OutOfTime):
        reproduce(system, tmp_path / "out", seeds=2, runner=Scripted(Execution(), runs=runs))
    written = tmp_path / "out" / "claims.json"
    assert written.exists() == (judged is not None)
    if judged:
        assert [claim["id"] for claim in json.loads(written.read_text())["claims"]] == judged


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_a_claim_that_leads(name: str):
    assert choose_claims(SYSTEMS[name], ())[0].id == SYSTEMS[name].leads
