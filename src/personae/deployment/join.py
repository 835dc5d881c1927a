"""A client's side of a run over a network: its desk, and its connection to the server."""

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from personae.core import wire
from personae.core.acceleration import Acceleration
from personae.core.message import Message
from personae.data.handling import Handling
from personae.deployment.certs import needed, private_key, require_secret
from personae.deployment.connection import Connection, Disconnected
from personae.deployment.consent import Consent
from personae.deployment.desk import Desk, Workshop
from personae.deployment.gate import KNOWN
from personae.deployment.job import Job
from personae.deployment.own_host import OwnHost
from personae.deployment.places import require_faces
from personae.deployment.signature import UNKNOWN, signed
from personae.errors import ConfigError, PersonaeError
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import own_faces, public_faces, public_source
from personae.experiment.home import RUNS, OwnRun, Records, now
from personae.experiment.rundir import environment
from personae.experiment.shared_secret import read_secret, revealed
from personae.files import hold, private_folder
from personae.runtime.problems import PROBLEMS, ProblemLog
from personae.runtime.public import SharedFaces

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0  # seconds before a connection is tried again
LONGEST_REASON = 300  # bytes of what a server says
LONGEST_PLAN = 1 << 20  # bytes of a plan
LOOK = 0.2  # seconds between two looks whether clients are still at it
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
    workshop: Workshop = field(default_factory=Workshop)  # of this process

    def consent(self, server: str = "") -> Consent:
        return Consent(
            home=self.home,
            server=server,
            accept=self.accept,
            ask=self.ask,
            notify=self.execution.notify,
            shown=self.workshop.shown,
        )

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
        backbone = self.workshop.backbone(job.run, federation, self.execution.device)
        return OwnHost(own, federation, backbone, self.workshop.turn, problems=self.problems)

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


def join(server: str, member: Member, certs: Path, connections: list[Connection] | None = None) -> None:
    """Work for a server until told to stop; whatever breaks the connection, it is tried again.

    `connections` gets the present one, for whoever wants to end it from another thread.
    """
    host, port = _address(server)
    require_faces(member.data)
    member.shared_secret()
    authority, key = needed(certs, "ca.crt", "key")
    private_key(key)  # whether it is one
    private_folder(member.home)
    held = hold(member.home / ".lock", f"{member.home}: another client works here; choose another --home")
    torch.set_num_threads(1)  # sums depend on it
    try:
        unknown = _UnknownPlan(member, member.consent(server))
        desk = Desk(unknown.host, member.execution.notify, member.problems, member.leaving, member.workshop)

        def heard(told: bytes) -> None:
            unknown.heard(told)
            if told:
                desk.open(told)

        def connection() -> Connection:
            made = Connection(server, _trust(authority), key)
            if connections is not None:
                connections[:] = [made]
            return made

        obstacle = partial(_obstacle, host, port, authority, key, heard)
        _stay_connected(lambda: _connect(connection(), desk, member, unknown), member, obstacle)
    finally:
        held.release()


def join_all(server: str, members: Mapping[str, tuple[Member, Path]]) -> None:
    """Several clients of one process, each with its own key, home and faces; what stops one does not stop the others.

    It comes back, with the first error, when all of them have ended.
    """
    ended: dict[str, PersonaeError] = {}
    connections: dict[str, list[Connection]] = {name: [] for name in members}

    def one(name: str) -> None:
        member, certs = members[name]
        try:
            join(server, member, certs, connections[name])
        except PersonaeError as error:
            ended[name] = error
            member.execution.notify(str(error))

    threads = [threading.Thread(target=one, args=(name,), name=name, daemon=True) for name in members]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(LOOK)
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Connection.leave, [one for each in connections.values() for one in each]))
    raise next(iter(ended.values()))


def _trust(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


class _UnknownPlan:
    """A plan that nobody has decided about yet: requests of it are refused until somebody was asked."""

    def __init__(self, member: Member, consent: Consent) -> None:
        self._member, self._consent = member, consent
        self.job: Job | None = None

    def host(self, job: Job) -> OwnHost:
        """As the desk opens one. A server may plan something else while a client is connected."""
        if not self._consent.given(job):
            self.job = job
        return self._member.host(job)

    def heard(self, told: bytes) -> None:
        """What the server said before anything was sent, or with a request: ask about it."""
        jobs = [Job.parse(told)] if told else []
        jobs += [self.job] if self.job else []
        self.job = None
        with self._member.workshop.turn:  # one question at a time
            for job in jobs:
                self._consent.require(job)


def _stay_connected(connect: Callable[[], str], member: Member, obstacle: Callable[[], str | None]) -> None:
    pause = FIRST_PAUSE
    while True:
        began, reason = time.monotonic(), obstacle()
        if reason is None:
            reason = connect()
        if time.monotonic() - began > STEADY:
            pause = FIRST_PAUSE
        member.execution.notify(f"{reason}; the next attempt is in {pause:g} seconds")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _connect(connection: Connection, desk: Desk, member: Member, unknown: _UnknownPlan) -> str:
    """For as long as it lasts; gives the reason why it does no longer."""
    try:
        connection.enter()
        member.execution.notify("connected")
        while unknown.job is None:
            _work(connection, desk)
    except Disconnected as error:
        return f"the connection ended ({error})"
    finally:
        connection.leave()
    return "the server has another plan"


def _work(connection: Connection, desk: Desk) -> None:
    """The next request, if one comes; nothing of it is in memory while the one after it is waited for."""
    if (asked := connection.receive()) is not None:
        connection.answer(asked, desk.answer(asked.told, asked.frame))


def _obstacle(
    host: str, port: int, authority: Path, key: Path, heard: Callable[[bytes], None] = lambda _: None
) -> str | None:
    """Why a connection would be in vain, in words that Flower does not have; None if nothing is known.

    `heard` gets the server's plan, or nothing from a server that has none.

    A server with a wrong certificate may be somebody else: it is not tried again.
    """
    connection = http.client.HTTPSConnection(host, port, timeout=10, context=_trust(authority))
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
