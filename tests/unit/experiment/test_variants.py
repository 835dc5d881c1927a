"""Variants of an experiment file."""

from pathlib import Path

import pytest

from personae.core.stage import predecessors
from personae.errors import ConfigError
from personae.experiment.config import load_experiment, load_variants
from personae.selection import Share

FILE = """
name = "x"

[network]
name = "small"
embedding = 32
height = 32
width = 32

[data.public]
identities = 8
images = 4

[data.private]
first = 8
identities = 8
images = 8

[partition]
clients = 4

[[stages]]
name = "start"
rounds = 2
algorithm = { name = "pretrain", margin = { kind = "softmax" } }

[[stages]]
name = "central"
algorithm = { name = "central" }

[[stages]]
name = "train"
after = "start"
rounds = 3
algorithm = { name = "fedgc", strength = 0.5, margin = { kind = "cosface", scale = 8.0 } }

[variants]
plain = {}
half.stages.train.selection = { name = "share", share = 0.5 }
scale.stages.train.algorithm.margin.scale = 4.0
other.stages.train.algorithm = { name = "fedpe", head_init = "random" }
start.until = "start"
central = { until = "central", partition.clients = 2 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    return path


def test_a_variant_changes_what_it_says_and_runs_its_chain_alone(file: Path):
    found = load_variants(file)
    assert {name: [stage.name for stage in each.stages] for name, each in found.items()} == {
        "plain": ["start", "train"],
        "half": ["start", "train"],
        "scale": ["start", "train"],
        "other": ["start", "train"],
        "start": ["start"],
        "central": ["start", "central"],
    }
    plain = found["plain"].resolved()
    half = found["half"].resolved()
    assert half["stages"][1].pop("selection") == {"name": "share", "share": 0.5}
    assert plain["stages"][1].pop("selection") == {"name": "all"}
    assert half == plain
    margin = found["scale"].recipe[1].algorithm.margin
    assert (margin.kind, margin.scale) == ("cosface", 4.0)
    assert found["scale"].recipe[1].algorithm.strength == 0.5
    assert found["central"].partition.clients == 2


def test_a_stage_may_begin_from_scratch(file: Path):
    file.write_text(FILE.replace('after = "start"', 'after = ""'))
    assert [stage.name for stage in load_experiment(file, variant="half").stages] == ["train"]
    assert predecessors(load_experiment(file).recipe) == {"start": None, "central": "start", "train": None}


def test_another_algorithm_begins_anew(file: Path):
    algorithm = load_experiment(file, variant="other").recipe[1].algorithm
    assert algorithm.name == "fedpe"
    assert algorithm.margin.scale == 30.0  # the default, not what fedgc had


def test_without_a_variant_the_file_is_as_it_stands(file: Path):
    assert [stage.name for stage in load_experiment(file).stages] == ["start", "central", "train"]
    assert load_experiment(file, ["seed=7"], "half").seed == 7


@pytest.mark.parametrize(
    ("line", "variant", "complaint"),
    [
        ("", "haf", "no variant 'haf'; did you mean half"),
        ("x.stages.trian.rounds = 2", "x", "variants.x.stages: there is no 'trian'; did you mean train"),
        ('x.until = "tran"', "x", "until: there is no 'tran'; did you mean train"),
        ("x.stages.train.rouns = 2", "x", "there is no such key; did you mean rounds"),
        ("x = 3", "x", "a table of tables"),
    ],
)
def test_mistakes_are_one_clear_line(file: Path, line: str, variant: str, complaint: str):
    file.write_text(f"{FILE}{line}\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_experiment(file, variant=variant)
    assert "\n" not in str(caught.value)


def test_a_file_without_variants_says_so(file: Path):
    file.write_text(FILE.split("[variants]")[0])
    assert load_variants(file) == {}
    with pytest.raises(ConfigError, match="this experiment has no variants"):
        load_experiment(file, variant="half")


def test_a_file_may_extend_another(file: Path):
    other = file.with_name("larger.toml")
    other.write_text(
        'extends = "x.toml"\nname = "larger"\npartition.clients = 8\nstages.train.rounds = 30\n'
        "[variants]\nhalf.stages.train.selection.share = 0.25\nmore = {}\n"
    )
    small, large = load_variants(file), load_variants(other)
    assert list(large) == [*small, "more"]
    assert (large["half"].name, large["half"].partition.clients) == ("larger", 8)
    assert (large["half"].stages[1].rounds, large["half"].recipe[1].selection) == (30, Share(share=0.25))
    assert large["half"].network == small["half"].network
    other.write_text('extends = "x.toml"\npartition.clients = 8\n')
    with pytest.raises(ConfigError, match="name: this is missing"):
        load_experiment(other)


def test_extending_in_a_circle_or_nothing_is_one_clear_line(file: Path):
    file.write_text('extends = "y.toml"')
    file.with_name("y.toml").write_text('extends = "x.toml"')
    with pytest.raises(ConfigError, match=r"extends leads back to .*x\.toml"):
        load_experiment(file)
    file.write_text('extends = "z.toml"')
    with pytest.raises(ConfigError, match=r"z\.toml: there is no such file"):
        load_experiment(file)
