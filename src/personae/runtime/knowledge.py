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


def unlearnt(state: StateT, index: int | None) -> StateT:
    """The state without what was learnt of the client at this place."""
    known_kinds = [kind for kind in KINDS if kind in state.memory]
    if index is None or not known_kinds:
        return state
    memory = dict(state.memory)
    for kind in known_kinds:
        memory[kind] = memory[kind].clone()
        memory[kind][index] = nan
    return replace(state, memory=memory)
