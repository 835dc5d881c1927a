"""What a run will take, before it starts."""

from pathlib import Path
from typing import Any

from personae.core.layout import Layout
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials

PLAN: dict[str, Any] = {
    "name": "plan",
    "data": {"private": {"identities": 6, "images": 4}},
    "partition": {"by": "equal", "clients": 3, "train": 0.5, "val": 0.0, "test": 0.5},
    "network": {"name": "small", "embedding": 16, "height": 32, "width": 32},
    "evaluation": {"folds": 2, "pairs_per_fold": 2},
}


def test_an_oracle_receives_the_class_embeddings_of_all_others(faces_cache: Path) -> None:
    algorithms = {"name": "train", "algorithm": {"name": "oracle"}}, {"name": "plain", "algorithm": {"name": "fedpe"}}
    experiment = parse_experiment({**PLAN, "stages": list(algorithms)}, "plan")
    oracle, plain = forecast(Materials(experiment, Execution(cache=faces_cache))).stages
    model, embedding = 4 * Layout.of(experiment.network.layout()).size, 4 * 16
    assert plain.bytes_down == 3 * model
    assert oracle.bytes_down == 3 * (model + 4 * embedding)  # two of the six people are its own
    assert oracle.bytes_up == 3 * (model + 2 * embedding + 8 + 8)


def test_a_policy_that_names_more_clients_than_there_are_is_told(faces_cache: Path) -> None:
    heard: list[str] = []
    for last in (3, 5):
        stage = {
            "name": "train",
            "rounds": 4,
            "selection": {"name": "growing", "first": 2, "last": last},
            "algorithm": {"name": "fedpe"},
        }
        experiment = parse_experiment({**PLAN, "stages": [stage]}, "plan")
        forecast(Materials(experiment, Execution(cache=faces_cache, notify=heard.append)))
    assert heard == ["stage train: selection growing names 5 clients, and there are 3"]
