"""The server of a run over a network: a SuperLink behind a gate, supervised until the run is done."""

import json
import math
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from filelock import Timeout

from personae.core.acceleration import Acceleration
from personae.core.events import RoundTime, TrainingRound, entries, events
from personae.core.stage import Recipe
from personae.deployment.app import write_app
from personae.deployment.bells import ANSWERED, ASKED
from personae.deployment.certs import enrolled, needed, private_key, require_secret
from personae.deployment.consent import digest_of
from personae.deployment.gate import Gate
from personae.deployment.plan import NOTICES, OUTCOME, PLAN, POST, SERVING, WORKING, Conditions, Plan, outcome
from personae.deployment.processes import end_leftovers, environment, free_port, program, start, stop
from personae.errors import ConfigError, DataError, Diverged, Interrupted, PersonaeError, QuorumLost
from personae.experiment.config import Experiment, still_without
from personae.experiment.forgotten import absent, forgotten_in
from personae.experiment.rundir import RunDirectory
from personae.experiment.rundir import environment as surroundings
from personae.experiment.section import SYNTHETIC
from personae.experiment.taken import has_begun
from personae.files import hold, lock, private_folder, write_text
from personae.progress import unheard
from personae.report.watching import Standing, place, time_left
from personae.runtime.enrolment import enrol
from personae.runtime.excluded import Exclusions, require_clients
from personae.runtime.memory import give_back_freed_memory
from personae.runtime.post import Post

LEFT_BEHIND = {  # in a run's folder, besides what every run has there
    *(PLAN, NOTICES, OUTCOME, WORKING, SERVING),
    *("app", "flower", "flower.log", "traffic.json", ASKED, ANSWERED, POST),
}
STARTING = 120.0  # seconds for a program of Flower's to be there
ATTEMPTS = 5  # restarts without a completed round in between
LOOK = 0.5  # seconds between two looks at a run
TIMES, METRICS = "timing.jsonl", "metrics.jsonl"

Notify = Callable[[str], None]


def prepare(
    experiment: Experiment,
    out: Path,
    clients: Sequence[str],
    conditions: Conditions,
    *,
    resume: bool,
    exclude: Collection[str] = (),
    include: Collection[str] = (),
    notify: Notify = unheard,
) -> None:
    """The folder of the run with its Flower app: new, or with `resume` as it was left.

    A run that has not completed a round makes room for another experiment, as everywhere. Clients to `exclude` are put
    out of it, and those to `include` are let in again.
    """
    if experiment.audit.rounds or experiment.audit.attacks:
        raise ConfigError(
            "[audit] is for personae run: over a network nobody has the faces that an audit needs, and no client has "
            "agreed that their updates are kept; leave it out"
        )
    if resume:
        experiment = still_without(experiment, out)
    gone = absent(experiment.forgotten)
    config = experiment.resolved()
    where = {**surroundings(conditions.device, 0, Acceleration()), "transport": "flower"}
    left = Plan.read(out) if resume and Plan.is_in(out) else None
    if left is not None and (has_begun(out) or left.job.parsed().resolved() == config):
        with closing(RunDirectory.reopen(out, config)) as run:
            run.compare_versions(where, notify)
        plan = left.resumed(clients, conditions, Exclusions.of(out).names() - {*include} | {*exclude} | gone)
    else:
        plan = Plan.new(experiment, clients, conditions)
        require_clients((*exclude, *include), clients)
        RunDirectory.create(out, config, experiment.recipe, where, also=LEFT_BEHIND).close()
    Exclusions.of(out).decide(exclude=exclude, include=include, clients=plan.clients)
    plan.write(out)
    write_app(out / "app", out.absolute())


def serve(
    experiment: Experiment,
    out: Path,
    certs: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 9093,
    conditions: Conditions | None = None,
    resume: bool = False,
    exclude: Collection[str] = (),
    include: Collection[str] = (),
    superlink: "Elsewhere | None" = None,
    notify: Notify = unheard,
) -> None:
    """Run the experiment over whichever clients connect, and come back when it is done.

    A `superlink` is one that somebody else runs. By default there is one for this run alone.
    """
    program("flower-superlink")
    require_secret(needed(certs, "ca.crt", "server.crt", "server.key")[2])
    keys, conditions = enrolled(certs), conditions or Conditions()
    give_back_freed_memory()
    with _alone(out):
        if not resume and Plan.is_in(out) and not has_begun(out):
            notify(f"{out}: the run that was begun here completed no round; a new one takes its place")
        prepare(
            experiment,
            out,
            list(keys),
            conditions,
            resume=resume,
            exclude=exclude,
            include=include,
            notify=notify,
        )
        excluded = Exclusions.of(out).names() | absent(forgotten_in(out))
        keys = {name: path for name, path in keys.items() if name not in excluded}
        _tell(experiment, notify)
        job = Plan.read(out).job
        notify(f"clients are asked to accept the plan {digest_of(job)}")
        with Gate(host, port, certs, keys, conditions.max_bytes, Post(out / POST), notify, plan=job.text()) as gate:
            notify(f"waiting at {host}:{port} for {', '.join(keys)}")
            try:
                follower = _Follower(out, experiment.recipe, notify)
                if superlink is None:
                    ended = _until_done(out, certs, gate, follower)
                else:
                    ended = superlink.until_done(out, gate, follower)
            finally:
                end_leftovers(out / "flower")
                traffic = {name: {"down": each.down, "up": each.up} for name, each in gate.traffic.items()}
                write_text(out / "traffic.json", json.dumps(traffic, indent=1) + "\n")
    if ended["code"]:
        raise _ERRORS.get(ended["code"], PersonaeError)(ended["error"])


