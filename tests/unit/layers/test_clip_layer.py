"""The layer `clip`: what leaves a client is no longer than a bound."""

from pathlib import Path
from typing import Any

import pytest
import torch

from personae.algorithms import Adapt, Cluster, FedPE
from personae.core.layer import layered
from personae.core.payload import Gradient, ModelWithoutBatchNorm, NetworkVector
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.layers import Carry, Clip
from personae.runtime.inprocess import SameProcess
from toys import Rehearsal, Relay, Troubled, quickly, stage_of

SHORT = 0.01


class Listening(Relay):
    """Notes what clients received and sent."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sent: dict[tuple[int, str], Any] = {}

    def tamper(self, answers: Any) -> Any:
        for answer in answers:
            request = next(each for each in reversed(self.requests) if each.client == answer.client)
            if request.task == "train":
                self.sent[request.round, answer.client.name] = request.down, answer.message
        return answers


def heard(folder: Path, *layers: Any, rounds: int = 2) -> tuple[Rehearsal, dict[tuple[int, str], Any]]:
    run = Rehearsal(folder, (stage_of(layered(quickly(FedPE()), *layers), rounds=rounds),))
    transport = Listening(SameProcess(run.federation))
    return run.run(transport), transport.sent


def test_an_update_is_shortened_and_keeps_its_direction(tmp_path: Path) -> None:
    _, plain = heard(tmp_path / "plain", rounds=1)
    run, clipped = heard(tmp_path / "clipped", Clip(norm=SHORT), rounds=1)
    for place, (down, up) in clipped.items():
        begin = down.model.flat.double()
        way, full = up.model.flat.double() - begin, plain[place][1].model.flat.double() - begin
        assert float(full.norm()) > 10 * SHORT
        assert float(way.norm()) == pytest.approx(SHORT, rel=1e-3)
        assert float(torch.dot(way, full) / way.norm() / full.norm()) == pytest.approx(1, abs=1e-4)
        assert up.training.values == {**plain[place][1].training.values, "clipped": 1.0}
    assert run.notebook.rounds()[0]["scalars"]["clipped"] == 1.0


def test_the_share_of_clients_that_clipped_is_told(tmp_path: Path) -> None:
    _, plain = heard(tmp_path / "plain", rounds=1)
    lengths = sorted(float((up.model.flat - down.model.flat).norm()) for down, up in plain.values())
    between = (lengths[2] + lengths[3]) / 2
    run, sent = heard(tmp_path / "one", Clip(norm=between), rounds=1)
    assert run.notebook.rounds()[0]["scalars"]["clipped"] == 0.25
    same = [torch.equal(up.model.flat, plain[place][1].model.flat) for place, (_, up) in sent.items()]
    assert sorted(same) == [False, True, True, True]


def test_a_bound_that_nobody_reaches_changes_nothing_but_the_figure(tmp_path: Path) -> None:
    plain, _ = heard(tmp_path / "plain")
    run, _ = heard(tmp_path / "run", Clip(norm=1e6))
    assert torch.equal(run.final(), plain.final())
    assert [event["scalars"].pop("clipped") for event in run.notebook.rounds()] == [0.0, 0.0]
    assert run.notebook.rounds() == plain.notebook.rounds()


def test_gradients_and_parts_of_a_model_are_shortened_too(tmp_path: Path) -> None:
    carry = Carry(control_variates=True, momentum="server", batch_norm="all")
    _, sent = heard(tmp_path, carry, Clip(norm=SHORT))
    assert len(sent) == 8
    for down, up in sent.values():
        vectors = {name: getattr(up, name) for name in up.hints() if isinstance(getattr(up, name), NetworkVector)}
        assert {name: type(vector) for name, vector in vectors.items()} == {
            "model": ModelWithoutBatchNorm,
            "control_variate": Gradient,
            "momentum": Gradient,
        }
        way = up.model.flat - down.model.entries(up.model.layout)
        for vector in (way, up.control_variate.flat, up.momentum.flat):
            assert float(vector.norm()) == pytest.approx(SHORT, rel=1e-3)


def test_inside_another_layer_it_sees_what_the_algorithm_sends(tmp_path: Path) -> None:
    """Clipped first, a client's model is the clipped one; the control variate that comes after is not."""
    _, sent = heard(tmp_path, Clip(norm=SHORT), Carry(control_variates=True), rounds=1)
    for down, up in sent.values():
        assert float((up.model.flat - down.model.flat).norm()) == pytest.approx(SHORT, rel=1e-3)
        assert float(up.control_variate.flat.norm()) > 10 * SHORT


def test_values_that_are_not_finite_are_left_to_the_firewall(tmp_path: Path) -> None:
    stage = stage_of(layered(quickly(Troubled(trouble=(("bob", "nan"), ("eve", "huge")))), Clip(norm=SHORT)))
    run = Rehearsal(tmp_path, (stage,)).run()
    assert run.notebook.rounds()[0]["rejected"].keys() == {"bob", "eve"}


@pytest.mark.parametrize("algorithm", [Adapt(), Cluster()], ids=lambda algorithm: algorithm.name)
def test_where_nothing_is_sent_that_could_be_clipped_it_is_refused(algorithm: Any) -> None:
    with pytest.raises(ValueError, match=f"clients of {algorithm.name} send neither a model nor a gradient"):
        Clip(norm=1.0).around(algorithm)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"name": "clip"}, r"stages\.a\.layers\.clip\.norm: this is missing"),
        ({"name": "clip", "norm": 0}, r"stages\.a\.layers\.clip: norm is 0\.0, it must be positive"),
        ({"name": "clip", "nrom": 1.0}, r"stages\.a\.layers\.clip\.nrom: there is no such key; did you mean norm"),
    ],
)
def test_mistakes_in_a_file_get_one_clear_line(layer: dict[str, Any], words: str) -> None:
    raw = {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"by": "equal", "clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedpe"}, "layers": [layer]}],
    }
    with pytest.raises(ConfigError, match=words) as caught:
        parse_experiment(raw, "x.toml")
    assert "\n" not in str(caught.value)
