"""What leaves, what waits, and that nothing is lost between the two."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from personae.algorithms import FedPE
from personae.core.algorithm import Session
from personae.core.layer import layered
from personae.core.wire import encode
from personae.layers import Clip, LocalNoise, TopK
from personae.runtime.coding import CODINGS
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Answer
from toys import NAMES, TRAINING, Rehearsal, stage_of


class Watching(SameProcess):
    """Keeps what was asked and answered in training."""

    def __init__(self, federation):
        super().__init__(federation)
        self.seen = []

    def exchange(self, requests):
        for request in requests:
            for answer in super().exchange([request]):
                assert isinstance(answer, Answer)
                if request.task == "train":
                    self.seen.append((request, answer.message))
                yield answer


def rehearsal(folder: Path, *layers, rounds: int = 2) -> Rehearsal:
    return Rehearsal(folder, (stage_of(layered(FedPE(training=TRAINING), *layers), rounds=rounds),))


def test_sent_and_unsent_together_are_what_was_trained(tmp_path: Path) -> None:
    """The first round, computed again from the same run without the layer; the second from what was kept."""
    share = 0.05
    plain, sparse = rehearsal(tmp_path / "plain"), rehearsal(tmp_path / "sparse", TopK(share=share))
    watched = {name: Watching(run.federation) for name, run in (("plain", plain), ("sparse", sparse))}
    plain.run(watched["plain"])
    sparse.run(watched["sparse"])
    layout = plain.federation.backbone().layout
    weights = layout.trainable_size
    count = round(share * weights)
    assert 0 < count < weights
    for (asked, whole), (_, part) in list(zip(watched["plain"].seen, watched["sparse"].seen, strict=True))[
        : len(NAMES)
    ]:
        begin = asked.down.model.flat
        change = whole.model.flat[:weights] - begin[:weights]
        order = change.abs().argsort(descending=True)[:count]
        moved = (part.model.flat[:weights] != begin[:weights]).nonzero().flatten()
        assert set(moved.tolist()) <= set(order.tolist())
        assert torch.allclose(part.model.flat[order], whole.model.flat[order], atol=1e-6)
        assert torch.equal(part.model.flat[weights:], whole.model.flat[weights:])  # statistics leave whole
        store = PrivateStore.of(sparse.federation.private, asked.client.name)
        kind = sparse.recipe[0].algorithm.types.private
        kept = store.load(sparse.recipe[0].name, kind, layout, before=2)
        assert kept is not None
        expected = change.clone()
        expected[order] = 0
        assert torch.equal(kept.unsent, expected)


class Idle(FedPE):
    """Trains nothing new."""

    def local(self, down, private, client):
        up, kept = super().local(down, private, client)
        return replace(up, model=down.model), kept


def test_what_waits_is_sent_when_its_turn_comes(tmp_path: Path) -> None:
    stage = stage_of(layered(Idle(training=TRAINING), TopK(share=0.05)), rounds=1)
    run = Rehearsal(tmp_path, (stage,))
    watched = Watching(run.federation)
    run.run(watched)
    request, _ = watched.seen[0]
    client = ClientHost(run.federation)._client(request, run.recipe[0], Session())
    _, kept = stage.algorithm.local(request.down, None, client)
    assert not kept.unsent.any()
    waiting = torch.zeros_like(kept.unsent)
    waiting[7] = 3.0
    up, after = stage.algorithm.local(request.down, replace(kept, unsent=waiting), client)
    assert up.model.flat[7] == request.down.model.flat[7] + 3.0
    assert (up.model.flat != request.down.model.flat).sum() == 1
    assert not after.unsent.any()


def test_the_coding_changed_sends_the_share_and_loses_nothing(tmp_path: Path) -> None:
    run = rehearsal(tmp_path, TopK(share=0.05))
    watched = Watching(run.federation)
    run.run(watched)
    coding = CODINGS["changed"]
    for request, up in watched.seen:
        packet, base = encode(up), encode(request.down)
        coded = coding.answer(packet, base)
        back = coding.restored(coded, base)
        assert all(torch.equal(back.arrays[name], array) for name, array in packet.arrays.items())
        assert coding.bytes(up, request.down)["ModelState"] < 0.6 * up.model.bytes


def test_it_stands_before_whatever_bounds_an_update() -> None:
    for bound in (Clip(norm=1.0), LocalNoise(norm=1.0, multiplier=10.0)):
        layered(FedPE(), TopK(), bound)
        with pytest.raises(ValueError, match=f"of what {bound.name} bounds: name top-k before it"):
            layered(FedPE(), bound, TopK())
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
            TopK(share=share)
