"""Several clients in one process: whose is what, and what happens where one of them cannot go on."""

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from personae.algorithms import FedPE
from personae.deployment import join as joining
from personae.deployment.certs import make_certificates
from personae.deployment.connection import Asked, Disconnected
from personae.deployment.desk import Desk, Workshop
from personae.deployment.job import Job
from personae.deployment.join import Member, join_all
from personae.deployment.places import members_in
from personae.errors import ConfigError, DataError
from personae.experiment.execution import Execution
from personae.runtime.host import ClientHost
from personae.runtime.problems import ProblemLog
from toys import TRAINING, Rehearsal, stage_of


def test_each_client_has_its_own_keys_faces_and_home(tmp_path: Path) -> None:
    certs, data = tmp_path / "certs", tmp_path / "dealt"
    with pytest.raises(ConfigError, match="no folder here has the key of a client"):
        members_in(certs, data, tmp_path / "homes")
    make_certificates(certs, (), ["ann", "bob", "eve.1"])
    for place in ("ann", "eve.1"):
        (data / place).mkdir(parents=True)
    with pytest.raises(DataError, match=r"dealt: nothing here is called bob, whose key is in .*certs; take that"):
        members_in(certs, data, tmp_path / "homes")
    (data / "bob.zip").touch()
    assert members_in(certs, data, tmp_path / "homes") == {
        "ann": (certs / "ann", data / "ann", tmp_path / "homes" / "ann"),
        "bob": (certs / "bob", data / "bob.zip", tmp_path / "homes" / "bob"),
        "eve.1": (certs / "eve.1", data / "eve.1", tmp_path / "homes" / "eve.1"),
    }


def test_what_stops_one_client_is_told_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    stopped, ann_works = threading.Event(), threading.Event()

    def join(server: str, member: Member, certs: Path, connections: Any) -> None:
        if certs.name == "bob":
            raise DataError("bob's faces are broken")
        ann_works.set()
        assert stopped.wait(30)
        raise ConfigError("and now ann's plan")

    def say(line: str) -> None:
        heard.append(line)
        if "bob" in line:
            assert ann_works.wait(30)
            stopped.set()

    monkeypatch.setattr(joining, "join", join)
    members = {
        name: (Member(data=tmp_path, home=tmp_path / name, execution=Execution(notify=say)), tmp_path / name)
        for name in ("ann", "bob")
    }
    with pytest.raises(DataError, match="bob's faces"):  # the first that ended
        join_all("here:1", members)
    assert heard == ["bob's faces are broken", "and now ann's plan"]


def test_nothing_of_a_request_is_kept_while_the_next_one_is_waited_for(tmp_path: Path) -> None:
    class Server:
        """Asks once."""

        followed: Any = None

        def enter(self) -> None: ...

        def leave(self) -> None: ...

        def receive(self) -> Asked:
            if self.followed is not None:
                assert self.followed() is None
                raise Disconnected("and no more")
            asked = Asked("1", b"", b"a model")
            self.followed = weakref.ref(asked)
            return asked

        def answer(self, asked: Asked, content: bytes) -> None: ...

    member = Member(data=tmp_path, home=tmp_path)
    unknown, desk = joining._UnknownPlan(member, member.consent()), Echo()
    ended = joining._connect(Server(), desk, member, unknown)  # type: ignore[arg-type]
    assert ended == "the connection ended (and no more)"


class Echo:
    """A desk that works on nothing."""

    def answer(self, told: bytes, frame: bytes) -> bytes:
        return told


def test_clients_of_a_process_work_one_after_the_other_with_one_network(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path / "run", (stage_of(FedPE(training=TRAINING)),))
    workshop, at_work, most = Workshop(), 0, 0
    found = []

    def opened(job: Job) -> ClientHost:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        host = ClientHost(run.federation, backbone=workshop.backbone(job.run, run.federation, "cpu"))
        at_work -= 1
        found.append(host.backbone)
        return host

    desks = [Desk(opened, lambda line: None, ProblemLog(tmp_path / "log"), workshop=workshop) for _ in range(4)]
    told = Job("a", {}).text().encode()
    threads = [threading.Thread(target=desk.open, args=(told,)) for desk in desks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len({id(backbone) for backbone in found}) == 1
    desks[0].open(Job("b", {}).text().encode())
    assert found[-1] is not found[0]