def _tell(experiment: Experiment, notify: Notify) -> None:
    """What is otherwise than in one place."""
    if experiment.evaluation.personalized is not None:
        notify("evaluation.personalized is left out: it takes everybody's test faces in one place")
    if experiment.data.public is not None and experiment.data.public.source != SYNTHETIC:
        needing = [
            stage.name for stage in experiment.recipe if stage.algorithm.federated and stage.algorithm.needs_public
        ]
        if needing:
            notify(f"every client needs its own copy of the public faces in {', '.join(needing)}: join with --public")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """No other server is at work in this folder, and what a killed one has left running there is ended.

    A ServerApp lives on without its SuperLink until its clients' deadline, and holds the run for so long.
    """
    out.mkdir(parents=True, exist_ok=True)
    taken = f"{out}: another server is at work in this run; stop it, or choose another folder"
    held = hold(out / SERVING, taken)
    try:
        end_leftovers(out / "flower")
        yield
    finally:
        with suppress(OSError):
            if list(out.iterdir()) == [out / SERVING]:  # nothing came of it
                (out / SERVING).unlink()
                out.rmdir()
        held.release()


_ERRORS = {kind.exit_code: kind for kind in (ConfigError, DataError, Diverged, Interrupted, QuorumLost)}


def _until_done(out: Path, certs: Path, gate: Gate, follower: "_Follower") -> dict[str, Any]:
    """One Flower run after the other, each from the last checkpoint, until one says how the experiment ended."""
    failed = 0
    while failed < ATTEMPTS:
        rounds = follower.rounds
        _wait_until_free(out)
        (out / OUTCOME).unlink(missing_ok=True)
        key = generate_private_key(SECP256R1())  # the gate's own, known to this SuperLink alone
        with _superlink(out, certs) as link:
            enrol(link.address, link.authority, "gate", key.public_key())
            with gate.at(link.address, link.authority, key, out):
                link.submit(out / "app")
                ended = follower.follow(link.is_alive, STARTING)
        if ended is not None:
            return ended
        end_leftovers(out / "flower")
        failed = failed + 1 if follower.rounds == rounds else 0
        follower.notify("the server's part of the run ended before its time; it goes on from the last completed round")
    raise Interrupted(f"the server's part of the run ended {ATTEMPTS} times without a round; see {out / 'flower.log'}")


@dataclass(frozen=True)
class Elsewhere:
    """A SuperLink that somebody else runs: they let the gate in, and start the run with `flwr run`."""

    address: str  # HOST:PORT
    certs: Path  # a folder with the gate's `key`, and `ca.crt` of whoever has certified that SuperLink

    def until_done(self, out: Path, gate: Gate, follower: "_Follower") -> dict[str, Any]:
        authority, key = needed(self.certs, "ca.crt", "key")
        while True:
            _wait_until_free(out)
            (out / OUTCOME).unlink(missing_ok=True)
            with gate.at(self.address, authority, private_key(key), out):
                follower.notify(f"the gate is connected to {self.address}; flwr run {out / 'app'} starts the run there")
                ended = follower.follow(lambda: True, math.inf)
            if ended is not None:
                return ended
            follower.notify("the server's part of the run ended before its time; flwr run continues it")


@dataclass(frozen=True)
class _Link:
    """A SuperLink on this machine."""

    child: subprocess.Popen[bytes]
    port: int
    authority: Path
    home: Path
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def submit(self, app: Path) -> None:
        self._tell("run", str(app.absolute()), "personae")

    def is_alive(self) -> bool:
        return self.child.poll() is None

    def _tell(self, *words: str) -> None:
        done = subprocess.run(
            [program("flwr"), *words, "--format", "json"],
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STARTING,
            check=False,
        )
        if done.returncode or '"success": false' in done.stdout:
            said = (done.stdout + done.stderr).strip()[-500:]
            raise ConfigError(f"flwr {' '.join(words[:2])}: {said}; see {self.log}")


