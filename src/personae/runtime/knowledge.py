"""What the server has learnt of its clients, in its memory from round to round, for selections that use it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import TypeVar

import torch

from personae.core.algorithm import ClientInfo
from personae.core.message import ServerState
from personae.core.selection import Knowledge, Selection

StateT = TypeVar("StateT", bound=ServerState)

KINDS: tuple[Knowledge, ...] = ("samples", "loss")
SUSPICION = "suspicion"


def known(state: ServerState, clients: Sequence[ClientInfo]) -> dict[str, dict[Knowledge, float]]:
    """By client, what its last accepted update said; of clients that were heard of."""
    values = {kind: state.memory[kind].tolist() for kind in KINDS if kind in state.memory}
    found = {client.name: {kind: each[client.index] for kind, each in values.items()} for client in clients}
    return {name: each for name, each in found.items() if each and not any(map(isnan, each.values()))}


def remember(
    state: StateT,
    selection: Selection,
    before: ServerState,
    learnt: Mapping[str, Mapping[Knowledge, float]],
    clients: Sequence[ClientInfo],
) -> StateT:
    """The state after a round, with what the selection will want to know of these clients."""
    if not selection.learns:
        return state
    memory = dict(state.memory)
    for kind in sorted(selection.learns):
        values = before.memory.get(kind, torch.full((len(clients),), nan, dtype=torch.float64)).clone()
        for client in clients:
            if client.name in learnt:
                values[client.index] = learnt[client.name][kind]
        memory[kind] = values
    return replace(state, memory=memory)


def suspected(state: ServerState, clients: Sequence[ClientInfo]) -> dict[str, float]:
    """By client, its score of suspicion, where that is above zero."""
    if SUSPICION not in state.memory:
        return {}
    scores = state.memory[SUSPICION].tolist()
    return {client.name: scores[client.index] for client in clients if scores[client.index] > 0}


def suspect(state: StateT, scores: Mapping[str, float], clients: Sequence[ClientInfo]) -> StateT:
    """The state with these scores; runs in which nobody is suspected have nothing of it."""
    memory = {name: value for name, value in state.memory.items() if name != SUSPICION}
    if scores:
        values = [scores.get(client.name, 0.0) for client in clients]
        memory[SUSPICION] = torch.tensor(values, dtype=torch.float64)
    return replace(state, memory=memory) if memory.keys() != state.memory.keys() or scores else state


def unlearnt(state: StateT, index: int | None) -> StateT:
    """The state without what was learnt of the client at this place."""
    nothing = dict.fromkeys(KINDS, nan) | {SUSPICION: 0.0}
    known_kinds = [kind for kind in nothing if kind in state.memory]
    if index is None or not known_kinds:
        return state
    memory = dict(state.memory)
    for kind in known_kinds:
        memory[kind] = memory[kind].clone()
        memory[kind][index] = nothing[kind]
    return replace(state, memory=memory)
