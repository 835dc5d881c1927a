"""What a client keeps of runs over a network."""

import os
from pathlib import Path

import pytest
import torch

from personae.algorithms.fedpe import Down
from personae.core.algorithm import ClientInfo
from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.errors import DataError
from personae.experiment.home import OwnRun
from personae.runtime.transport import EVALUATE, TRAIN, Request

STAGES = [{"name": name, "algorithm": {"name": "fedpe"}, "rounds": 3} for name in ("first", "second")]


def own_run(folder: Path, *stages: dict) -> OwnRun:
    return OwnRun(
        folder=folder,
        told={"name": "x", "stages": list(stages)},
        data="faces",
        unlabelled=False,
        handling={},
        faces="",
        public=None,
        begun="",
        environment={},
    )


def asked(own: OwnRun, task: str, round_: int, value: float) -> Request:
    """With a model that has this value everywhere."""
    layout = Layout.of(own.experiment.network.layout())
    model = ModelState(layout, torch.full((layout.size,), value))
    return Request(task, "first", round_, ClientInfo("ann", 0, False), Down(model=model))


def kept(own: OwnRun) -> tuple[int, float]:
    """After which round the model is that is here, and its value."""
    last = own.last_request("first")
    assert isinstance(last.down, Down)
    return last.round, float(last.down.model.flat.unique())


def test_a_run_makes_its_stages_once(tmp_path: Path):
    """Every request asks for its stage, and to check an experiment takes longer than to read a model."""
    own = own_run(tmp_path, *STAGES)
    assert own.stage("second") is own.stage("second")
    assert [stage.name for stage in own.recipe] == ["first", "second"]


def test_only_the_last_model_of_a_stage_is_waited_for_until_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own, synced = own_run(tmp_path, *STAGES), list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    for task, round_ in ((TRAIN, 1), (TRAIN, 3), (EVALUATE, 2)):
        own.receive(asked(own, task, round_, 1.0))
        assert not synced
    own.receive(asked(own, EVALUATE, 3, 7.0))
    assert len(synced) == 2  # the file and its folder
    assert kept(own) == (3, 7.0)


@pytest.mark.parametrize("average", ["none", "exponential"])
def test_a_model_that_the_machine_damaged_is_replaced_by_the_next_one(tmp_path: Path, average: str):
    own = own_run(tmp_path, {**STAGES[0], "server": {"average": average}})
    own.receive(asked(own, EVALUATE, 1, 1.0))
    (file,) = tmp_path.glob("received-*")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="this model is damaged"):
        own.last_request("first")
    own.receive(asked(own, TRAIN, 2, 2.0))
    assert kept(own) == (1, 2.0)


def test_with_a_mean_over_rounds_what_is_sent_to_train_does_not_count(tmp_path: Path):
    own = own_run(tmp_path, {**STAGES[0], "server": {"average": "exponential"}})
    own.receive(asked(own, EVALUATE, 1, 1.0))
    own.receive(asked(own, TRAIN, 2, 2.0))
    assert kept(own) == (1, 1.0)
