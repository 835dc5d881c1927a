"""One federated round: ask, check, and merge what is acceptable while the quorum holds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any

from torch import Tensor

from personae.core.algorithm import ClientInfo, Question, Reply, Server
from personae.core.layer import recast
from personae.core.message import Message, ServerState
from personae.core.payload import ModelState, Scalars
from personae.core.quantities import SAMPLES, STATISTICS
from personae.core.selection import Knowledge
from personae.core.stage import Stage
from personae.errors import Diverged, PersonaeError, QuorumLost
from personae.runtime.consensus import Consensus
from personae.runtime.exchange import Exchange
from personae.runtime.firewall import Firewall, measured
from personae.runtime.spool import Spool, spool
from personae.runtime.suspicion import Fingerprints, Ruling, by_itself, harms
from personae.runtime.transport import Failure
from personae.words import counted


@dataclass(frozen=True)
class Outcome:
    """The state after a round, and what happened in it."""

    state: ServerState
    rejected: Mapping[str, str]
    failed: Mapping[str, Failure]
    scalars: Mapping[str, float]  # means over the accepted clients
    clients: Mapping[str, Mapping[str, float]]  # what each of them said
    samples: Mapping[str, int] = field(default_factory=dict)  # and on how many samples its update rests
    ruling: Ruling = field(default_factory=lambda: Ruling({}, {}))  # who is suspected, and left out for it
    drawn_back: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by client and quantity: the factor
    otherwise: ServerState | None = None  # the state, had nobody been suspected or drawn back; None if it is the same

    @property
    def learnt(self) -> dict[str, dict[Knowledge, float]]:
        """Of each accepted client, what a selection may want to know."""
        return {
            name: {"samples": self.samples[name], "loss": figures.get("loss", nan)}
            for name, figures in self.clients.items()
        }


def federated_round(
    stage: Stage,
    state: ServerState,
    server: Server,
    clients: Sequence[ClientInfo],
    exchange: Exchange,
    firewall: Firewall,
    scratch: Path,
    answered: Callable[[int], None],
    scores: Mapping[str, float] | None = None,
) -> Outcome:
    """Ask all `clients`. Updates wait in a spool until the round's median is known, then merge one by one.

    `scores` are what clients are suspected of, from earlier rounds.
    """
    layout, types = server.backbone.layout, stage.algorithm.types
    rejected: dict[str, str] = {}
    failures: dict[str, Failure] = {}
    measures: dict[str, dict[str, float]] = {}
    figures: dict[str, dict[str, float]] = {}
    left = list(clients)
    for question in types.before:
        asked = left
        state, left, lost = _besides(question, stage, state, server, asked, exchange, firewall)
        failures |= lost
        answered(len(asked) - len(left))
        _require_quorum(stage, server.round, len(clients), len(left), failures, rejected)
    prints: dict[str, Tensor] = {}
    fingerprints, consensus = Fingerprints(state.model), Consensus(state.model)
    trained = None if any(layer.noisy for layer in stage.layers) else state.model
    alone = stage.judges_alone or any(layer.hides_single_updates for layer in stage.layers)  # nobody is compared
    with spool(layout, scratch) as kept:
        for answer in exchange.ask(state, left):
            name = answer.client.name
            answered(1)
            if isinstance(answer, Failure):
                failures[name] = answer
            elif problem := firewall.problem(
                answer.message, server.backbone, server.public_faces, stage.algorithm.figures, trained
            ) or stage.algorithm.objection(answer.message):
                rejected[name] = problem
            else:
                measures[name] = measured(answer.message, state.model)
                figures[name] = _figures(answer.message)
                if not alone:
                    consensus.hear(name, answer.message)
                    if (print_ := fingerprints.of(answer.message)) is not None:
                        prints[name] = print_
                kept.put(name, answer.message)
        heard = {*failures, *rejected, *measures}
        silent = [client for client in clients if client.name not in heard]
        failures |= {client.name: Failure(client, "it did not answer") for client in silent}
        for name, distance in consensus.distances().items():
            measures[name][STATISTICS] = distance
        if not alone:
            rejected |= firewall.outliers(measures)
        compared = [client.name for client in clients if client.name in prints and client.name not in rejected]
        excess = firewall.excess({name: measures[name] for name in compared}, state.model)
        prints = {name: prints[name] for name in compared}
        scores = scores or {}
        harm = _harm(kept, prints, scores, state, server, firewall)
        judged = firewall.ruling(prints, excess, harm, scores)
        rejected |= judged.suspects
        accepted = [client for client in clients if client.name in measures and client.name not in rejected]
        _require_quorum(stage, server.round, len(clients), len(accepted), failures, rejected)
        weighed = {client.name: measures[client.name] for client in accepted}
        drawn_back = {} if alone else firewall.excess(weighed, state.model, judged.against)
        left = accepted
        for question in types.after:
            state, left, _ = _besides(question, stage, state, server, left, exchange, firewall)
        otherwise = None
        if judged.suspects or drawn_back:
            spared = [c for c in clients if c in accepted or c.name in judged.suspects]
            replies = (Reply(client, kept.look(client.name)) for client in spared)
            with suppress(PersonaeError):  # then there would be no state
                otherwise = stage.algorithm.merge(state, replies, _aside(server))
        merged = stage.algorithm.merge(state, _replies(kept, accepted, drawn_back, consensus.model), server)
    said = {client.name: figures[client.name] for client in accepted}
    return Outcome(
        merged,
        dict(sorted(rejected.items())),
        dict(sorted(failures.items())),
        _means(list(said.values())) | merged.figures(),
        said,
        {client.name: int(measures[client.name].get(SAMPLES, 0)) for client in accepted},
        judged,
        drawn_back,
        otherwise,
    )


def _harm(
    kept: Spool,
    prints: Mapping[str, Tensor],
    scores: Mapping[str, float],
    state: ServerState,
    server: Server,
    firewall: Firewall,
) -> dict[str, float]:
    """By client, how much worse its update alone is for rendered faces than others: of some, and of suspects."""
    if (judge := server.bench.judge) is None:
        return {}
    drawn = firewall.drawn(prints)
    followed = firewall.followed({name: score for name, score in scores.items() if name in prints}) if drawn else []
    tried = dict.fromkeys((*drawn, *followed))
    return harms({name: judge(by_itself(kept.look(name), state.model).flat) for name in tried}, drawn)


def _aside(server: Server) -> Server:
    """A server that draws the same random numbers, and takes none of them away."""
    bench = replace(server.bench, generator=server.bench.generator.clone_state())
    return replace(server, generator=server.generator.clone_state(), bench=bench)


def _besides(
    question: Question,
    stage: Stage,
    state: ServerState,
    server: Server,
    cohort: Sequence[ClientInfo],
    exchange: Exchange,
    firewall: Firewall,
) -> tuple[ServerState, list[ClientInfo], dict[str, Failure]]:
    """Ask the cohort something besides: the state then, who answered, and who did not."""
    heard: dict[str, Message] = {}
    failures = {client.name: Failure(client, f"it did not answer ({question.name})") for client in cohort}
    for answer in exchange.besides(question.name, state, cohort):
        name = answer.client.name
        if isinstance(answer, Failure):
            failures[name] = answer
        elif problem := firewall.problem(answer.message, server.backbone, server.public_faces, stage.algorithm.figures):
            failures[name] = Failure(answer.client, f"its answer ({question.name}) was refused: {problem}")
        else:
            heard[name] = answer.message
            del failures[name]
    replies = [Reply(client, heard[client.name]) for client in cohort if client.name in heard]
    state = stage.algorithm.hear(question.name, state, replies, server)
    return state, [reply.client for reply in replies], failures


def _replies(
    kept: Spool, accepted: Sequence[ClientInfo], drawn_back: Mapping[str, Mapping[str, float]], model: ModelState
) -> Iterator[Reply[Any]]:
    """In the order of the clients, whatever the order in which they answered: sums of floats depend on it."""
    for client in accepted:
        up = kept.take(client.name)
        if factors := drawn_back.get(client.name):
            smaller = {name: part.drawn_back(model, factors) for name, part in up.fields().items()}
            up = recast(type(up), up, **smaller)
        yield Reply(client, up)


def _require_quorum(
    stage: Stage,
    round_: int,
    asked: int,
    accepted: int,
    failures: Mapping[str, Failure],
    rejected: Mapping[str, str],
) -> None:
    needed = stage.needed(asked)
    if accepted >= needed or not asked:  # a stage that hides its clients goes on without any
        return
    reasons = [f"{name}: {failure}" for name, failure in sorted(failures.items())]
    reasons += [f"{name}: its update was rejected: {reason}" for name, reason in sorted(rejected.items())]
    line = (
        f"stage {stage.name}, round {round_}: {accepted} of {counted(asked, 'client')} returned an acceptable update, "
        f"the quorum is {needed}; first of {len(reasons)}: {reasons[0]}"
    )
    if not rejected and all(failure.diverged for failure in failures.values()):
        raise Diverged(line)
    raise QuorumLost(line, rejected, {name: failure.reason for name, failure in failures.items()})


def _figures(message: Message) -> dict[str, float]:
    figures = [part.values for part in message.parts() if isinstance(part, Scalars)]
    return {name: value for each in figures for name, value in each.items()}


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for each in figures for name in each})
    columns = {name: [each[name] for each in figures if name in each] for name in names}
    return {name: sum(column) / len(column) for name, column in columns.items()}
