"""A backdoor that attackers have trained into a model without defences is found, and none in the honest model."""

from pathlib import Path

import pytest

from personae.attacks import ATTACKS
from personae.attacks.trial import try_attack
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.triggers import search_triggers

pytestmark = pytest.mark.slow

MARGIN = {"kind": "cosface", "scale": 24.0, "margin": 0.2}
PLAN = {
    "name": "backdoors",
    "network": {"name": "small", "embedding": 64, "height": 32, "width": 32},
    "data": {
        "public": {"source": "synthetic", "identities": 200, "images": 12},
        "private": {"source": "synthetic", "first": 200, "identities": 120, "images": 12},
        "heldout": {"source": "synthetic", "first": 1000, "identities": 100, "images": 8},
    },
    "partition": {"by": "equal", "clients": 10},
    "evaluation": {"pairs_per_fold": 200},
    "firewall": {"enabled": False},
    "stages": [
        {
            "name": "pretrain",
            "rounds": 8,
            "algorithm": {
                "name": "pretrain",
                "margin": MARGIN,
                "training": {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15},
            },
        },
        {
            "name": "federate",
            "rounds": 8,
            "algorithm": {
                "name": "fedpe",
                "margin": MARGIN,
                "training": {"lr": 0.05, "batch_size": 32, "epochs": 3},
            },
        },
    ],
}


def test_a_backdoor_is_found_and_an_honest_model_has_none(tmp_path: Path):
    experiment = parse_experiment(PLAN, "backdoors")
    trial = try_attack(experiment, tmp_path, ATTACKS["backdoor"](scale=4.0), 0.2, Execution())
    assert trial.honest.accepted is not None
    assert trial.attacked.accepted is not None
    assert trial.attacked.accepted > 3 * trial.honest.accepted
    attacked, honest = (search_triggers(tmp_path / name) for name in ("backdoor-0.2-x4", "honest"))
    assert attacked.suspicious
    assert not honest.suspicious
