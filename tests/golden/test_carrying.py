"""Momentum, control variates and schedules over rounds: two clients and a linear network, worked by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byhand import DECAY, LR, MARGIN, MOMENTUM, SCALE, LinearPlan, Pair, cosface, inputs, training, unit
from personae.algorithms import FedPE
from personae.layers.carry import VARIATE, VELOCITY, Carry
from personae.parts.margins import Margin
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from toys import Rehearsal, Relay, stage_of

ROUNDS, STEPS = 3, 2
MARGINS = Margin(kind="cosface", scale=SCALE, margin=MARGIN)


def rehearse(folder: Path, carry: Carry, **options) -> Rehearsal:
    sgd = training(STEPS)
    algorithm = carry.around(FedPE(margin=MARGINS, training=type(sgd)(**{**vars(sgd), **options})))
    stages = (stage_of(algorithm, rounds=ROUNDS),)
    return Rehearsal(folder, stages, holdings=Pair(), network=LinearPlan(), benchmarks=())


def by_hand(run: Rehearsal, carry: Carry, rates: list[list[float]]):
    """theta, and of each client its momentum and its control variate after all rounds."""
    layout = run.federation.backbone().layout
    theta = layout.views(run.federation.backbone().flat)["1.weight"].double().numpy()
    faces = [run.holdings.of(name).train for name in run.holdings.clients]
    rows, still = [None, None], np.zeros_like(theta)
    speeds, row_speeds, variates, variate, shared = [still, still], [0.0, 0.0], [still, still], still, still
    for round_ in range(ROUNDS):
        ends = []
        for k, mine in enumerate(faces):
            x, labels, y, path = inputs(mine), mine.labels.numpy(), theta, still
            if rows[k] is None:
                rows[k] = unit(np.stack([unit(x @ y.T)[labels == person].sum(0) for person in range(mine.classes)]))
            speed = {"none": still, "client": speeds[k], "server": shared}[carry.momentum]
            row_speed = row_speeds[k] if carry.momentum != "none" else 0.0
            for step in range(STEPS):
                _, slope, row_slope = cosface(x, labels, y, rows[k])
                slope = slope + DECAY * y
                path = path + slope
                if carry.control_variates:
                    slope = slope - variates[k] + variate
                speed = MOMENTUM * speed + slope
                row_speed = MOMENTUM * row_speed + row_slope + DECAY * rows[k]
                y, rows[k] = y - rates[round_][step] * speed, rows[k] - rates[round_][step] * row_speed
            speeds[k], row_speeds[k] = speed, row_speed
            ends.append((len(mine), y, path / STEPS))
        total = sum(count for count, _, _ in ends)
        theta = sum(count * y for count, y, _ in ends) / total
        shared = sum(count * speed for (count, _, _), speed in zip(ends, speeds, strict=True)) / total
        variate = variate + sum(mean - old for (_, _, mean), old in zip(ends, variates, strict=True)) / 2
        variates = [mean for _, _, mean in ends]
    return theta, speeds, variates, variate


CONSTANT = [[LR] * STEPS] * ROUNDS


@pytest.mark.parametrize(
    "carry",
    [
        Carry(momentum="client"),
        Carry(momentum="server"),
        Carry(control_variates=True),
        Carry(momentum="client", control_variates=True),
        Carry(momentum="server", control_variates=True),
    ],
    ids=lambda carry: f"{carry.momentum}-{carry.control_variates}",
)
def test_two_clients_and_three_rounds_by_hand(tmp_path: Path, carry: Carry):
    run = rehearse(tmp_path, carry).run()
    theta, speeds, variates, variate = by_hand(run, carry, CONSTANT)
    layout = run.federation.backbone().layout

    def matrix(flat: torch.Tensor) -> np.ndarray:
        return layout.views(flat)["1.weight"].double().numpy()

    assert np.abs(matrix(run.final()) - theta).max() < 2e-5
    plain, *_ = by_hand(run, Carry(), CONSTANT)
    assert np.abs(plain - theta).max() > 1e-2  # it makes a difference
    state = run.checkpoints.finished("fedpe")
    kind = run.recipe[0].algorithm.types.private
    for k, name in enumerate(run.holdings.clients):
        kept = PrivateStore.of(tmp_path / "private", name).load("fedpe", kind, layout).directions
        if carry.momentum == "client":
            assert np.abs(matrix(kept[VELOCITY]) - speeds[k]).max() < 1e-4
        else:
            assert VELOCITY not in kept
        if carry.control_variates:
            assert np.abs(matrix(kept[VARIATE]) - variates[k]).max() < 1e-4
    if carry.control_variates:
        assert np.abs(matrix(state.control_variate.flat) - variate).max() < 1e-4
        assert np.abs(variate - sum(variates) / 2).max() < 1e-9  # everybody took part in every round


def test_it_is_option_ii_where_steps_are_plain(tmp_path: Path):
    """c_i+ - c_i = (x - y_i) / (K eta) - c, told from the messages alone."""

    class Listening(Relay):
        def tamper(self, answers):
            seen.extend((next(r for r in self.requests[::-1] if r.client == a.client), a.message) for a in answers)
            return answers

    seen: list = []
    run = rehearse(tmp_path, Carry(control_variates=True), momentum=0.0)
    run.run(Listening(SameProcess(run.federation)))
    trained = [(request, up) for request, up in seen if request.task == "train"]
    assert len(trained) == ROUNDS * 2
    for request, up in trained:
        c = request.down.control_variate
        assert (c is None) == (request.round == 1)
        way = (request.down.model.flat - up.model.flat) / (STEPS * LR)
        expected = way - (c.flat if c is not None else 0.0)
        assert torch.allclose(up.control_variate.flat, expected, atol=2e-5)
        assert up.control_variate.flat.abs().max() > 1e-2


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({"schedule": "cosine"}, lambda p: 0.5 + 0.5 * np.cos(np.pi * p)),
        ({"schedule": "linear", "warmup": 0.25}, lambda p: p / 0.25 if p < 0.25 else 1 - (p - 0.25) / 0.75),
        ({"schedule": "step", "milestones": (0.3, 0.5), "decay": 0.25}, lambda p: 0.25 ** ((p >= 0.3) + (p >= 0.5))),
        ({"schedule": "constant", "warmup": 0.9}, lambda p: p / 0.9 if p < 0.9 else 1.0),
    ],
)
@pytest.mark.parametrize("span", ["stage", "round"])
def test_a_schedule_over_rounds_by_hand(tmp_path: Path, options, rate, span):
    run = rehearse(tmp_path, Carry(), span=span, **options).run()

    def progress(round_: int, step: int) -> float:
        return (round_ * STEPS + step) / (ROUNDS * STEPS) if span == "stage" else step / STEPS

    rates = [[LR * rate(progress(round_, step)) for step in range(STEPS)] for round_ in range(ROUNDS)]
    theta, *_ = by_hand(run, Carry(), rates)
    found = run.federation.backbone().layout.views(run.final())["1.weight"].double().numpy()
    assert np.abs(found - theta).max() < 2e-5
    assert np.abs(by_hand(run, Carry(), CONSTANT)[0] - theta).max() > 1e-3


def test_one_client_that_carries_its_momentum_trains_without_a_trace_of_rounds(tmp_path: Path):
    """Three rounds of two steps end where one round of six does."""

    def end(name: str, rounds: int, steps: int) -> torch.Tensor:
        run = rehearse(tmp_path / name, Carry(momentum="client"), iterations=steps, span="stage", schedule="cosine")
        run.recipe = (stage_of(run.recipe[0].algorithm, rounds=rounds),)
        run.holdings = Pair(clients=("ann",))
        return run.run().final()

    whole, cut = end("whole", 1, 6), end("cut", 3, 2)
    assert torch.allclose(whole, cut, atol=1e-6)  # rates differ in the last bit of (i + s/n)/m
