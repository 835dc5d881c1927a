"""A client's side of a run over a network: its desk, and the SuperNode that keeps the connection to the server."""

import http.client
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

import torch

from personae.core import wire
from personae.core.acceleration import Acceleration
from personae.core.message import Message
from personae.data.decoding import Handling
from personae.deployment.certs import needed, private_key, require_secret
from personae.deployment.consent import Consent
from personae.deployment.desk import Desk
from personae.deployment.gate import KNOWN
from personae.deployment.job import Job
from personae.deployment.own_host import OwnHost
from personae.deployment.processes import free_port, program, start, stop
from personae.deployment.signature import UNKNOWN, signed
from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import own_faces, public_faces, public_source
from personae.experiment.home import RUNS, OwnRun, Records, now
from personae.experiment.rundir import environment
from personae.experiment.shared_secret import read_secret, revealed
from personae.files import hold, private_folder
from personae.runtime.problems import PROBLEMS, ProblemLog
from personae.runtime.public import SharedFaces
from personae.runtime.relay import write_programs

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0  # seconds before a connection is tried again
STILL_CONNECTED = "Failed to activate SuperNode"  # what Flower says of a key whose connection it has not missed yet
LONGEST_REASON = 300  # bytes of what a server says
LONGEST_PLAN = 1 << 20  # bytes of a plan
LOOK = 0.2  # seconds between two looks at a connection
STEADY = 60.0  # a connection that lasted so long was a good one


@dataclass(frozen=True, kw_only=True)
class Member:
    """What a client brings."""

    data: Path
    home: Path  # where it keeps what never leaves it
    unlabelled: bool = False  # whether nobody says who is on its faces
    secret: Path | None = None  # the file with the secret that the clients share, where the experiment takes one
    public: Path | None = None  # its copy of the public faces, where the experiment has such
    handling: Handling = field(default_factory=Handling)  # of images that are not aligned faces, or no images
    execution: Execution = field(default_factory=Execution)
    accept: frozenset[str] = frozenset()  # digests of plans that it takes part in, or `consent.ALL`
    ask: Callable[[], bool] | None = None  # whoever decides about other plans; None for nobody

    def consent(self, server: str = "") -> Consent:
        return Consent(home=self.home, server=server, accept=self.accept, ask=self.ask, notify=self.execution.notify)

    @property
    def problems(self) -> ProblemLog:
        return ProblemLog(self.home / PROBLEMS, self.execution.notify)

    def host(self, job: Job) -> OwnHost:
        """All that a run needs here, opened, if its plan was accepted."""
        self.consent().check(job)
        experiment = job.parsed()
        self._require_public(experiment)
        recipe = revealed(experiment, self.shared_secret()).recipe
        faces = own_faces(
            self.data,
            experiment,
            self.execution,
            unlabelled=self.unlabelled,
            **self.handling,
        )
        own = OwnRun(
            folder=self.home / RUNS / job.run,
            told=job.experiment,
            data=str(self.data.absolute()),
            unlabelled=self.unlabelled,
            handling=self.handling,
            faces=faces.held.faces.fingerprint,
            public=str(self.public.absolute()) if self.public else None,
            begun=now(),
            environment=environment(self.execution.device, 0, Acceleration()),
        )
        own.write()
        federation = replace(own.federation(faces, self._public(experiment)), recipe=recipe)
        return OwnHost(own, federation, self.execution.device, problems=self.problems)

    def shared_secret(self) -> str | None:
        """The secret that the clients share; nobody else on this machine may be able to read it."""
        if self.secret is None:
            return None
        if self.secret.exists():
            require_secret(self.secret)
        return read_secret(self.secret)

    def leaving(self, job: Job, stage: str, message: Message) -> None:
        """Write down what leaves in a run that could not be opened here."""
        Records(self.home / RUNS / job.run).sent(stage, wire.payload_bytes(message))

    def _require_public(self, experiment: Experiment) -> None:
        missing = public_source(experiment, self.public, self.handling) is None
        for stage in experiment.recipe:
            if missing and stage.algorithm.federated and stage.algorithm.needs_public:
                raise ConfigError(
                    f"stage {stage.name}: {stage.algorithm.name} trains with public faces, and this client has no copy "
                    "of them; give their place with --public"
                )

    def _public(self, experiment: Experiment) -> SharedFaces | None:
        source = public_source(experiment, self.public, self.handling)
        if source is None:
            return None
        faces = public_faces(experiment, source, self.execution)
        shared = SharedFaces(faces.samples(), self.home / "public")
        shared.clear()
        return shared


