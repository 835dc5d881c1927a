"""Stages and rounds: work through a recipe, evaluate, and write down after every round where the run stands."""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from personae.core.aggregation import Workbench
from personae.core.algorithm import ClientInfo, Domains, Server
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder
from personae.core.events import (
    Admission,
    Entry,
    Event,
    GlobalEvaluation,
    PersonalEvaluation,
    PrivacySpent,
    RoundTime,
    RoundWarning,
    Suspicion,
    TrainingRound,
)
from personae.core.message import ClientEvaluation, ServerState
from personae.core.payload import ModelState
from personae.core.rng import generator
from personae.core.samples import Samples
from personae.core.selection import Occasion
from personae.core.stage import Stage, predecessors
from personae.core.threads import torch_threads
from personae.core.warnings import Figures
from personae.errors import ConfigError, Diverged, QuorumLost
from personae.progress import Advance, Progress, silent, unheard
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.coding import EXACT, Coding
from personae.runtime.exchange import Exchange
from personae.runtime.federation import Federation
from personae.runtime.firewall import Firewall
from personae.runtime.knowledge import known, remember, suspect, suspected, unlearnt
from personae.runtime.past import Past
from personae.runtime.proof import Proof
from personae.runtime.round import Outcome, federated_round
from personae.runtime.transport import EVALUATE, TRAIN, Failure, Transport


class Journal(Protocol):
    """The records of a run. `position` makes them durable; `rewind` takes back what came after (all if empty)."""

    def write(self, entry: Entry) -> None: ...

    def begun(self, stage: Stage, results: Mapping[str, "Result"]) -> None:
        """The evaluation in full of the weights that the run was given, with which this stage begins."""

    def finished(self, stage: Stage, round_: int, backbone: Backbone, results: Mapping[str, "Result"]) -> None:
        """A stage is done: its model, loaded into the backbone, and its last evaluation in full."""

    def position(self) -> dict[str, int]: ...

    def rewind(self, position: Mapping[str, int]) -> None: ...


class Result(Protocol):
    @property
    def metrics(self) -> dict[str, float]: ...


class Benchmark(Protocol):
    """A test that the server can run on any embedder."""

    @property
    def name(self) -> str: ...

    def evaluate(self, embedder: Embedder, *, final: bool) -> Result:
        """Of a `final` model, that of a stage's last round or one that was given, with all that is kept of it."""
        ...


class Accountant(Protocol):
    """Knows what rounds cost in privacy, and what may be spent."""

    def affordable(self, stage: Stage) -> int:
        """How many of the stage's rounds the budget allows: at least one."""

    def remark(self, stage: Stage) -> str | None:
        """Why the stage ends before its time, if it does."""

    def require(self, stage: Stage, round_: int, asked: int) -> None:
        """That a round of so many clients has the noise that was counted on."""

    def spent(self, stage: Stage, round_: int) -> Sequence[PrivacySpent]:
        """What can be said after this round."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Runs a recipe over a transport. The outcome depends on the federation and the settings, not on the transport."""

    federation: Federation
    transport: Transport
    checkpoints: Checkpoints
    journal: Journal
    scratch: Path  # a folder for updates that do not fit into memory
    initial: ModelState | None = None  # weights to start from instead of random ones
    public: Samples | None = None
    pooled: Callable[[Sequence[str]], Samples] | None = None  # the training faces of these clients in one place
    benchmarks: Sequence[Benchmark] = ()
    final_benchmarks: Sequence[Benchmark] = ()  # of final and given models alone
    firewall: Firewall = field(default_factory=Firewall)
    proof: Samples | None = None  # rendered faces, on which the server looks at every merged model
    excluded: Callable[[], AbstractSet[str]] = frozenset  # who is out of the run now; asked before every round
    absent: AbstractSet[str] = frozenset()  # clients that keep their places, may be drawn, and are not asked
    past: Past | None = None  # rounds that are taken over from an earlier run
    accountant: Accountant | None = None  # of privacy
    coding: Coding = EXACT  # of the transport: how many bytes cross depends on it
    device: str = "cpu"
    threads: int = 1  # of the server's own work; a part of the experiment, because sums depend on it
    cores: int = 1  # for the server to embed faces with; no figure depends on it
    progress: Progress = silent
    notify: Callable[[str], None] = unheard
    listeners: Sequence[Callable[[Event], None]] = ()  # each gets the events of a round once that is safely on disk

    def run(self) -> None:
        """From the beginning, or from after the last completed round."""
        with torch_threads(self.threads):
            _Walk(self).run()


