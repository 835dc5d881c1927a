"""Worker processes: the same results, and what happens when they die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from personae import interrupts
from personae.core.algorithm import ClientInfo
from personae.core.message import Broadcast, Trouble
from personae.core.payload import FailureCode
from personae.core.problem import Problem
from personae.core.threads import torch_threads
from personae.errors import Interrupted
from personae.runtime import inprocess
from personae.runtime.inprocess import SameProcess, WorkerProcesses, deaf_children, local_transport
from personae.runtime.shelf import Shelf, shelves
from personae.runtime.transport import Answer, Failure, Request
from toys import NAMES, TRAINING, Rehearsal, Troubled, stage_of


def requests(run: Rehearsal, *names: str, round_: int = 1) -> Iterator[Request]:
    model = run.federation.backbone().state()
    kind = run.recipe[0].algorithm.types.down
    for name in names:
        yield Request("train", run.recipe[0].name, round_, ClientInfo(name, NAMES.index(name)), kind(model=model))


def rehearse(folder: Path, *trouble: tuple[str, str]) -> Rehearsal:
    return Rehearsal(folder, (stage_of(Troubled(training=TRAINING, trouble=trouble), quorum=0.25),))


def by_name(answers) -> dict[str, Answer | Failure]:
    return {answer.client.name: answer for answer in answers}


def test_bad_clients_fail_alone_and_cost_no_worker(tmp_path: Path):
    """Exceptions, values that are not finite and messages that cannot be written: nothing of it ends a process."""
    trouble = (("ann", "raises"), ("bob", "nan"), ("eve", "short model"))
    one, two = (rehearse(tmp_path / name, *trouble) for name in ("one", "two"))
    one.run()
    transport = local_transport(two.federation, 2)
    try:
        processes = dict(transport._workers)
        two.run(transport)
        assert transport._workers == processes
        assert all(process.is_alive() for process in processes.values())
    finally:
        transport.close()
    assert torch.equal(one.final(), two.final())
    assert one.files() == two.files()
    assert one.notebook.books["metrics"] == two.notebook.books["metrics"]
    assert one.notebook.books["ledger"] == two.notebook.books["ledger"]
    assert [sorted(event["failed"]) for event in two.notebook.rounds()] == [["ann", "eve"], ["ann", "eve"]]
    assert not any(process.is_alive() for process in processes.values())


def test_several_gpus_share_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The CPU, under two names, stands in for two GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert inprocess.devices_of("cuda") == ("cuda:0", "cuda:1", "cuda:2")
    assert inprocess.devices_of("cpu") == ("cpu",)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert inprocess.devices_of("cuda") == ("cuda",)
    asked: list[str] = []
    monkeypatch.setattr(inprocess, "devices_of", lambda device: asked.append(device) or ("cpu", "cpu:0"))
    one, two = (rehearse(tmp_path / name) for name in ("one", "two"))
    one.run()
    transport = local_transport(two.federation, 1, "cuda")
    try:
        assert [process.name for process in transport._workers.values()] == ["cpu", "cpu:0"]
        two.run(transport)
    finally:
        transport.close()
    assert asked == ["cuda"]
    assert torch.equal(one.final(), two.final())
    assert one.files() == two.files()


def test_a_process_with_several_lanes_does_what_several_processes_do(tmp_path: Path):
    one, two = (rehearse(tmp_path / name) for name in ("one", "two"))
    plain = one.federation.acceleration.without(["folding"])
    one.run(SameProcess(replace(one.federation, acceleration=plain)))
    transport = WorkerProcesses(replace(two.federation, acceleration=plain), 3, lanes=2)
    try:
        assert len(transport._workers) == 3
        assert len(set(transport._workers.values())) == 2
        two.run(transport)
    finally:
        transport.close()
    assert torch.equal(one.final(), two.final())
    assert one.files() == two.files()


@pytest.mark.parametrize("lanes", [1, 2])
def test_lanes_of_one_process_trace_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int):
    """What the others call meanwhile would be traced, too."""
    seen: list[bool] = []
    monkeypatch.setattr(inprocess, "_lane", lambda *given: seen.append(given[2].acceleration.folding))
    connections = [(object(), Shelf(boxes=boxes)) for boxes in shelves(lanes, 0)]
    threads = torch.get_num_threads()
    inprocess._work(connections, rehearse(tmp_path).federation, "cpu")
    torch.set_num_threads(threads)
    assert seen == [lanes == 1] * lanes


@pytest.mark.parametrize("lane", [0, 1], ids=["of the main thread", "of another thread"])
def test_a_lane_that_breaks_ends_its_process(tmp_path: Path, lane: int):
    """Otherwise its client would be waited for as long as another lane of the process lives."""
    transport = WorkerProcesses(rehearse(tmp_path).federation, 2, lanes=2)
    try:
        connection, process = list(transport._workers.items())[lane]
        connection.send_bytes(b"no request")
        process.join(timeout=60)
        assert process.exitcode == 1
    finally:
        transport.close()


def test_the_clients_of_a_process_that_ends_are_asked_again_by_another(tmp_path: Path):
    """Whoever ends it twice has failed, and with two lanes so may whoever was there both times."""
    run = rehearse(tmp_path, ("bob", "dies"))
    transport = WorkerProcesses(run.federation, 6, lanes=2)
    try:
        answers = by_name(transport.exchange(requests(run, *NAMES)))
        assert isinstance(answers["bob"], Failure)
        assert sum(isinstance(answer, Answer) for answer in answers.values()) >= len(NAMES) - 2
        assert len(transport._workers) == 2
    finally:
        transport.close()


def test_a_client_that_ends_two_workers_fails_alone_and_the_last_worker_ends_the_run(tmp_path: Path):
    run = rehearse(tmp_path, ("bob", "dies"))
    notices: list[str] = []
    transport = WorkerProcesses(run.federation, 3, notices.append)
    try:
        answers = by_name(transport.exchange(requests(run, *NAMES)))
        assert sorted(answers) == sorted(NAMES)
        reason = "a worker process ended with code 7, the second one at this client"
        assert answers["bob"] == Failure(ClientInfo("bob", 1), reason)
        assert all(isinstance(answers[name], Answer) for name in ("ann", "eve", "zoe"))
        assert notices == ["a worker process ended with code 7; bob is asked again, workers left: 2"]
        assert len(transport._workers) == 1
        with pytest.raises(Interrupted, match=r"the last worker process ended with code 7; .* resume"):
            list(transport.exchange(requests(run, "bob", round_=2)))
    finally:
        transport.close()


class Deadly(WorkerProcesses):
    """Kills a worker in each round: in the first while it works, in the second before it is asked."""

    def exchange(self, asked: Iterable[Request]) -> Iterator[Answer | Failure]:
        return super().exchange(self.killing(asked))

    def killing(self, asked: Iterable[Request]) -> Iterator[Request]:
        for number, request in enumerate(asked):
            if request.task == "train" and number == 2 - request.round:
                next_to_be_asked = list(self._workers.values())[-1]
                next_to_be_asked.kill()
                next_to_be_asked.join()
            yield request


def test_nothing_is_lost_with_a_worker_that_is_killed(tmp_path: Path):
    one, two = (rehearse(tmp_path / name) for name in ("one", "two"))
    one.run()
    notices: list[str] = []
    transport = Deadly(two.federation, 3, notices.append)
    try:
        two.run(transport)
        assert len(transport._workers) == 1
    finally:
        transport.close()
    assert [line.partition(";")[0] for line in notices] == ["a worker process ended with code -9"] * 2
    assert torch.equal(one.final(), two.final())
    assert one.files() == two.files()
    assert one.notebook.books["metrics"] == two.notebook.books["metrics"]
    assert one.notebook.books["ledger"] == two.notebook.books["ledger"]


class Ended:
    """A process that is over."""

    exitcode = -9

    def join(self, timeout: float | None = None) -> None:
        """It has ended."""

    def is_alive(self) -> bool:
        return False


def test_a_worker_that_dies_in_the_middle_of_its_answer_has_not_answered(tmp_path: Path):
    run = rehearse(tmp_path)
    transport = WorkerProcesses(run.federation, 0)
    pipes = [multiprocessing.Pipe() for _ in range(3)]
    for ours, _ in pipes:
        transport._workers[ours] = Ended()
        transport._shelves[ours] = Shelf(boxes=shelves(1, 0)[0])

    def half_answers() -> None:
        for _, theirs in (pipes[2], pipes[1]):
            theirs.recv_bytes()
            os.write(theirs.fileno(), (1000).to_bytes(4, "big") + b"only so much")
            theirs.close()

    thread = threading.Thread(target=half_answers)
    thread.start()
    (answer,) = transport.exchange(requests(run, "ann"))
    thread.join()
    assert answer == Failure(ClientInfo("ann", 0), "a worker process ended with code -9, the second one at this client")
    transport.close()
    pipes[0][1].close()


def test_one_worker_is_this_very_process(rehearsal: Rehearsal):
    assert isinstance(local_transport(rehearsal.federation, 1), SameProcess)


def test_clients_work_with_one_thread_and_the_server_with_its_own_number(rehearsal: Rehearsal, monkeypatch):
    seen = []
    transport = SameProcess(rehearsal.federation)
    handle = transport._host.handle
    monkeypatch.setattr(
        transport._host, "handle", lambda request: seen.append(torch.get_num_threads()) or handle(request)
    )
    with torch_threads(2):
        for _ in transport.exchange(requests(rehearsal, "ann", "bob")):
            assert torch.get_num_threads() == 2
    assert seen == [1, 1]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("workers", "first"), [(1, ["ann"]), (2, ["ann", "bob", "eve"])])
def test_requests_are_taken_one_by_one_as_workers_get_free(rehearsal: Rehearsal, workers: int, first: list[str]):
    """A worker that has answered gets its next client before anybody looks at the answer."""
    taken = []

    def lazily() -> Iterator[Request]:
        for request in requests(rehearsal, *NAMES):
            taken.append(request.client.name)
            yield request

    transport = local_transport(rehearsal.federation, workers)
    answers = transport.exchange(lazily())
    assert taken == []
    next(answers)
    assert taken == first
    transport.close()


def test_a_broadcast_of_another_kind_is_a_failure(rehearsal: Rehearsal):
    model = rehearsal.federation.backbone().state()
    request = Request("train", "nothing of that name", 1, ClientInfo("ann", 0), Broadcast(model=model))
    (answer,) = SameProcess(rehearsal.federation).exchange([request])
    assert answer == Answer(ClientInfo("ann", 0), Trouble(failure=FailureCode(Problem.INTERNAL)))


def test_processes_that_are_started_never_hear_an_interrupt(monkeypatch: pytest.MonkeyPatch):
    """And the one that comes while they are started is not lost."""
    for name, value in {"at_work": True, "heard": False, "waiting": False}.items():
        monkeypatch.setattr(interrupts._Ear, name, value)
    question = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('deaf')"
    said = []

    def interrupted_while_starting() -> None:
        with deaf_children():
            os.kill(os.getpid(), signal.SIGINT)
            said.append(subprocess.check_output([sys.executable, "-c", question], text=True))

    handler = signal.signal(signal.SIGINT, interrupts._hear)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_while_starting()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert said == ["deaf\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
