"""A run that counts what it spends of privacy: on screen, in its records, and up to its budget."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from personae.core.events import PrivacySpent, RoundWarning
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.privacy.spent import spent
from personae.report.records import read_events, read_run

NOISE = {"name": "noise", "norm": 0.01, "multiplier": 2.0, "randomness": "seed"}
EXPERIMENT = {
    "name": "private",
    "network": {"name": "small", "embedding": 16, "height": 32, "width": 32},
    "data": {
        "private": {"source": "synthetic", "identities": 8, "images": 8},
        "heldout": {"source": "synthetic", "first": 500, "identities": 6, "images": 4},
    },
    "partition": {"by": "equal", "clients": 4},
    "evaluation": {"folds": 2, "pairs_per_fold": 4},
    "stages": [
        {
            "name": "federate",
            "rounds": 4,
            "algorithm": {"name": "fedpe", "training": {"batch_size": 8, "epochs": 1}},
            "layers": [{"name": "carry", "batch_norm": "statistics"}, NOISE],
        }
    ],
}


def conducted(out: Path, **changes: Any) -> tuple[list[str], list[str]]:
    """What was shown of its progress, and what was told."""
    shown: list[str] = []
    told: list[str] = []

    @contextmanager
    def progress(*_: Any) -> Any:
        yield lambda _done, text="": shown.append(text)

    experiment = parse_experiment({**EXPERIMENT, **changes}, "here")
    conduct(experiment, out, Execution(progress=progress, notify=told.append), resume=True)
    return shown, told


def test_epsilon_grows_on_screen_and_in_the_records(tmp_path: Path) -> None:
    shown, told = conducted(tmp_path / "run")
    events = [event for event in read_events(tmp_path / "run") if isinstance(event, PrivacySpent)]
    assert [event.round for event in events] == [1, 2, 3, 4]
    assert [event.epsilon for event in events] == sorted(event.epsilon for event in events)
    assert all(event.complete and not event.secret and event.covers == ("ModelWithoutStatistics",) for event in events)
    assert spent(read_events(tmp_path / "run")) == events[-1:]
    assert f"round 4 of 4, epsilon {events[-1].epsilon:.3g} at delta 1e-05" in shown
    assert told == []
    assert read_run(tmp_path / "run").unfinished == ()


def test_a_stage_ends_before_the_budget_is_exceeded_and_keeps_its_model(tmp_path: Path) -> None:
    conducted(tmp_path / "whole")
    costs = [event.epsilon for event in read_events(tmp_path / "whole") if isinstance(event, PrivacySpent)]
    budget = {"epsilon": (costs[1] + costs[2]) / 2, "delta": 1e-5}
    _, told = conducted(tmp_path / "run", budget=budget)
    assert len(told) == 1
    assert told[0].startswith("stage federate stops after round 2 of 4: the budget is epsilon")
    events = read_events(tmp_path / "run")
    assert [event.round for event in events if isinstance(event, PrivacySpent)] == [1, 2]
    assert [event.text for event in events if isinstance(event, RoundWarning)] == told
    assert read_run(tmp_path / "run").unfinished == ()  # evaluated in full, with a model
    assert (tmp_path / "run" / "models" / "federate.safetensors").exists()
    assert json.loads((tmp_path / "run" / "evaluation" / "federate.json").read_text())["round"] == 2
    conducted(tmp_path / "run", budget=budget)  # resumed, nothing is left to do
    assert [event.round for event in read_events(tmp_path / "run") if isinstance(event, PrivacySpent)] == [1, 2]


def test_without_noise_nothing_is_claimed(tmp_path: Path) -> None:
    (stage,) = EXPERIMENT["stages"]  # type: ignore[misc]
    shown, _ = conducted(tmp_path / "run", stages=[{**stage, "rounds": 1, "layers": []}])
    assert spent(read_events(tmp_path / "run")) == []
    assert not any("epsilon" in text for text in shown)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budget: nothing of epsilon"):
        conducted(tmp_path / "run", budget={"epsilon": 0.01})
    (stage,) = EXPERIMENT["stages"]  # type: ignore[misc]
    with pytest.raises(ConfigError, match="budget: stage federate sends ModelState without noise"):
        conducted(tmp_path / "other", budget={"epsilon": 1.0}, stages=[{**stage, "layers": []}])
    with pytest.raises(ConfigError, match="budget: delta is 2"):
        conducted(tmp_path / "third", budget={"delta": 2.0})
