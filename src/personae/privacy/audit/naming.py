"""How often scores of clients against candidates name the people that the clients hold."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from personae.core.payload import Gradient, NetworkVector
from personae.privacy.audit.attack import Evidence, Received, Unmeasurable
from personae.privacy.audit.finding import Finding, share_interval


def named(evidence: Evidence, clients: Sequence[str], scores: Tensor) -> tuple[int, int, float]:
    """Hits, trials and chance. `scores` [clients, candidates] are against the people of the gallery.

    A trial is a person whom a client holds, among everybody whom it does not hold: rank-1 is that this person has the
    highest score. Scores are taken beside those of other clients, which a server has as well.
    """
    names, _ = evidence.gallery
    place = {name: column for column, name in enumerate(names)}
    if len(clients) > 2:
        scores = scores - scores.mean(0, keepdim=True)
    hits, trials, chance = 0, 0, 0.0
    for client, row in zip(clients, scores, strict=True):
        held = [place[name] for name in evidence.rows.get(client, ()) if name in place]
        others = torch.ones(len(names), dtype=torch.bool)
        others[held] = False
        if not held or not others.any():
            continue
        best = float(row[others].max())
        hits += sum(float(row[column]) > best for column in held)
        trials += len(held)
        chance += len(held) / (int(others.sum()) + 1)
    if not trials:
        raise Unmeasurable("nothing is of a client whose people are known")
    return hits, trials, chance / trials


def by_kind(evidence: Evidence) -> Iterator[tuple[str, list[tuple[Received, Tensor]]]]:
    """Of each round and kind of payload: the updates as ways that the weights went, as flat vectors."""
    if not evidence.received:
        raise Unmeasurable("the run kept no updates; [audit] rounds = [1, -1] keeps some")
    found: dict[str, list[tuple[Received, Tensor]]] = {}
    for each in evidence.received:
        for part in each.message.parts():
            if isinstance(part, NetworkVector):
                title = f"{type(part).__name__}, round {each.round}"
                found.setdefault(title, []).append((each, way(each, part)))
    if not found:
        raise Unmeasurable("what clients send holds no weights that the server could read one by one")
    yield from found.items()


def way(received: Received, part: NetworkVector) -> Tensor:
    """From the model that was sent to the one that came back, over the weights; a gradient says the opposite way."""
    if isinstance(part, Gradient):
        return -part.flat
    begin = received.begin
    moved = begin.with_entries(part.layout, part.flat).flat - begin.flat
    return moved[: begin.layout.trainable_size]


def finding(name: str, figure: str, evidence: Evidence, target: str, result: tuple[int, int, float]) -> Finding:
    hits, trials, chance = result
    low, high = share_interval(hits, trials)
    return Finding(
        attack=name,
        stage=evidence.stage,
        target=target,
        figure=figure,
        value=hits / trials,
        chance=chance,
        low=low,
        high=high,
        trials=trials,
    )
