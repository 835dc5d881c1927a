"""The client's side of every runtime: it keeps what is private, does the work, and lets out what is declared."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from personae.core.algorithm import Client, KeptT, Session
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, Remembering
from personae.core.message import Broadcast, ClientEvaluation, LocalState, Message, Undeclared
from personae.core.payload import ModelState, Scalars
from personae.core.problem import Problem
from personae.core.rng import generator
from personae.core.stage import Stage, predecessors
from personae.errors import Interrupted, Refused
from personae.runtime import frames
from personae.runtime.coding import Coding
from personae.runtime.federation import Federation
from personae.runtime.memory import keep_freed_memory
from personae.runtime.problems import PROBLEMS, ProblemLog, problem_of
from personae.runtime.store import PrivateStore
from personae.runtime.transport import EVALUATE, TRAIN, Answer, Request
from personae.words import counted

SEED_WORDS = {TRAIN: "train", EVALUATE: "assess"}  # other words would be other random numbers; a question is its own


class ClientHost:
    """Plays the clients of one process, one after the other, with one backbone for all of them.

    `backbone` is that one, where there is one already.

    What a client keeps is on disk when it answers, but a loss of power may still take it back: whoever asks must settle
    it before anything is built on it.
    """

    def __init__(
        self,
        federation: Federation,
        device: torch.device | str = "cpu",
        *,
        backbone: Backbone | None = None,
        problems: ProblemLog | None = None,
    ) -> None:
        self.federation = federation
        self.problems = problems or ProblemLog(federation.private / PROBLEMS)
        self.backbone = backbone or federation.backbone(device)
        self._predecessors = predecessors(federation.recipe)
        self._evaluated: tuple[Tensor, Embedder] | None = None
        if federation.acceleration.memory and self.backbone.device.type == "cpu":
            keep_freed_memory()

    def handle(self, request: Request) -> Answer:
        """Do one client's work. Whatever goes wrong there is told as a code, and its details stay there."""
        try:
            self._require_planned(request)
            work = {TRAIN: self._train, EVALUATE: self._evaluate}.get(request.task, self._question)
            return work(request)
        except Interrupted:
            raise  # this machine cannot go on, and that is no fault of the client's
        except Exception as error:  # a client may fail in any way without taking the others down
            if problem_of(error) is Problem.DISK_FULL:
                raise Interrupted(f"{error}: the disk is full; free some space and resume") from error
            return Answer(request.client, self.problems.report(str(request), error))

    def answer(self, request: Request, coding: Coding, largest: int | None = None) -> bytes:
        """The same as bytes; what cannot be written, or is larger than may be, is a failure like any other."""
        try:
            message = self.handle(request).message
        except Interrupted as error:
            message = self.problems.report(str(request), error)
        try:
            content = frames.of_answer(message, request, coding)
        except Exception as error:
            message = self.problems.report(str(request), error, Problem.UNWRITABLE)
            content = frames.of_trouble(message)
        if largest is not None and len(content) > largest:
            excess = ValueError(f"the answer holds {len(content):,} bytes, and the server takes {largest:,}")
            message = self.problems.report(str(request), excess, Problem.TOO_LARGE)
            content = frames.of_trouble(message)
        self.leaving(request, message, coding)
        return content

    def leaving(self, request: Request, message: Message, coding: Coding) -> None:
        """What is about to leave as bytes, for a host that keeps count."""

    def personal(self, request: Request) -> Embedder:
        """The model that the client uses after the round of the request."""
        stage = self.federation.stage(request.stage)
        private = self._store(request).load(
            stage.name, stage.algorithm.types.private, self.backbone.layout, before=request.round + 1
        )
        return stage.algorithm.personal(request.down, private, self._client(request, stage, Session()))

    def _require_planned(self, request: Request) -> None:
        """A client agreed to the rounds of a recipe, and works in no others."""
        stage = self.federation.stage(request.stage)
        first = 0 if request.task == EVALUATE else 1
        if not first <= request.round <= stage.rounds:
            raise Refused(f"stage {stage.name} has {counted(stage.rounds, 'round')}, and round {request.round} is none")
        if request.task != EVALUATE and not stage.algorithm.federated:
            raise Refused(f"stage {stage.name} asks nothing of clients")

    def _train(self, request: Request) -> Answer:
        """One round's work. What the client keeps is written only when all of it succeeded."""
        stage = self.federation.stage(request.stage)
        store = self._store(request)
        private = store.load(stage.name, stage.algorithm.types.private, self.backbone.layout, before=request.round)
        with self._session(request, stage) as session:
            up, kept = stage.algorithm.local(request.down, private, self._client(request, stage, session))
            _require_declared(up, stage.algorithm.types.up, stage.algorithm.figures)
            store.save(stage.name, request.round, kept)
        return Answer(request.client, up)

    def _question(self, request: Request) -> Answer:
        """What is asked in a round besides."""
        stage = self.federation.stage(request.stage)
        with self._session(request, stage) as session:
            up = stage.algorithm.answer(request.task, request.down, self._client(request, stage, session))
            _require_declared(up, stage.algorithm.types.question(request.task).up, stage.algorithm.figures)
        return Answer(request.client, up)

    @contextmanager
    def _session(self, request: Request, stage: Stage) -> Iterator[Session]:
        """What the client kept from the questions before, and then what it keeps for the next, if all went well."""
        kind, store = stage.algorithm.types.session, self._store(request)
        if kind is None:
            yield Session()
            return
        session = Session(store.session(stage.name, request.round, kind, self.backbone.layout))
        yield session
        store.keep_session(stage.name, request.round, session.kept)

    def _evaluate(self, request: Request) -> Answer:
        """Figures of the global and of the personal model on the client's own faces."""
        assert isinstance(request.down, Broadcast)
        faces = self.federation.holdings.of(request.client.name)
        shared = self.federation.evaluator(self._global(request.down.model), faces)
        personal = shared
        if self.federation.stage(request.stage).algorithm.personalizes:
            embedder = self.personal(request)
            personal = self.federation.evaluator(embedder, faces)
            if self.federation.benchmarks and request.round:  # before that nobody has trained
                personal |= self.federation.benchmarks(embedder)
        figures = {f"global/{name}": value for name, value in shared.items()}
        figures |= {f"personal/{name}": value for name, value in personal.items()}
        evaluation = ClientEvaluation(metrics=Scalars(figures))
        _require_declared(evaluation, ClientEvaluation, self.federation.figures)
        return Answer(request.client, evaluation)

    def _global(self, model: ModelState) -> Embedder:
        """The global model is one for client after client: what all are shown of each other, it embeds once."""
        self.backbone.load(model)
        if self._evaluated is None or not torch.equal(self._evaluated[0], self.backbone.flat):
            self._evaluated = self.backbone.flat.clone(), Remembering(self.federation.embedder(self.backbone))
        return self._evaluated[1]

    def _client(self, request: Request, stage: Stage, session: Session) -> Client:
        holding = self.federation.holdings.of(request.client.name)

        def recall(kind: type[KeptT]) -> KeptT | None:
            """Walk back along the stages that this one continues from."""
            before = self._predecessors[stage.name]
            while before is not None:
                declared: type[LocalState] = self.federation.stage(before).algorithm.types.private
                if issubclass(declared, kind):
                    return self._store(request).load(before, declared, self.backbone.layout)
                before = self._predecessors[before]
            return None

        return Client(
            info=request.client,
            train=holding.train,
            val=holding.val,
            test=holding.test,
            backbone=self.backbone,
            generator=generator(
                self.federation.seed,
                stage.name,
                request.round,
                request.client.name,
                SEED_WORDS.get(request.task, request.task),
            ),
            round=request.round,
            rounds=stage.rounds,
            recall=recall,
            embedder=self.federation.embedder,
            public_faces=self.federation.public.open(self.backbone) if self.federation.public else None,
            session=session,
        )

    def _store(self, request: Request) -> PrivateStore:
        return PrivateStore.of(self.federation.private, request.client.name, self.federation.keep_every)


def _require_declared(message: Message, kind: type[Message], figures: tuple[str, ...]) -> None:
    """The server would refuse it; whoever wrote the algorithm or the evaluation is told here, with the name."""
    if type(message) is not kind:
        raise Undeclared(f"{type(message).__name__} may not leave: the algorithm declares {kind.__qualname__}")
    for part in message.parts():
        if isinstance(part, Scalars) and (names := part.undeclared(figures)):
            raise Undeclared(f"the figure {names[0]!r} may not leave: `figures` declares {', '.join(figures)}")
