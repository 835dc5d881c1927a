"""Experiment files: what is filled in, what is overridden, and what is said when something does not fit."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae import ConfigError, FedPE, load_experiment
from personae.core.selection import Everybody
from personae.experiment.config import load_variants, parse_experiment
from personae.experiment.recipes import RECIPES

MINIMAL: dict[str, Any] = {
    "name": "minimal",
    "data": {"private": {"identities": 10}},
    "partition": {"clients": 4},
    "stages": [{"name": "federate", "rounds": 2, "algorithm": {"name": "fedpe", "training": {"lr": 0.1}}}],
}
TEXT = """
name = "minimal"
[data.private]
identities = 10
[partition]
clients = 4
[[stages]]
name = "federate"
rounds = 2
algorithm = { name = "fedpe" }
"""


def test_hyper_parameters_reach_the_algorithm_and_defaults_fill_the_rest() -> None:
    (stage,) = parse_experiment(MINIMAL, "x").recipe
    assert isinstance(stage.algorithm, FedPE)
    assert stage.algorithm.training.lr == 0.1
    assert stage.algorithm.training.momentum == FedPE().training.momentum
    assert (stage.rounds, stage.selection) == (2, Everybody())


def test_resolved_configuration_is_plain_data_that_parses_to_the_same_experiment() -> None:
    experiment = parse_experiment(MINIMAL, "x")
    plain = json.loads(json.dumps(experiment.resolved()))
    assert plain["stages"][0]["algorithm"]["margin"]["scale"] == FedPE().margin.scale
    assert plain["firewall"]["enabled"] is True
    of_files = ("min_images", "max_images", "skip_unreadable", "crop")
    private = plain["data"]["private"]
    plain["data"]["private"] = {key: value for key, value in private.items() if key not in of_files}
    assert parse_experiment(plain, "x").recipe == experiment.recipe


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("stages.federate.rounds=7", lambda e: e.recipe[0].rounds == 7),
        ("stages.0.rounds=7", lambda e: e.recipe[0].rounds == 7),
        ("stages.federate.algorithm.training.lr=0.5", lambda e: e.recipe[0].algorithm.training.lr == 0.5),
        ("network.name=mobilefacenet", lambda e: e.network.name == "mobilefacenet"),
        ('name="a name"', lambda e: e.name == "a name"),
        ("firewall.enabled=false", lambda e: not e.firewall.enabled),
        ("evaluation.fars=[0.5]", lambda e: e.evaluation.fars == (0.5,)),
    ],
)
def test_overrides_reach_their_value(tmp_path: Path, override: str, read: Callable[[Any], bool]) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    assert not read(load_experiment(path))
    assert read(load_experiment(path, [override]))


def test_files_in_the_place_of_synthetic_faces_take_none_of_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "experiments" / "x.toml"
    path.parent.mkdir()
    path.write_text(TEXT.replace("identities = 10", "first = 5\nidentities = 10\nimages = 4"))
    monkeypatch.chdir(tmp_path)
    private = load_experiment(path, ["data.private.min_images=3", "data.private.source=faces"]).data.private
    assert private.source == str(tmp_path / "faces")
    assert (private.first, private.identities, private.min_images) == (0, None, 3)
    path.write_text(TEXT.replace("identities = 10", 'source = "mine"\nidentities = 10'))
    assert load_experiment(path).data.private.source == str(path.parent / "mine")
    other = load_experiment(path, ["data.private.source=faces"]).data.private
    assert (other.source, other.identities) == (str(tmp_path / "faces"), 10)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.federat.rounds=7", "did you mean federate?"),
        ("stages.5.rounds=7", "there is no '5'"),
        ("rounds", "key.of.section=value"),
        ("=3", "key.of.section=value"),
        ("name.first=3", "name is a value"),
        ("stages=3", "stages"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(tmp_path: Path, override: str, said: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    with pytest.raises(ConfigError, match=said):
        load_experiment(path, [override])


def set_at(*place: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: Any) -> None:
        for step in place[:-1]:
            raw = raw[step]
        raw[place[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_at("stages", 0, "algorithm", "training", "lrr", value=1), r"training\.lrr: .* did you mean lr\?"),
        (set_at("stages", 0, "algorithm", "training", "lr", value=-1), "lr is -1.0, it must be positive"),
        (set_at("stages", 0, "algorithm", "training", "lr", value="fast"), r"training\.lr: .*'fast'"),
        (set_at("stages", 0, "algorithm", "margin", value={"kind": "cosfase"}), r"margin\.kind"),
        (set_at("stages", 0, "algorithm", "training", "epochs", value=1), None),
        (set_at("stages", 0, "algorithm", "name", value="fedpee"), r"'fedpee'; did you mean fedpe\?"),
        (set_at("stages", 0, "algorithm", value={}), "algorithm.name is None"),
        (set_at("stages", 0, "runds", value=1), r"stages\.federate\.runds: .* did you mean rounds\?"),
        (set_at("stages", 0, "rounds", value=0), "rounds is 0"),
        (set_at("stages", 0, "participation", value=0.5), r"stages\.federate\.participation: .* write selection = "),
        (set_at("stages", 0, "algorithm", "rows", value="mean"), r"algorithm\.rows: .* write head_init$"),
        (set_at("stages", 0, "algorithm", "public", value=True), r"algorithm\.public: .* write use_public_faces$"),
        (
            set_at("stages", 0, "algorithm", "regularisation", value=1.0),
            r"regularisation: .* write terms = \[{ name = ",
        ),
        (
            set_at("stages", 0, "algorithm", "training", "prox", value=1.0),
            r"training\.prox: .* write terms = \[{ name = ",
        ),
        (set_at("stages", 0, "algorithm", "terms", value=[{"name": "proximal", "weight": 0.1}]), None),
        (
            set_at("stages", 0, "algorithm", "terms", value=[{"name": "proximl", "weight": 0.1}]),
            r"algorithm\.terms\.proximl\.name is 'proximl'; did you mean proximal\?",
        ),
        (
            set_at("stages", 0, "algorithm", "terms", value=[{"name": "proximal", "weigth": 0.1}]),
            r"algorithm\.terms\.proximal\.weigth: .* did you mean weight\?",
        ),
        (
            set_at("stages", 0, "algorithm", "terms", value=[{"name": "proximal", "weight": -1}]),
            r"algorithm\.terms\.proximal: weight is -1.0, it must be positive and finite",
        ),
        (set_at("stages", 0, "algorithm", "terms", value="proximal"), "terms is a list of tables, each with a name"),
        (set_at("stages", 0, "selection", value={"name": "share", "share": 1.5}), "share is 1.5"),
        (
            set_at("stages", 0, "selection", value={"name": "shares"}),
            r"name is 'shares'; did you mean share\?",
        ),
        (set_at("stages", 0, "selection", value={"name": "count", "cliens": 1}), r"cliens: .* did you mean clients\?"),
        (
            set_at("stages", 0, "selection", value={"name": "growing", "first": 3, "last": 2}),
            r"first is .*, it must not exceed last",
        ),
        (
            set_at("stages", 0, "aggregation", value={"name": "median", "befor": []}),
            r"stages\.federate\.aggregation\.befor: .* did you mean before\?",
        ),
        (
            set_at("stages", 0, "server", value={"average": "tail", "decay": 0.5}),
            r"stages\.federate\.server: decay goes with average = 'exponential'",
        ),
        (set_at("stages", 0, "quorum", value=0), "quorum is 0"),
        (set_at("stages", 0, "after", value="later"), "'later' is not an earlier stage"),
        (set_at("stages", 0, "name", value="../escape"), r"stage .*escape.: a name begins with a letter"),
        (set_at("stages", 0, "name", value="a" * 101), "has no more than 100 characters"),
        (set_at("stages", value=[]), "at least one of"),
        (set_at("data", "private", "idents", value=3), r"data\.private\.idents: .* did you mean identities\?"),
        (set_at("data", "private", value={}), "need the number of identities"),
        (set_at("data", "private", "min_images", value=3), "min_images does not go with synthetic"),
        (
            set_at("data", "private", value={"source": "faces", "min_images": 3, "max_images": 2}),
            "max_images is below min_images",
        ),
        (set_at("data", "private", "people", value="islands"), "people and capture go together, in place of domain"),
        (
            set_at("data", "private", value={"identities": 2, "people": "island", "capture": "studio"}),
            "no people is called 'island'.* did you mean islands?",
        ),
        (
            set_at("data", "private", value={"identities": 2, "people": "hills", "capture": "studios"}),
            "no capture is called 'studios'",
        ),
        (set_at("data", "public", value={"source": "x", "images": 3}), "images does not go with faces from files"),
        (set_at("data", "private", value={"parts": {"a": {"identities": 2}}}), "two sources or more"),
        (
            set_at("data", "private", value={"parts": {"a": {"identities": 2}, "b": {"identites": 2}}}),
            r"parts\.b\.identites: .* did you mean identities\?",
        ),
        (set_at("partition", "client", value=3), r"partition\.client: .* did you mean clients\?"),
        (set_at("partition", "by", value="equals"), r"partition\.by"),
        (set_at("network", value={"nme": "small"}), r"network\.nme: .* did you mean name\?"),
        (set_at("network", value={"name": "smal"}), "small"),
        (set_at("evaluation", value={"fars": [0.0]}), "rate of 0.0"),
        (set_at("firewall", value={"norm_multiple": 0.5}), "firewall: norm_multiple is 0.5, it must be above 1"),
        (
            set_at("firewall", value={"rows_multiple": float("nan")}),
            "rows_multiple is nan, it must be above 1",
        ),
        (
            set_at("stages", 0, "algorithm", "training", value={"lr": float("inf")}),
            "lr is inf, it must be positive and finite",
        ),
        (set_at("stages", 0, "rounds", value=10**20), "rounds is 1.*, it must be from 1 to 1,000,000"),
        (set_at("threads", value=10**11), "threads: this should be less than or equal to 1024"),
        (set_at("data", "private", "first", value=10**20), r"data\.private\.first: this should be less than"),
        (set_at("seed", value=[1]), "seed"),
        (set_at("seed", value=-1), "seed: .* greater than or equal to 0, not -1"),
        (set_at("evaluation", value={"pairs": 20}), r"evaluation\.pairs: .* did you mean pairs_per_fold\?"),
        (set_at("sed", value=1), r"sed: there is no such key; did you mean seed\?"),
        (lambda raw: raw.pop("stages"), "stages: this is missing"),
        (lambda raw: raw["stages"].append(raw["stages"][0]), "two stages are called federate"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(change: Callable[[dict[str, Any]], None], said: str | None) -> None:
    raw = copy.deepcopy(MINIMAL)
    change(raw)
    if said is None:
        parse_experiment(raw, "x.toml")
        return
    with pytest.raises(ConfigError, match=said) as caught:
        parse_experiment(raw, "x.toml")
    assert str(caught.value).startswith("x.toml: ")
    assert "\n" not in str(caught.value)


def test_epochs_and_iterations_exclude_each_other() -> None:
    raw = copy.deepcopy(MINIMAL)
    raw["stages"][0]["algorithm"]["training"] = {"epochs": 1, "iterations": 5}
    with pytest.raises(ConfigError, match="not both"):
        parse_experiment(raw, "x.toml")


@pytest.mark.parametrize(
    ("algorithm", "said", "meant"),
    [
        ("unsupervised", {"training": {"lr": 0.01}}, {"training": {"lr": 0.01, "iterations": 100, "epochs": None}}),
        ("unsupervised", {"training": {"epochs": 2}}, {"training": {"epochs": 2, "iterations": None}}),
        ("unsupervised", {"training": {"iterations": 7}}, {"training": {"iterations": 7, "epochs": None}}),
        ("tune", {"training": {"lr": 0.1}}, {"training": {"lr": 0.1, "batch_size": 64, "weight_decay": 0.0}}),
        ("hf_maml", {"margin": {"scale": 9.0}}, {"margin": {"kind": "arcface", "scale": 9.0, "margin": 0.5}}),
        ("hf_maml", {"margin": {"kind": "cosface"}}, {"margin": {"kind": "cosface", "scale": 30.0, "margin": 0.4}}),
        ("hf_maml", {"margin": {"kind": "arcface"}}, {"margin": {"kind": "arcface", "scale": 8.0, "margin": 0.5}}),
    ],
)
@pytest.mark.parametrize("weights", [{}, {"weights": "model.pth"}], ids=["scratch", "weights"])
def test_a_table_changes_only_what_it_names(
    algorithm: str, said: dict[str, Any], meant: dict[str, Any], weights: dict[str, str]
) -> None:
    raw = {**copy.deepcopy(MINIMAL), **weights}
    raw["stages"][0]["algorithm"] = {"name": algorithm, **said}
    (section,) = parse_experiment(raw, "x.toml").resolved()["stages"]
    for name, table in meant.items():
        assert {key: section["algorithm"][name][key] for key in table} == table


def test_paths_are_meant_from_the_folder_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    folder.mkdir()
    (folder / "x.toml").write_text(
        TEXT.replace("identities = 10", 'source = "faces"') + "[data.public]\nidentities = 3\n"
    )
    data = load_experiment(folder / "x.toml").data
    assert data.private.source == str((folder / "faces").resolve())
    assert data.public is not None
    assert data.public.source == "synthetic"


DIGITS, DEEP = b"9" * 5000, b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "not valid TOML"),
        (b"\xff\xfe", "read as text"),
        (b"seed = " + DIGITS, "not valid TOML"),
        (b"seed = 0x" + b"f" * 5000, "a number of more than 64 bits"),
        (b"[[stages]]\nrounds = 0o" + b"7" * 6000, "a number of more than 64 bits"),
        (b'weights = "a\\u0000b"', "with the character"),
        (b'extends = "a\\u0000b"', "with the character"),
        (b"seed = " + DEEP, "not valid TOML"),
        (b"seed = " + b"{a=" * 5000 + b"1" + b"}" * 5000, "not valid TOML"),
        (b".".join([b"a"] * 5000) + b" = 1", "nested more than 20 deep"),
        (b"[" + b".".join([b"a"] * 5000) + b"]", "nested more than 20 deep"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_experiment(path)


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: it is larger than"):
        load_experiment("/dev/zero")


@pytest.mark.parametrize("named", ["pipe", "/dev/zero", "."])
def test_an_experiment_of_others_extends_plain_files_alone(tmp_path: Path, named: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.toml").write_text(f'extends = "{named}"\n')
    with pytest.raises(ConfigError, match="an experiment can only extend a plain file"):
        load_experiment(tmp_path / "x.toml")


def test_messages_call_a_stage_by_its_name_as_the_user_does() -> None:
    two = copy.deepcopy(MINIMAL)
    two["stages"].append({"name": "again", "rouns": 2, "algorithm": {"name": "fedpe"}})
    with pytest.raises(ConfigError, match=r"^x: stages\.again\.rouns: there is no such key; did you mean rounds\?"):
        parse_experiment(two, "x")
    with pytest.raises(ConfigError, match=r"stages\.federate\.rouns: there is no such key"):
        load_experiment("quick", ["stages.federate.rouns=3"])
    two["stages"][1] = {"name": "again", "rounds": "many", "algorithm": {"name": "fedpe"}}
    with pytest.raises(ConfigError, match=r"stages\.again\.rounds: .*'many'"):
        parse_experiment(two, "x")
    two["stages"][1] = {"algorithm": {"name": "fedpe"}}
    with pytest.raises(ConfigError, match=r"stages\.1\.name: this is missing"):
        parse_experiment(two, "x")


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.toml")), ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_recipe_can_be_read_and_every_variant_of_it(path: Path) -> None:
    assert load_experiment(path).recipe
    assert all(variant.recipe for variant in load_variants(path).values())


def test_the_correction_of_fedgc_and_its_baselines_are_told_apart_in_a_recipe() -> None:
    stages = {stage.name: stage.algorithm for stage in load_experiment(RECIPES / "fedgc" / "regularisers.toml").recipe}
    assert [stages[name].regulariser for name in ("fedpe", "fixed", "fedcos", "fedgc")] == [
        "none",
        "none",
        "cosine",
        "softmax",
    ]


def test_impossible_options_of_an_algorithm_are_named(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(TEXT.replace('name = "fedpe"', 'name = "fedface", fixed = true'))
    with pytest.raises(ConfigError, match="fixed class embeddings cannot be spread out"):
        load_experiment(path)


def test_another_choice_by_name_drops_the_settings_of_the_one_before(tmp_path: Path) -> None:
    """As in variants: the keys of one algorithm, policy or network mean nothing to another."""
    (tmp_path / "x.toml").write_text(
        'name = "x"\ndata.private.identities = 4\npartition = { by = "equal", clients = 2 }\n'
        '[[stages]]\nname = "federate"\nselection = { name = "share", share = 0.5 }\n'
        'algorithm = { name = "fedgc", strength = 3.0 }\n'
    )
    settings = ["stages.federate.algorithm.training.lr=0.3", "stages.federate.algorithm.name=fedpe"]
    stage = load_experiment(tmp_path / "x.toml", [*settings, "stages.federate.selection.name=all"]).recipe[0]
    assert isinstance(stage.algorithm, FedPE)
    assert stage.algorithm.training.lr == 0.3
    assert stage.selection == Everybody()
    same = load_experiment(tmp_path / "x.toml", ["stages.federate.algorithm.name=fedgc"]).recipe[0]
    assert same.algorithm.strength == 3.0


@pytest.mark.parametrize(
    "name", ["/etc/run", "../run", "a/b", "a\\b", ".", "..", ".hidden", "a\nb", "a\x1b[31m", "x" * 201]
)
def test_an_experiment_does_not_choose_the_folder_of_its_run(name: str):
    with pytest.raises(ConfigError, match=r"name: .*give a plain name"):
        parse_experiment({"name": name, "stages": [{"name": "a", "algorithm": {"name": "fedpe"}}]}, "test")


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000 + "]" * 5000])
def test_a_setting_of_any_length_ends_in_one_line(tmp_path: Path, text: str):
    file = tmp_path / "a.toml"
    file.write_text('name = "a"\n[[stages]]\nname = "a"\nalgorithm = { name = "fedpe" }\n')
    with pytest.raises(ConfigError, match="seed"):
        load_experiment(file, [f"seed={text}"])
