"""Every run once: what variants begin with is shared as far as it cannot differ."""

from pathlib import Path

import pytest

from personae.experiment.config import Experiment, load_variants
from personae.reproduce.plan import Plan

FILE = """
name = "x"
network = { name = "small", embedding = 16, height = 32, width = 32 }
data.public = { identities = 8, images = 4 }
data.private = { first = 8, identities = 8, images = 8 }
partition.clients = 4

[[stages]]
name = "start"
algorithm.name = "pretrain"

[[stages]]
name = "train"
algorithm.name = "fedpe"

[[stages]]
name = "tune"
algorithm.name = "fedpe"

[variants]
all = {}
again = {}
longer.stages.tune.rounds = 2
trained.until = "train"
two.partition.clients = 2
two.until = "train"
pretrained.until = "start"
quick.stages.start.rounds = 3
quick.until = "train"
"""


@pytest.fixture
def variants(tmp_path: Path) -> dict[str, Experiment]:
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    return load_variants(path)


def begins(plan: Plan) -> dict[str, str | None]:
    return {job.folder: job.begin for job in plan.jobs}


def test_runs_are_shared(variants: dict[str, Experiment]):
    plan = Plan.of(variants)
    found = begins(plan)
    assert found["pretrained"] is None
    assert found["trained"] == found["two"] == "pretrained"  # no client was asked: the partition plays no part
    assert found["all"] == found["longer"] == "trained"
    own = found.pop("quick")
    assert own.startswith("start-")  # no variant ends there
    assert found.pop(own) is None
    assert set(found) == {"pretrained", "trained", "two", "all", "longer"}
    assert plan.folders == {name: "all" if name == "again" else name for name in variants}


def test_folders_are_the_same_whatever_is_asked_for(variants: dict[str, Experiment]):
    plan = Plan.of(variants)
    assert [job.folder for job in plan.needed(["again"])] == ["pretrained", "trained", "all"]
    assert [job.folder for job in plan.needed(["two", "pretrained"])] == ["pretrained", "two"]
    assert plan.needed(variants) == plan.jobs


def test_what_a_run_begins_with_comes_before_it(variants: dict[str, Experiment]):
    done: set[str | None] = {None}
    for job in Plan.of(variants).jobs:
        assert job.begin in done
        done.add(job.folder)


def test_clients_that_were_asked_are_not_shared_across_partitions(variants: dict[str, Experiment]):
    tuned = variants["all"].model_copy(update={"partition": variants["two"].partition})
    plan = Plan.of({"all": variants["all"], "two": tuned})
    first, second = (begins(plan)[name] for name in ("all", "two"))
    assert first != second
    assert begins(plan)[first] == begins(plan)[second]  # yet both begin with the one pre-trained model


def test_other_seeds_share_nothing(variants: dict[str, Experiment]):
    one, other = (Plan.of({"all": variants["all"].model_copy(update={"seed": seed})}) for seed in (0, 1))
    assert {job.begin for job in one.jobs if job.begin} & {job.begin for job in other.jobs if job.begin} == set()
