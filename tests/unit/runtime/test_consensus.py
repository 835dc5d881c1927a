"""What most updates of a round say of BatchNorm's statistics, and how far one is from it."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from personae.algorithms import FedPE
from personae.attacks import ATTACKS
from personae.attacks.infiltration import Infiltration
from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.message import Message
from personae.core.payload import Count, ModelState, Scalars
from personae.core.quantities import STATISTICS
from personae.runtime.consensus import Consensus
from personae.runtime.firewall import Firewall
from personae.runtime.inprocess import SameProcess
from toys import Crowd, Rehearsal, quickly, stage_of


def update(model: ModelState, **entries: float) -> Message:
    """The model that was sent, with other values for these entries, whose points are written as underscores."""
    flat = model.flat.clone()
    for name, view in model.layout.views(flat).items():
        if (key := name.replace(".", "_")) in entries:
            view.add_(entries[key])
    return FedPE.types.up(model=ModelState(model.layout, flat), samples=Count(1), training=Scalars({"loss": 0.0}))


@pytest.fixture
def sent(backbone: Backbone) -> ModelState:
    state = backbone.state()
    state.layout.views(state.flat)["1.running_var"].fill_(4.0)
    return state


def heard(sent: ModelState, *updates: Message) -> Consensus:
    consensus = Consensus(sent)
    for number, each in enumerate(updates):
        consensus.hear(f"client {number}", each)
    return consensus


def test_a_mean_is_off_by_deviations_and_a_variance_by_its_own_size(sent: ModelState):
    """A channel deviates by 2. One client's means are off by 3, another's variances by 1, and the rest agree."""
    usual = [update(sent)] * 3
    found = heard(sent, *usual, update(sent, **{"1_running_mean": 3.0}), update(sent, **{"1_running_var": -1.0}))
    assert [*found.distances().values()] == pytest.approx([0, 0, 0, 1.5, 0.25], abs=1e-4)


def test_distances_are_from_the_middle_and_not_from_what_was_sent(sent: ModelState):
    """What all put right of it is no distance, or attackers could go farther after every round that they spoil."""
    moved = update(sent, **{"1_running_mean": 50.0})
    consensus = heard(sent, moved, moved, moved, update(sent))
    assert [*consensus.distances().values()] == pytest.approx([0, 0, 0, 25.0], rel=1e-3)
    middle, before = (each.layout.views(each.flat) for each in (consensus.model, sent))
    assert torch.equal(middle["1.running_mean"], before["1.running_mean"] + 50)
    assert torch.equal(middle["0.weight"], before["0.weight"])


def test_a_dead_channel_is_no_unit(sent: ModelState):
    """Its variance is nothing, and any activity at all would be infinitely far from that."""
    sent.layout.views(sent.flat)["1.running_var"][0] = 0.0
    consensus = heard(sent, *[update(sent)] * 4, update(sent, **{"1_running_mean": 0.1}))
    assert 0 < consensus.distances()["client 4"] < 1


def test_updates_without_any_have_no_distances(sent: ModelState):
    assert heard(sent).distances() == {}
    assert heard(sent).model is sent


def measured(*distances: float, samples: float = 10) -> dict[str, dict[str, float]]:
    found = {f"client {number}": {STATISTICS: each, "number of samples": 10.0} for number, each in enumerate(distances)}
    found["client 0"]["number of samples"] = samples
    return found


def left(distances: tuple[float, ...], layout: Layout, samples: float = 10) -> float:
    """Of client 0."""
    model = ModelState(layout, torch.ones(layout.size))
    found = Firewall(credible=math.inf).excess(measured(*distances, samples=samples), model)
    return found.get("client 0", {}).get(STATISTICS, 1.0)


def test_what_is_twice_as_far_as_usual_is_drawn_back_to_that(layout: Layout):
    assert left((1.9, 1, 1, 1, 1), layout) == 1
    assert left((4.0, 1, 1, 1, 1), layout) == pytest.approx(0.5)


def test_who_counts_for_more_may_be_off_by_less(layout: Layout):
    assert left((4.0, 1, 1, 1, 1), layout, samples=20) == pytest.approx(0.5 / 2**0.5)
    assert left((1.1, 1, 1, 1, 1), layout, samples=30) == 1


def test_nobody_moves_statistics_that_all_others_keep(layout: Layout):
    """Clients with one person each keep them: nobody would ever put right what one of them sends."""
    assert left((0.001, 0, 0, 0, 0), layout) == 0
    assert left((0, 0, 0, 0, 0), layout) == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_attackers_do_not_choose_the_statistics_of_a_round(tmp_path: Path, keeps: bool):
    """Neither where clients train them nor where all keep those that they received."""
    algorithm = quickly(FedPE(batch_norm="eval" if keeps else "train"))
    crowd = Crowd(tuple(f"client {number}" for number in range(10)))
    plot = Infiltration(ATTACKS["skewed-statistics"](scale=1000.0), 0.2, 5)

    def means(firewall: Firewall, *, attacked: bool) -> Tensor:
        run = Rehearsal(tmp_path / f"{firewall.enabled} {attacked}", (stage_of(algorithm),), crowd, firewall=firewall)
        inside = SameProcess(plot.federation(run.federation) if attacked else run.federation)
        run.run(plot.transport(inside, run.federation) if attacked else inside)
        layout = run.federation.backbone().layout
        return layout.views(run.final())["1.running_mean"]

    honest = means(Firewall(), attacked=False)
    off = [float((means(Firewall(enabled=on), attacked=True) - honest).abs().max()) for on in (True, False)]
    assert off[0] < 0.02 * off[1]
