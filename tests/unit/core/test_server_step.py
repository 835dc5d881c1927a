"""Steps of the server against recursions that are written out, and through the engine."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from personae.algorithms.central import Central
from personae.algorithms.fedpe import FedPE
from personae.core.layout import Layout
from personae.core.message import ServerState
from personae.core.payload import ModelState
from personae.core.server_step import ServerStep
from personae.core.stage import Stage
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from toys import Rehearsal, cut_off, quickly, stage_of

LAYOUT = Layout(("weight", "statistic"), ((2,), (1,)), 1)


@dataclass(frozen=True, kw_only=True)
class State(ServerState):
    """The model alone."""


def state(*values: float) -> State:
    return State(model=ModelState(LAYOUT, torch.tensor(values)))


def walk(step: ServerStep, *ways: tuple[float, float]) -> list[float]:
    """The first weight after each round, where clients move the two weights by these ways."""
    now, found = state(1.0, -1.0, 0.0), []
    for number, way in enumerate(ways, 1):
        merged = replace(now, model=ModelState(LAYOUT, now.model.flat + torch.tensor([*way, 5.0])), memory={})
        now = step.applied(now, merged, number, len(ways))
        assert now.model.flat[2] == 5.0 * number  # statistics follow the clients, whatever the step
        found.append(float(now.model.flat[0]))
    return found


def test_plain_averaging_takes_the_merged_state_as_it_is():
    merged = state(3.0, 4.0, 5.0)
    assert ServerStep().applied(state(0.0, 0.0, 0.0), merged, 1, 1) is merged
    assert ServerStep().evaluated(merged) is merged


def test_half_a_step():
    assert walk(ServerStep(lr=0.5), (2.0, 0.0), (-1.0, 0.0)) == pytest.approx([2.0, 1.5])


def test_momentum():
    # v: 2, 0.5 * 2 - 1 = 0, 0 + 3 = 3
    step = ServerStep(kind="momentum", momentum=0.5, lr=0.1)
    assert walk(step, (2.0, 0.0), (-1.0, 0.0), (3.0, 0.0)) == pytest.approx([1.2, 1.2, 1.5])


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_steps(kind: str):
    beta1, beta2, floor, rate = 0.9, 0.99, 0.01, 0.1
    first = second = 0.0
    place, wanted = 1.0, []
    for way in (2.0, -1.0, 0.5):
        first = beta1 * first + (1 - beta1) * way
        square = way * way
        if kind == "adam":
            second = beta2 * second + (1 - beta2) * square
        else:
            sign = (second > square) - (second < square)
            second = second - (1 - beta2) * square * sign
        place += rate * first / (second**0.5 + floor)
        wanted.append(place)
    step = ServerStep(kind=kind, momentum=beta1, second=beta2, floor=floor, lr=rate)
    assert walk(step, (2.0, 1.0), (-1.0, 1.0), (0.5, 1.0)) == pytest.approx(wanted, rel=1e-5)


def evaluated(step: ServerStep, *models: float) -> list[list[float]]:
    """What counts after each round, where the rounds end with models whose three entries are this number."""
    now, found = state(0.0, 0.0, 0.0), []
    for number, model in enumerate(models, 1):
        now = step.applied(now, state(model, model, model), number, len(models))
        assert now.model.flat.tolist() == [model] * 3  # training goes on from here
        found.append(step.evaluated(now).model.flat.tolist())
    return found


def test_the_mean_over_the_tail():
    found = evaluated(ServerStep(average="tail", tail=0.4), 9.0, 8.0, 7.0, 1.0, 4.0)
    assert found == [[9.0] * 3, [8.0] * 3, [7.0] * 3, [1.0] * 3, [2.5] * 3]
    assert evaluated(ServerStep(average="tail", tail=0.01), 9.0, 8.0)[-1] == [8.0] * 3
    assert evaluated(ServerStep(average="tail", tail=1.0), 9.0, 8.0, 1.0)[-1] == [6.0] * 3


def test_the_mean_whose_weights_fall():
    models, decay = (9.0, 8.0, 1.0, 4.0), 0.5
    wanted = []
    for end in range(1, 5):
        weights = [decay ** (end - 1 - place) for place in range(end)]
        wanted.append(sum(w * m for w, m in zip(weights, models, strict=False)) / sum(weights))
    found = evaluated(ServerStep(average="exponential", decay=decay), *models)
    assert [each[0] for each in found] == pytest.approx(wanted, rel=1e-6)


def test_what_counts_is_evaluated_and_goes_to_the_next_stage(tmp_path: Path):
    """The mean of the models after the last two of three rounds, which a run of each length ends with."""
    ends = [rehearse(tmp_path / str(rounds), ServerStep(), rounds).run().final() for rounds in (2, 3)]
    averaged = rehearse(tmp_path / "tail", ServerStep(average="tail", tail=0.6)).run()
    assert torch.allclose(averaged.final(), torch.stack(ends).mean(dim=0), atol=1e-6)
    assert not torch.equal(averaged.final(), ends[-1])
    (model,) = averaged.notebook.models.values()
    layout = averaged.federation.backbone().layout
    assert torch.equal(layout.flatten({name: model[name] for name in layout.names}), averaged.final())
    assert averaged.checkpoints.finished("fedpe").memory == {}


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0},
        {"lr": float("inf")},
        {"momentum": 1.0},
        {"second": -1},
        {"floor": 0},
        {"decay": 1.0},
        {"tail": 0.0},
        {"tail": 1.5},
    ],
)
def test_impossible_steps_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        ServerStep(**options)


def rehearse(folder: Path, step: ServerStep, rounds: int = 3) -> Rehearsal:
    return Rehearsal(folder, (replace(stage_of(quickly(FedPE()), rounds=rounds), server=step),))


def test_the_engine_goes_half_the_way(tmp_path: Path):
    whole = rehearse(tmp_path / "whole", ServerStep(), 1).run()
    half = rehearse(tmp_path / "half", ServerStep(lr=0.5), 1).run()
    backbone = whole.federation.backbone()
    weights = slice(backbone.layout.trainable_size)
    begin = backbone.flat[weights]
    assert torch.allclose(half.final()[weights], (begin + whole.final()[weights]) / 2, atol=1e-6)
    assert torch.equal(half.final()[weights.stop :], whole.final()[weights.stop :])


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("average", ["none", "exponential", "tail"])
def test_a_resumed_run_remembers(tmp_path: Path, kind: str, average: str):
    step = ServerStep(kind=kind, lr=0.1, average=average, **({"tail": 0.7} if average == "tail" else {}))
    whole = rehearse(tmp_path / "whole", step).run()
    again = cut_off(rehearse(tmp_path / "cut", step), after=2).run()
    assert torch.equal(whole.final(), again.final())


def test_a_stage_of_the_server_alone_has_no_steps():
    with pytest.raises(ConfigError, match="server steps go with federated stages; central is none"):
        Stage(name="alone", algorithm=Central(), rounds=1, server=ServerStep(lr=0.5))


def test_an_experiment_file_says_how(tmp_path: Path):
    raw = {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"by": "equal", "clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedpe"}, "server": {"kind": "adam", "lr": 0.01}}],
    }
    stage = parse_experiment(raw, "x.toml").recipe[0]
    assert stage.server == ServerStep(kind="adam", lr=0.01)
    raw["stages"][0]["server"]["lrr"] = 1
    with pytest.raises(ConfigError, match="lrr"):
        parse_experiment(raw, "x.toml")
