"""What is said before a run begins."""

import pytest

from personae.commands.options import announce
from personae.experiment.config import load_experiment


@pytest.mark.parametrize("recipe", ["deploy/offices", "faces/one-identity"])
def test_settings_that_can_spoil_given_weights_are_named_before_the_run(recipe, capsys):
    last = load_experiment(recipe).stages[-1].name
    announce(load_experiment(recipe, ["weights=faces.pth", f"stages.{last}.algorithm.training.lr=0.02"]))
    said = capsys.readouterr().err
    assert f"stage {last}: training.lr = 0.02 (not 0.001)" in said
    assert "can make the given weights worse" in said


def test_the_example_of_a_deployment_keeps_what_its_weights_know(capsys):
    announce(load_experiment("deploy/offices", ["weights=faces.pth"]))
    assert not capsys.readouterr().err


def test_without_weights_no_rate_is_remarked_upon(capsys):
    announce(load_experiment("deploy/offices", ["stages.shared.algorithm.training.lr=0.02"]))
    assert not capsys.readouterr().err
