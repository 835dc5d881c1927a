"""Runs the jobs of all seeds, in this process or in several, and goes on where an earlier attempt stopped."""

import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from personae.core.acceleration import Acceleration
from personae.errors import ConfigError, Diverged, Interrupted, OutOfTime, PersonaeError, QuorumLost
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.experiment.sources import Source
from personae.interrupts import deaf_children
from personae.progress import unheard
from personae.reproduce.estimate import estimate
from personae.reproduce.plan import Job

Ended = Callable[[str, str | None], None]
Outcome = tuple[Job, PersonaeError | None]  # with what went wrong in it


def _unwatched(folder: str, problem: str | None) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Runner:
    """As many runs as there are workers go on at a time, each with one thread; the figures do not depend on how many.

    After `deadline`, by the clock `time.monotonic`, what is running is cut off after its last completed round.
    """

    execution: Execution = field(default_factory=Execution)
    deadline: float | None = None

    def run(self, jobs: Sequence[Job], out: Path, ended: Ended = _unwatched) -> dict[str, PersonaeError]:
        """Run what is not finished yet, below `out`; gives the folders of runs that came to no end, and why.

        `ended` is told the folder of each run that ends here, with what went wrong in it.
        """
        _require_beginnings(jobs)
        finished = {job.folder for job in jobs if is_finished(job, out)}
        left = [job for job in jobs if job.folder not in finished]
        if left:
            done = [job for job in jobs if job.folder in finished]
            self.execution.notify(estimate(left, done, out, self.execution.workers, self.execution.device))
        self._render(left)
        failed: dict[str, PersonaeError] = {}
        with self.execution.progress("experiments", len(left), "runs") as advance:
            for job, problem in self._results(left, finished, out):
                advance(1)
                ended(job.folder, None if problem is None else str(problem))
                if problem is not None:
                    failed[job.folder] = problem
                    self.execution.notify(f"{job.folder}: {problem}")
        return failed

    def _render(self, jobs: Sequence[Job]) -> None:
        """Faces are read or rendered before the runs start, so that no two runs do the same."""
        seen = set()
        for job in jobs:
            data = job.experiment.data
            materials = Materials(job.experiment, replace(self.execution, notify=unheard))
            for name in ("public", "private", "heldout"):
                source: Source | None = getattr(data, name)
                key = (source and source.model_dump_json(), job.experiment.seed, job.experiment.network)
                if key not in seen:
                    seen.add(key)
                    self._require_time()
                    getattr(materials, name)

    def _require_time(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTime("the time is spent")

    def _results(self, jobs: Sequence[Job], finished: set[str], out: Path) -> Iterator[Outcome]:
        """Each job as it ends, with what went wrong in it; a job is begun when what it begins with is there."""
        # A run in this process could not be cut off.
        workers = self.execution.workers
        alone = (workers == 1 or len(jobs) < 2) and self.deadline is None
        crew: Crew = Here() if alone else Processes(min(workers, len(jobs)))
        waiting, failed = list(jobs), dict[str, PersonaeError]()
        try:
            while waiting or crew.busy:
                for job in [job for job in waiting if job.begin in failed]:
                    waiting.remove(job)
                    kind = type(failed[str(job.begin)])
                    failed[job.folder] = kind(f"what it begins with, {job.begin}, came to no end")
                    yield job, failed[job.folder]
                ready = [job for job in waiting if job.begin is None or job.begin in finished]
                self._require_time()
                for job in ready[: crew.free]:
                    waiting.remove(job)
                    crew.start(job, out, self.execution)
                if not crew.busy:
                    continue
                ended = crew.wait(self.deadline)
                if ended is None:
                    continue
                job, problem = ended
                if problem is None:
                    finished.add(job.folder)
                else:
                    failed[job.folder] = problem
                yield job, problem
        finally:
            crew.close()


class Here:
    """One run at a time, in this process."""

    free = 1

    def __init__(self) -> None:
        self._next: tuple[Job, str] | None = None

    @property
    def busy(self) -> bool:
        return self._next is not None

    def start(self, job: Job, out: Path, execution: Execution) -> None:
        self._next = job, _message(job, out, execution)

    def wait(self, deadline: float | None = None) -> Outcome | None:  # noqa: ARG002
        assert self._next is not None
        (job, message), self._next = self._next, None
        return job, _perform(json.loads(message))

    def close(self) -> None:
        """There is nothing to end."""


class Processes:
    """One run at a time in each of several processes. They end with this one, however it ends."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, SpawnProcess] = {}
        self._jobs: dict[Connection, Job] = {}
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with deaf_children():
                process.start()
            theirs.close()
            self._processes[ours] = process

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def free(self) -> int:
        return len(self._processes) - len(self._jobs)

    def start(self, job: Job, out: Path, execution: Execution) -> None:
        connection = next(connection for connection in self._processes if connection not in self._jobs)
        self._jobs[connection] = job
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, as `wait` will find
            connection.send_bytes(_message(job, out, execution).encode())

    def wait(self, deadline: float | None = None) -> Outcome | None:
        """The next job that ends, or None where none does before the deadline."""
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(self._jobs), seconds)
        if not ready:
            return None
        connection = ready[0]
        assert isinstance(connection, Connection)
        job = self._jobs.pop(connection)
        try:
            answer = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            code = self._end(connection)
            raise Interrupted(
                f"{job.folder}: its process ended with code {code}; use fewer workers, and resume"
            ) from None
        if answer is None:
            return job, None
        error = ERRORS[answer["kind"]](answer["line"])
        if isinstance(error, ENDS):
            return job, error
        raise error

    def close(self) -> None:
        for connection in self._processes:
            connection.close()  # a process whose connection is gone ends at once
        for process in self._processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def _end(self, connection: Connection) -> int | None:
        process = self._processes.pop(connection)
        process.join()
        return process.exitcode


Crew = Here | Processes
ENDS = (Diverged, QuorumLost)  # of one run: others go on


def _kinds(kind: type[PersonaeError]) -> Iterator[type[PersonaeError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


ERRORS = {kind.__name__: kind for kind in _kinds(PersonaeError)}


def _message(job: Job, out: Path, execution: Execution) -> str:
    return json.dumps(
        {
            "experiment": job.experiment.model_dump_json(exclude_unset=True),
            "out": str(out / job.folder),
            "begin": None if job.begin is None else str(out / job.begin),
            "records": job.stages > 0,
            "device": execution.device,
            "acceleration": asdict(execution.acceleration),
            "trackers": execution.trackers if job.followed else (),
            "cache": None if execution.cache is None else str(execution.cache),
        }
    )


def _perform(order: dict[str, Any]) -> PersonaeError | None:
    """Do one run, or go on with it; what comes back is why it came to no end."""
    try:
        conduct(
            Experiment.model_validate_json(order["experiment"]),
            Path(order["out"]),
            Execution(
                device=order["device"],
                acceleration=Acceleration(**order["acceleration"]),
                trackers=tuple(order["trackers"]),
                cache=None if order["cache"] is None else Path(order["cache"]),
            ),
            begin=None if order["begin"] is None else Path(order["begin"]),
            records=order["records"],
            resume=True,
        )
    except ENDS as error:
        return error
    return None


def _work(connection: Connection) -> None:
    """A process's life: runs until nobody is left to ask, and not a moment longer."""
    torch.set_num_threads(1)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                orders.put(json.loads(connection.recv_bytes()))
            except (EOFError, OSError):
                os._exit(0)  # a run may be cut off anywhere; its folder must be free for whoever resumes it

    threading.Thread(target=listen, daemon=True).start()
    while True:
        order = orders.get()
        try:
            problem = _perform(order)
        except PersonaeError as error:
            problem = error
        answer = problem and {"kind": type(problem).__name__, "line": str(problem)}
        connection.send_bytes(json.dumps(answer).encode())


def _require_beginnings(jobs: Sequence[Job]) -> None:
    """What a job begins with comes before it, or nobody would ever be ready to begin."""
    known = set[str | None]({None})
    for job in jobs:
        if job.begin not in known:
            raise ConfigError(
                f"{job.folder}: it begins with {job.begin}, which is not among the runs before it; add that run"
            )
        known.add(job.folder)


def is_finished(job: Job, out: Path) -> bool:
    """Whether its last round was completed, in this very experiment."""
    folder = out / job.folder
    if not (folder / "checkpoints" / "finished" / f"{job.experiment.stages[-1].name}.safetensors").is_file():
        return False
    if json.loads((folder / "config.json").read_text()) != json.loads(json.dumps(job.experiment.resolved())):
        raise ConfigError(f"{folder}: this run is of another experiment; choose another folder")
    return True


def below(folder: str, jobs: Sequence[Job]) -> list[Job]:
    """The same jobs in a folder further down."""
    return [
        replace(job, folder=f"{folder}/{job.folder}", begin=None if job.begin is None else f"{folder}/{job.begin}")
        for job in jobs
    ]
