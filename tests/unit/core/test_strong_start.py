"""Defaults for a strong start: what they replace, and that they leave the statistics of given weights alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from personae.algorithms import ALGORITHMS
from personae.algorithms.adapt import Tune
from personae.algorithms.fedpe import FedPE
from personae.core.algorithm import AnyAlgorithm
from personae.core.strong_start import STRONG_START, departures, with_strong_start
from personae.experiment.config import parse_experiment
from toys import NAMES, Rehearsal, stage_of

STAGE = {"name": "s", "algorithm": {"name": "fedavg", "training": {"momentum": 0.5}}}
EXPERIMENT: dict[str, Any] = {"name": "e", "data": {"private": {"identities": 4}}, "stages": [STAGE]}


def settings(**more: Any) -> dict[str, Any]:
    (section,) = parse_experiment({**EXPERIMENT, **more}, "here").resolved()["stages"]
    return section["algorithm"]


def test_an_experiment_with_weights_has_them_where_it_says_nothing():
    usual, strong = settings(), settings(weights="model.pth")
    assert usual["head_init"] == "random"
    assert strong["head_init"] == "mean"
    assert strong["training"] == {**usual["training"], **STRONG_START["training"]}
    assert strong["training"]["momentum"] == 0.5


def test_what_a_file_says_counts():
    algorithm = {"name": "fedavg", "head_init": "random", "training": {"lr": 0.3}}
    strong = settings(weights="model.pth", stages=[{"name": "s", "algorithm": algorithm}])
    assert (strong["head_init"], strong["training"]["lr"]) == ("random", 0.3)


def test_what_an_algorithm_trains_with_by_itself_stays_where_nothing_is_said_against_it():
    (section,) = parse_experiment(
        {**EXPERIMENT, "weights": "model.pth", "stages": [{"name": "s", "algorithm": {"name": "tune"}}]}, "here"
    ).resolved()["stages"]
    assert section["algorithm"]["training"] == {**asdict(Tune().training), **STRONG_START["training"]}


def test_bad_settings_are_left_for_the_schema_to_refuse():
    assert with_strong_start(FedPE, {"training": 5})["training"] == 5


def test_departures():
    assert departures(with_strong_start(FedPE, {})) == []
    assert departures({"batch_norm": "train", "training": {"lr": 0.5, "momentum": 0.1}}) == [
        "batch_norm = train (not eval)",
        f"training.lr = 0.5 (not {STRONG_START['training']['lr']})",
    ]


@pytest.mark.parametrize(
    "kind", [kind for kind in ALGORITHMS.values() if not kind.pools_faces], ids=lambda kind: kind.name
)
def test_statistics_of_batch_norm_stay_as_the_weights_have_them(kind: type[AnyAlgorithm], tmp_path: Path):
    algorithm = TypeAdapter(kind).validate_python(with_strong_start(kind, {}))
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=1),), source=NAMES[0]).run()
    start = run.federation.backbone()
    before, after = start.layout.views(start.flat), start.layout.views(run.final())
    for name in before:
        assert "running" not in name or torch.equal(before[name], after[name])