class _Walk:
    """One walk through the recipe, with the server's backbone at hand."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.backbone = engine.federation.backbone(engine.device)
        self.initial = engine.initial or self.backbone.state()
        holdings = engine.federation.holdings
        source = engine.federation.source
        self.clients = [ClientInfo(name, index, name == source) for index, name in enumerate(holdings.clients)]
        self.before = predecessors(engine.federation.recipe)
        self.trainers = [client for client in self.clients if client.name not in holdings.newcomers]
        self.out: AbstractSet[str] = frozenset()  # of the run, by the operator's word
        self.events: list[Event] = []  # of the round that is going on
        self.proof = Proof(self.backbone, partial(engine.federation.embedder, cores=engine.cores), engine.proof)
        self.missed = 0  # rounds in a row without a quorum

    def run(self) -> None:
        recipe = self.engine.federation.recipe
        for stage in recipe:
            if not self._eligible(stage):
                raise ConfigError(
                    f"stage {stage.name}: clients = {stage.clients!r}, but no client that trains is on that side; "
                    'divide the faces with [partition] by = "domain", which names the source'
                )
            stage.require_enough(len(self._eligible(stage)))
            if remark := stage.remark(len(self._eligible(stage))):
                self.engine.notify(remark)
        start, first, state = 0, 1, None
        figures: Mapping[str, float] = {}
        latest = self.engine.checkpoints.latest()
        self.engine.journal.rewind(latest[0].journal if latest else {})
        if latest:
            position, state = latest
            start = next(index for index, stage in enumerate(recipe) if stage.name == position.stage)
            first, figures = position.round + 1, position.figures
            self.out = frozenset(position.excluded)
        for stage in recipe[start:]:
            if state is None:
                parent = self.before[stage.name]
                previous = self.engine.checkpoints.finished(parent) if parent else None
                state = stage.algorithm.start(previous, self._server(stage, 0))
                if self.engine.past is not None and stage.name in self.engine.past.rounds:
                    state, first, figures = self._take_over(stage, state, self.engine.past)
            self._stage(stage, state, first, figures)
            first, state, figures = 1, None, {}

    def _take_over(self, stage: Stage, state: ServerState, past: Past) -> tuple[ServerState, int, Mapping[str, float]]:
        """Rounds that an earlier run has trained: the state after them, the round to go on with, and their figures."""
        last, journal = past.rounds[stage.name], self.engine.journal
        state = self._admit(stage, state, 1)
        self._begin(stage, state)
        for round_ in range(1, last + 1):
            for entry in past.of(stage, round_):
                self._record(entry) if isinstance(entry, Event) else journal.write(entry)
            evaluates, final = stage.evaluates(round_), round_ >= self._last(stage)
            kept = past.state(stage, round_) if evaluates or round_ == last else None
            if kept is not None and (evaluates or final):
                self._evaluate(stage, stage.server.evaluated(kept[1]), round_, final=final)
        if kept is None:
            raise ConfigError(f"stage {stage.name}: the state after round {last} was not kept")
        position, state = kept
        self.engine.checkpoints.save(stage, last, state, journal.position(), position.figures, self.out, final)
        self._publish()
        return state, last + 1, position.figures

    def _begin(self, stage: Stage, state: ServerState) -> None:
        if stage.evaluate_every or stage is self.engine.federation.recipe[0]:  # others begin with a known model
            self._evaluate_start(stage, state)

    def _stage(self, stage: Stage, state: ServerState, first: int, figures: Mapping[str, float]) -> None:
        """The rounds of a stage from the `first` on, after one with these figures; none if it was complete already."""
        accountant, last = self.engine.accountant, self._last(stage)
        rounds = range(first, last + 1)
        if not rounds:
            return
        self.missed = 0
        unit, work = "rounds", len(rounds)
        if stage.algorithm.federated:
            eligible = len(self._eligible(stage))
            unit, work = "clients", sum(stage.selection.count(eligible, each, stage.rounds) for each in rounds)
        recipe = self.engine.federation.recipe
        place = f"stage {recipe.index(stage) + 1} of {len(recipe)}, {stage.title}"
        spent: Sequence[PrivacySpent] = ()
        with self.engine.progress(place, work, unit) as advance:
            for name in self.out:  # a stage may begin with what was there before they were put out
                state = stage.algorithm.forget(state, name)
            state = self._admit(stage, state, first)
            if first == 1:
                self._begin(stage, state)
            for round_ in rounds:
                advance(0, _going_on(stage, round_, figures, spent))
                began = time.monotonic()
                state = self._admit(stage, state, round_)
                state, figures = self._round(stage, state, round_, figures, advance)
                seconds = time.monotonic() - began
                spent = accountant.spent(stage, round_) if accountant else ()
                for event in spent:
                    self._record(event)
                evaluated, final = stage.server.evaluated(state), round_ == last
                if final and accountant and (remark := accountant.remark(stage)):
                    self.engine.notify(remark)
                    self._record(RoundWarning(stage=stage.name, round=round_, text=remark))
                if final or stage.evaluates(round_):
                    self._evaluate(stage, evaluated, round_, final=final)
                self.engine.journal.write(RoundTime(stage=stage.name, round=round_, seconds=seconds))
                self.engine.transport.settle()  # a checkpoint counts on what the clients have kept
                kept, position = evaluated if final else state, self.engine.journal.position()
                self.engine.checkpoints.save(stage, round_, kept, position, figures, self.out, final)
                advance(0, _going_on(stage, round_, figures, spent))
                self._publish()

    def _round(
        self, stage: Stage, state: ServerState, round_: int, before: Mapping[str, float], advance: Advance
    ) -> tuple[ServerState, Mapping[str, float]]:
        """The state after it, and its figures."""
        server = self._server(stage, round_)
        participants: list[ClientInfo] = []
        if stage.algorithm.federated:
            drawn = self._participants(stage, state, round_)
            participants = [client for client in drawn if client.name not in self.engine.absent]
            advance(len(drawn) - len(participants))
            if self.engine.accountant:
                self.engine.accountant.require(stage, round_, len(participants))
        if participants or stage.judges_alone:  # noise must not tell that nobody was drawn
            exchange = Exchange(self.engine.transport, TRAIN, stage, round_, self.engine.coding)
            try:
                outcome = federated_round(
                    stage,
                    state,
                    server,
                    participants,
                    exchange,
                    self.engine.firewall,
                    self.engine.scratch,
                    advance,
                    suspected(state, self.clients),
                )
            except QuorumLost as lost:
                if self.missed >= stage.patience:
                    raise
                self._enter(exchange)
                return self._miss(stage, state, round_, participants, lost), before
            self.missed = 0
            self._enter(exchange)
        elif stage.algorithm.federated:  # nobody is left of those who were drawn: nothing happens in this round
            outcome = Outcome(state, {}, {}, {}, {})
        else:
            merged = stage.algorithm.merge(state, (), server)
            outcome = Outcome(merged, {}, {}, merged.figures(), {})
            advance(1)
        self._tell(stage, round_, participants, outcome)
        if stage.algorithm.federated and 2 * len(participants) < len(self._eligible(stage)):
            before = {}  # most of the few who were asked then are others, with figures of their own
        for warning in stage.algorithm.warnings(Figures(outcome.scalars, before, outcome.clients)):
            self.engine.notify(f"{stage.name}, round {round_}: {warning}")
            self._record(RoundWarning(stage=stage.name, round=round_, text=warning))
        after = stage.server.applied(state, outcome.state, round_, stage.rounds)
        self._suspect(stage, round_, state, after, outcome)
        checked = participants and self.engine.firewall.enabled
        if checked and (reason := self.proof.collapse(state.model, after.model)):
            text = f"the round was undone: {reason}; updates of {', '.join(outcome.clients)} were in it"
            self.engine.notify(f"{stage.name}, round {round_}: {text}")
            self._record(RoundWarning(stage=stage.name, round=round_, text=text))
            after = state
        after = suspect(after, outcome.ruling.scores, self.clients) if participants else after
        return remember(after, stage.selection, state, outcome.learnt, self.clients), outcome.scalars

    def _miss(
        self, stage: Stage, state: ServerState, round_: int, participants: Sequence[ClientInfo], lost: QuorumLost
    ) -> ServerState:
        """A round that changes nothing, because too few clients have sent an acceptable update."""
        self.missed += 1
        self.engine.notify(f"{lost}; this round changes nothing ({self.missed} in a row, patience {stage.patience})")
        asked = tuple(client.name for client in participants)
        self._record(
            TrainingRound(
                stage=stage.name,
                round=round_,
                participants=asked,
                rejected=lost.rejected,
                failed=lost.failed,
                scalars={},
            )
        )
        text = f"too few clients sent an acceptable update ({', '.join(asked)} were asked); the round changed nothing"
        self._record(RoundWarning(stage=stage.name, round=round_, text=text))
        return state

    def _suspect(self, stage: Stage, round_: int, before: ServerState, after: ServerState, outcome: Outcome) -> None:
        """Write down who is suspected and what was done about it, with the model that would have been otherwise."""
        if not (outcome.ruling.scores or outcome.ruling.suspects or outcome.drawn_back):
            return
        otherwise: Mapping[str, float] = {}
        if outcome.otherwise is not None:
            applied = stage.server.applied(before, outcome.otherwise, round_, stage.rounds)
            otherwise = self.proof.figures(before.model, applied.model)
        self._record(
            Suspicion(
                stage=stage.name,
                round=round_,
                scores=outcome.ruling.scores,
                left_out=outcome.ruling.suspects,
                drawn_back=outcome.drawn_back,
                merged=self.proof.figures(before.model, after.model),
                otherwise=otherwise,
            )
        )

    def _evaluate(self, stage: Stage, state: ServerState, round_: int, *, final: bool = False) -> None:
        """The model on the server's benchmarks, then with every client on its own faces."""
        self.backbone.load(state.model)
        embedder = self.engine.federation.embedder(self.backbone, self.engine.cores)
        given = round_ == 0 and self.engine.initial is not None and stage is self.engine.federation.recipe[0]
        results = {each.name: each.evaluate(embedder, final=final or given) for each in self.engine.benchmarks}
        metrics = {f"{name}/{key}": value for name, each in results.items() for key, value in each.metrics.items()}
        self._record(GlobalEvaluation(stage=stage.name, round=round_, metrics=metrics))
        if final or given:
            results |= {each.name: each.evaluate(embedder, final=True) for each in self.engine.final_benchmarks}
        exchange = Exchange(self.engine.transport, EVALUATE, stage, round_, self.engine.coding)
        figures: dict[str, dict[str, float]] = {}
        asked = [each for each in self.clients if each.name not in self.out | self.engine.absent]
        for answer in exchange.ask(state, asked):
            if isinstance(answer, Failure):
                self.engine.notify(f"{stage.name}, round {round_}: no figures of {answer.client.name}: {answer}")
            elif isinstance(answer.message, ClientEvaluation):
                name, federation = answer.client.name, self.engine.federation
                if problem := self.engine.firewall.problem(answer.message, self.backbone, figures=federation.figures):
                    self.engine.notify(f"{stage.name}, round {round_}: the figures of {name} were rejected: {problem}")
                else:
                    figures[name] = dict(answer.message.metrics.values)
        self._enter(exchange)
        new = tuple(sorted(set(figures) & self.engine.federation.holdings.newcomers))
        clients = dict(sorted(figures.items()))
        self._record(PersonalEvaluation(stage=stage.name, round=round_, clients=clients, new=new))
        if given:
            self.engine.journal.begun(stage, results)
        if final:
            self.engine.journal.finished(stage, round_, self.backbone, results)

    def _evaluate_start(self, stage: Stage, state: ServerState) -> None:
        """Where the curves begin. A deep network that is not trained yet may overflow: then there are no figures."""
        try:
            self._evaluate(stage, state, 0)
        except Diverged:
            self.engine.notify(f"{stage.name}: the start has no figures; its embeddings are not finite before training")

    def _last(self, stage: Stage) -> int:
        """The round with which a stage ends: its last one, or the last that the budget allows."""
        return self.engine.accountant.affordable(stage) if self.engine.accountant else stage.rounds

    def _eligible(self, stage: Stage) -> list[ClientInfo]:
        """The clients of the stage's side that take part in training."""
        return [client for client in self.trainers if stage.takes(client.source) and client.name not in self.out]

    def _admit(self, stage: Stage, state: ServerState, round_: int) -> ServerState:
        """Do as the operator has decided since the last round; gives the state without what is kept of who went."""
        before, self.out = self.out, self.engine.excluded()
        for client in self.clients:
            if (admitted := client.name not in self.out) == (client.name not in before):
                continue
            text = f"{client.name} takes part again" if admitted else f"{client.name} was put out of the run"
            self.engine.notify(f"{stage.name}, round {round_}: {text}")
            self.engine.journal.write(Admission(stage=stage.name, round=round_, client=client.name, admitted=admitted))
            self._record(RoundWarning(stage=stage.name, round=round_, text=text))
            if not admitted:
                state = unlearnt(stage.algorithm.forget(state, client.name), client.index)
        if stage.algorithm.federated and not self._eligible(stage):
            raise QuorumLost(
                f"stage {stage.name}, round {round_}: all who could train in it were put out; let some in again"
            )
        return state

    def _participants(self, stage: Stage, state: ServerState, round_: int) -> list[ClientInfo]:
        """Who is asked in this round, in the order of the clients."""
        return stage.selection.select(
            Occasion(
                clients=self._eligible(stage),
                seed=self.engine.federation.seed,
                stage=stage.name,
                round=round_,
                rounds=stage.rounds,
                known=known(state, self.clients),
            )
        )

    def _server(self, stage: Stage, round_: int) -> Server:
        clients = self._eligible(stage)
        pooled: Samples | None = None
        domains: Domains | None = None
        if stage.algorithm.pools_faces and self.engine.pooled is not None:
            pooled = self.engine.pooled([client.name for client in clients])
            sides = [[client.name for client in clients if client.source == source] for source in (True, False)]
            if all(sides):
                domains = Domains(*map(self.engine.pooled, sides))
        return Server(
            initial=self.initial,
            backbone=self.backbone,
            public_faces=self.engine.public,
            pooled=pooled,
            generator=generator(self.engine.federation.seed, stage.name, round_, "server"),
            round=round_,
            rounds=stage.rounds,
            clients=tuple(clients),
            cohort=stage.selection.count(len(clients), max(round_, 1), stage.rounds),
            domains=domains,
            aggregation=stage.aggregation,
            bench=Workbench(
                generator(self.engine.federation.seed, stage.name, round_, "aggregation"),
                self.engine.scratch,
                self.backbone.layout.trainable_size,
                self.proof.judge,
            ),
        )

    def _record(self, event: Event) -> None:
        self.engine.journal.write(event)
        self.events.append(event)

    def _publish(self) -> None:
        """Whoever listens may end the run: nothing of it is lost any more, nor for those who come before."""
        events, self.events = self.events, []
        for listen in self.engine.listeners:
            for event in events:
                listen(event)

    def _enter(self, exchange: Exchange) -> None:
        for entry in exchange.ledger():
            self.engine.journal.write(entry)

    def _tell(self, stage: Stage, round_: int, participants: Sequence[ClientInfo], outcome: Outcome) -> None:
        for name, reason in outcome.rejected.items():
            self.engine.notify(f"{stage.name}, round {round_}: the update of {name} was rejected: {reason}")
        for name, failure in outcome.failed.items():
            self.engine.notify(f"{stage.name}, round {round_}: {name} failed: {failure}")
        # By client only what tables show, which has a place in its name: losses of every round would be too much.
        shown = {
            client: {name: value for name, value in figures.items() if "/" in name}
            for client, figures in outcome.clients.items()
        }
        self._record(
            TrainingRound(
                stage=stage.name,
                round=round_,
                participants=tuple(client.name for client in participants),
                rejected=outcome.rejected,
                failed={name: failure.reason for name, failure in outcome.failed.items()},
                scalars=outcome.scalars,
                clients=shown if any(shown.values()) else {},
            )
        )


def _going_on(stage: Stage, round_: int, figures: Mapping[str, float], spent: Sequence[PrivacySpent]) -> str:
    """For people who wait: the round, the loss that was reported last, and what was spent of privacy."""
    loss = f", loss {figures['loss']:.3g}" if "loss" in figures else ""
    epsilon = "".join(f", epsilon {each.epsilon:.3g} at delta {each.delta:.0e}" for each in spent)
    return f"round {round_} of {stage.rounds}{loss}{epsilon}"
