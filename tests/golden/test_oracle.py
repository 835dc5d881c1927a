"""The oracle: what each client is shown, what it trains against, and that users are told."""

from pathlib import Path

import torch
import torch.nn.functional as F

from personae.algorithms import ALGORITHMS, FedPE, Oracle
from personae.algorithms.oracle import Down, Private, State
from personae.core.algorithm import ClientInfo
from personae.core.backbone import Backbone
from personae.core.payload import ClassEmbeddings
from personae.parts.images import Augmentation, normalise
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.privacy.disclosure import warning
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from toys import NAMES, Rehearsal, Relay, stage_of

SOFTMAX = Margin(kind="softmax")
ONE_STEP = LocalSGD(
    lr=0.1, batch_size=64, iterations=1, weight_decay=0.0, augmentation=Augmentation(flip=False, shift=0, colour=0.0)
)


def test_a_client_is_sent_the_rows_of_all_others_and_not_its_own(backbone: Backbone):
    rows = {name: ClassEmbeddings(torch.full((2, 8), float(place))) for place, name in enumerate(("ann", "bob", "eve"))}
    state = State(model=backbone.state(), class_embeddings=rows)
    down = Oracle().send(state, ClientInfo("bob", 1))
    assert down.others is not None
    assert torch.equal(down.others.vectors, torch.cat([rows["ann"].vectors, rows["eve"].vectors]))
    assert Oracle().send(State(model=backbone.state(), class_embeddings={}), ClientInfo("bob", 1)).others is None


def test_the_first_round_is_that_of_fedpe_and_the_second_is_not(tmp_path: Path):
    """Before the server has seen any class embedding there is nothing to be shown."""
    ends = {}
    for kind in (FedPE, Oracle):
        for rounds in (1, 2):
            stage = stage_of(kind(margin=SOFTMAX, training=ONE_STEP), rounds=rounds, name="train")
            folder = tmp_path / f"{kind.name}-{rounds}"
            ends[kind, rounds] = Rehearsal(folder, (stage,)).run().final("train")
    assert torch.equal(ends[FedPE, 1], ends[Oracle, 1])
    assert not torch.equal(ends[FedPE, 2], ends[Oracle, 2])


def test_rows_of_the_others_are_negatives_that_do_not_move(tmp_path: Path):
    """One step of one client by autograd, on the loss over the classes of everybody."""
    algorithm = Oracle(margin=SOFTMAX, training=ONE_STEP)
    run = Rehearsal(tmp_path, (stage_of(algorithm, rounds=2, name="train"),))
    transport = Relay(SameProcess(run.federation))
    run.run(transport)
    request = next(each for each in transport.requests if each.round == 2 and each.client.name == NAMES[0])
    down: Down = request.down  # type: ignore[assignment]
    assert down.others is not None
    backbone = run.federation.backbone()
    store = PrivateStore.of(tmp_path / "private", NAMES[0])
    before = store.load("train", Private, backbone.layout, before=2)
    after = store.load("train", Private, backbone.layout)
    assert before is not None
    assert after is not None

    faces = run.federation.holdings.of(NAMES[0]).train
    module = backbone.load(down.model)
    module.train()
    batch = torch.arange(len(faces))
    features = module(normalise(faces.images(batch)))
    rows = before.class_embeddings.clone().requires_grad_()
    logits = features.detach() @ torch.cat([rows, down.others.vectors]).T
    (slope,) = torch.autograd.grad(F.cross_entropy(logits, faces.labels), rows)
    assert torch.allclose(after.class_embeddings, before.class_embeddings - 0.1 * slope, atol=1e-5)


def test_users_are_told():
    assert warning(Oracle()) == (
        "oracle shows every client the class embeddings of all others: it is a comparison, not private"
    )
    assert [name for name, kind in ALGORITHMS.items() if kind.shows_others] == ["oracle"]