@contextmanager
def _superlink(out: Path, certs: Path) -> Iterator[_Link]:
    authority, certificate, key = (path.absolute() for path in needed(certs, "ca.crt", "server.crt", "server.key"))
    port, home = free_port(), out / "flower"
    private_folder(home)
    connection = f'[superlink]\ndefault = "personae"\n\n[superlink.personae]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(connection + f"root-certificates = {json.dumps(str(authority))}\n")
    command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    command += ["--disable-runtime-dependency-installation"]
    with (out / "flower.log").open("ab") as log:
        child = start(command, home, log)
        try:
            _wait_until_healthy(child, port, authority, out / "flower.log")
            yield _Link(child, port, authority, home, out / "flower.log")
        finally:
            stop(child)


def _wait_until_healthy(child: subprocess.Popen[bytes], port: int, authority: Path, log: Path) -> None:
    context, end = ssl.create_default_context(cafile=str(authority)), time.monotonic() + STARTING
    while child.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", context=context, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise Interrupted(f"the SuperLink did not start; see {log}")


def _wait_until_free(out: Path) -> None:
    """A process of an earlier server's Flower run ends by itself when its SuperLink is gone."""
    end = time.monotonic() + STARTING
    while _is_held(out):
        if time.monotonic() > end:
            raise ConfigError(f"{out}: another process is working in this run; wait for it or choose another folder")
        time.sleep(LOOK)


class _Follower:
    """Watches a run through its folder: what it says, the rounds it completes, and how it ends."""

    def __init__(self, out: Path, recipe: Recipe, notify: Notify) -> None:
        self._out, self.notify = out, notify
        self._stages = {stage.name: (number, stage) for number, stage in enumerate(recipe, start=1)}
        self.rounds, self._events = _lines(out / TIMES), _lines(out / METRICS)
        self._told = _lines(out / NOTICES)
        self._seconds: dict[str, list[float]] = {name: [] for name in self._stages}

    def follow(self, alive: Callable[[], bool], patience: float) -> dict[str, Any] | None:
        """How the run ended, or None where its process or the SuperLink is gone without a word.

        `patience` are seconds for the run to begin.
        """
        begun, end = False, time.monotonic() + patience
        while alive():
            self._report()
            if (ended := outcome(self._out)) is not None:
                self._report()
                return ended
            working = _is_held(self._out)
            if begun and not working and outcome(self._out) is None:
                return None
            if not begun and not working and time.monotonic() > end:
                return None
            begun |= working
            time.sleep(LOOK)
        return outcome(self._out)

    def _report(self) -> None:
        path = self._out / TIMES
        times = list(entries(RoundTime, _whole(path, self.rounds), path))
        losses = self._losses() if times else {}
        for time_ in times:
            self.rounds += 1
            self.notify(self._place(time_, losses.get((time_.stage, time_.round))))
        for line in _read_from(self._out / NOTICES, self._told):
            self._told += 1
            self.notify(line)

    def _losses(self) -> dict[tuple[str, int], float]:
        """Of the rounds since the last look, by stage and round."""
        path = self._out / METRICS
        found = list(events(_whole(path, self._events), path))
        self._events += len(found)
        rounds = [event for event in found if isinstance(event, TrainingRound)]
        return {(event.stage, event.round): event.scalars["loss"] for event in rounds if "loss" in event.scalars}

    def _place(self, done: RoundTime, loss: float | None) -> str:
        """`stage 2 of 3, FedPE, round 4 of 9, loss 1.40, about 2 min left`."""
        number, stage = self._stages[done.stage]
        self._seconds[done.stage].append(done.seconds)
        left = time_left(self._seconds[done.stage], stage.rounds - done.round)
        said = "–" if loss is None else f"{loss:.2f}"
        return place(number, len(self._stages), Standing(stage.title, done.round, stage.rounds, said, left, "running"))


def _whole(path: Path, start: int) -> list[bytes]:
    return [f"{line}\n".encode() for line in _read_from(path, start)]


def _lines(path: Path) -> int:
    return len(_read_from(path, 0))


def _read_from(path: Path, start: int) -> list[str]:
    """Whole lines of a file that grows, from the given one on."""
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").split("\n")[start:-1]


def _is_held(out: Path) -> bool:
    """Whether the server's part of the run is at work; looking does not disturb it."""
    try:
        with lock(out / WORKING).acquire(blocking=False):
            return False
    except Timeout:
        return True
