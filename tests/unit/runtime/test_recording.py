"""What the server receives is kept for the audit where that is asked for, and nobody else can read it."""

import stat

import pytest

from attacked import evidence
from personae.algorithms import FedPE
from personae.core.algorithm import ClientInfo
from personae.core.message import Broadcast, Trouble
from personae.core.payload import Count, FailureCode, Scalars
from personae.core.problem import Problem
from personae.core.stage import Stage
from personae.errors import DataError
from personae.runtime.recording import FOLDER, Recording, kept_of, recorded
from personae.runtime.transport import Answer, Request


class Echo:
    """Clients that send back the model they got; the second is in trouble."""

    problems = ""

    def exchange(self, requests):
        for request in requests:
            up = FedPE.types.up(model=request.down.model, samples=Count(1), training=Scalars({"loss": 1.0}))
            message = Trouble(failure=FailureCode(Problem.INTERNAL)) if request.client.index == 1 else up
            yield Answer(request.client, message)

    def settle(self): ...

    def close(self): ...


def test_updates_of_the_wanted_rounds_are_kept(tmp_path):
    model = evidence().model
    clients = [ClientInfo("a/..", 0), ClientInfo("b", 1), ClientInfo("model", 2)]
    stage = Stage(name="train", algorithm=FedPE(), rounds=3)
    transport = Recording(Echo(), tmp_path, (stage,), (1, -1))
    for round_ in (1, 2, 3):
        asked = [Request("train", "train", round_, client, Broadcast(model=model)) for client in clients]
        assert [answer.client for answer in transport.exchange(asked)] == clients
    list(transport.exchange([Request("evaluate", "train", 3, clients[1], Broadcast(model=model))]))

    kept = recorded(tmp_path, "train")
    assert [each.round for each in kept] == [1, 3]
    for each in kept:
        assert each.model(model.layout).model.flat.equal(model.flat)
        assert each.update("a/..", FedPE.types.up, model.layout).model.flat.equal(model.flat)
        assert each.update("b", FedPE.types.up, model.layout) is None
    assert len(kept_of(tmp_path, "a/..")) == len(kept_of(tmp_path, "model")) == 2
    files = [path for path in (tmp_path / FOLDER).rglob("*") if path.is_file()]
    assert len(files) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700

    damaged = kept_of(tmp_path, "model")[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(DataError, match="kept for the audit cannot be read"):
        kept[0].update("model", FedPE.types.up, model.layout)