def join(server: str, member: Member, certs: Path) -> None:
    """Work for a server until told to stop; whatever breaks the connection, it is tried again."""
    host, port = _address(server)
    if not member.data.exists():
        raise DataError(f"{member.data}: there are no faces here; give a folder with one folder per identity, or a zip")
    member.shared_secret()
    authority, key = needed(certs, "ca.crt", "key")
    private_key(key)  # there is one, and it is a secret
    command = [program("flower-supernode"), "--superlink", server, "--root-certificates", str(authority)]
    command += ["--auth-supernode-private-key", str(key), "--host", "127.0.0.1"]
    private_folder(member.home)
    held = hold(member.home / ".lock", f"{member.home}: another client works here; choose another --home")
    torch.set_num_threads(1)  # sums depend on it
    try:
        with tempfile.TemporaryDirectory(prefix="personae-") as folder:
            path, programs = Path(folder) / "desk", Path(folder) / "programs"
            programs.mkdir()
            write_programs(programs)
            unknown = _UnknownPlan(member, member.consent(server))
            obstacle = partial(_obstacle, host, port, authority, key, unknown.heard)
            with closing(Desk(path, unknown.host, member.execution.notify, member.problems, member.leaving)) as desk:
                threading.Thread(target=desk.serve, name="desk", daemon=True).start()
                command += ["--node-config", f"desk={json.dumps(str(path))}"]
                _stay_connected(partial(_connect, command, programs, member, unknown), member, obstacle)
    finally:
        held.release()


class _UnknownPlan:
    """Between the thread that gets requests and the one that can ask a person: a plan that nobody has decided about."""

    def __init__(self, member: Member, consent: Consent) -> None:
        self._member, self._consent = member, consent
        self._job: Job | None = None
        self.there = threading.Event()

    def host(self, job: Job) -> OwnHost:
        """As the desk opens one. A server may plan something else while a client is connected."""
        if not self._consent.given(job):
            self._job = job
            self.there.set()
        return self._member.host(job)

    def heard(self, told: bytes) -> None:
        """What the server said before anything was sent, or with a request: ask about it."""
        jobs = [Job.parse(told)] if told else []
        jobs += [self._job] if self._job else []
        self._job = None
        self.there.clear()
        for job in jobs:
            self._consent.require(job)


def _stay_connected(connect: Callable[[IO[bytes]], str], member: Member, obstacle: Callable[[], str | None]) -> None:
    pause = FIRST_PAUSE
    with (member.home / "supernode.log").open("ab", buffering=0) as log:
        while True:
            began, reason = time.monotonic(), obstacle()
            if reason is None:
                reason = connect(log)
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            member.execution.notify(f"{reason}; the next attempt is in {pause:g} seconds")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _connect(command: list[str], programs: Path, member: Member, unknown: _UnknownPlan, log: IO[bytes]) -> str:
    """For as long as it lasts; gives the reason why it does no longer."""
    from_here = log.tell()
    child = start([*command, "--port", str(free_port())], member.home / "flower", log, programs)
    member.execution.notify("connecting")
    try:
        while child.poll() is None and not unknown.there.wait(LOOK):
            pass
    finally:
        stop(child)
    if unknown.there.is_set():
        return "the server has another plan"
    return f"the connection ended{_last_words(member.home / 'supernode.log', from_here)}"


def _last_words(path: Path, start: int) -> str:
    """What the SuperNode said last, if it was an error."""
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line.strip() for line in lines if "[code:" in line or "Error" in line or "error" in line]
    if errors and STILL_CONNECTED in errors[-1]:
        return " (the server still counts this client's last connection; it misses it within a minute)"
    return f" ({errors[-1][:300]})" if errors else ""


def _obstacle(
    host: str, port: int, authority: Path, key: Path, heard: Callable[[bytes], None] = lambda _: None
) -> str | None:
    """Why a connection would be in vain, in words that Flower does not have; None if nothing is known.

    `heard` gets the server's plan, or nothing from a server that has no gate.

    A server with a wrong certificate may be somebody else: it is not tried again.
    """
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
    try:
        connection.request("POST", KNOWN, headers=signed(key))
        reply = connection.getresponse()
        if reply.status == http.HTTPStatus.UNAUTHORIZED:
            reason = reply.read(LONGEST_REASON).decode(errors="replace")
            return reason if reason == UNKNOWN else f"the server turned this client away: {reason}"
        plan = reply.read(LONGEST_PLAN) if reply.status == http.HTTPStatus.OK else b""
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{host}:{port}: the server's certificate is not one of {authority} for this address "
            f"({error.verify_message}); nothing was sent"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} cannot be reached ({error})"
    finally:
        connection.close()
    heard(plan)
    return None


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--server {server}: write it as HOST:PORT")
    if not 0 < int(port) < 65536:
        raise ConfigError(f"--server {server}: a port is between 1 and 65535")
    return host.strip("[]"), int(port)
