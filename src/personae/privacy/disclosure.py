"""What each algorithm lets across, read from its types."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields

from personae.core.algorithm import Algorithm, AnyAlgorithm
from personae.core.description import Description
from personae.core.layer import Layer, Layered, layers_of
from personae.core.message import ClientEvaluation, Message, Trouble
from personae.core.payload import Expectation, Payload
from personae.core.problem import Problem
from personae.core.stage import Stage
from personae.privacy.small_cohorts import seen_of_few

PREAMBLE = """# What leaves a client

Generated from the message types of the code by `personae disclose --markdown`; a test keeps it true. A message can hold
nothing but the payload kinds below, and each algorithm declares which of them it uses in which direction.

What this proves is which channels exist. It does not prove that an update says nothing about the faces it was computed
from: weights and class embeddings can leak information about training data.

A class embedding (`ClassEmbeddings`) is a biometric template: the direction in which a network puts one person's faces.
Anybody who has it and the network can recognise that person in other images, link the person across databases, and
reconstruct a likeness of the face. Where it goes up, the server learns it; where it comes down, a client gets back its
own rows and nobody else's. (Only `oracle`, a bound for comparisons, shows every client everybody's.) A template cannot
be revoked like a password: to run such an algorithm takes a server that may hold the templates of everybody who takes
part.

A global classification layer (`fedavg`, `hf_maml_global`) is written in papers as one matrix that every client receives
whole, with the logits of foreign classes masked: everybody would hold a template of everybody. Masked rows have no
influence and do not move, so here a client is sent its own rows alone and computes the very same. The server still
learns the templates of all. With a local layer (`fedpe`, `hf_maml`) nobody does.

Public embeddings (`PublicEmbeddings`) are one vector for each person of a public data set that all parties have.
Clients train them beside their private faces, so that an update of them, like one of the weights, may say something
about these.

An alias (`Aliases`) is a token for each person that a client holds, a digest under a key that the clients share. The
server sees by it which clients hold the same person, how many people any two of them share, and the same again in every
round and every run under that key. It does not say who the person is, but every client has the key and can try names
on it. Over a network the server has a digest of the key, and clients bring the key to `personae join`;
where an experiment runs on one machine, the key is in its file. A person of whom at least `holders` clients speak in a
round has one class embedding, the mean of the directions of theirs: each of these clients then receives what the
others' images of that person have contributed. **Nobody can check whether a client that sends somebody's token has
images of that person.** A client that only claims to hold a person gets this mean, which is a template of that person,
out of the rows of `holders` - 1 others at least. Of a person of whom fewer speak it gets back nothing but its own row.
It cannot outweigh the others by a long row. Clients that work together know what they have sent themselves: as many of
them as `holders`, less one, get the row of the only client that holds a person whom they all claim. Set `holders` to
two more than the number of clients that could work together. FedGC sends aliases only where `link` is set.

Figures of a client's own work (`Scalars`) say something about it, too: `cluster` sends how many clusters a client
found, which is about how many people are on its images. An algorithm and an evaluation declare the names of their
figures. A client sends no others, and a server refuses others. Values that are not finite, or too large to be a figure,
are refused as well.

Clients receive the mean of a round's updates, and no single one. What they can tell from it depends on how many
clients the round asks: with one, the mean is this client's model; of two, each can work out the other's update. The
stage's `selection` decides that. `personae run --dry-run`, the plan that `personae join` shows and the report say so
where it happens.

Layers go around any algorithm and can change this. The second table says what each of them adds to messages or takes
from them, around `fedpe`. In the layer `carry`, control variates, and momentum that the server averages, add a
`Gradient` in both directions: it says about a client's faces what an update of the weights says, and momentum a little
more, since it is of the last few batches. Momentum that a client keeps adds nothing. BatchNorm that a client keeps
makes its model a `ModelWithoutStatistics` or a `ModelWithoutBatchNorm`: these entries are then not in the message. The
layers `noise` and `local-noise` take losses and counts out of messages, since no noise hides these. The layer `centres`
sends `NoisedCentres` in the place of class embeddings.

Every evaluation on a client's own faces sends back `Scalars` (its figures) and nothing else.

A client that cannot do its work, in whatever task of whatever algorithm, sends back a `FailureCode`: one of the codes
below, and no text. What went wrong in detail, with the names of files and people that may be in it, stays in the log of
that client. The server prints and keeps its own words for a code, and never repeats what it could not decode.
"""

ANY = "any"  # what every client may answer, whatever the algorithm


@dataclass(frozen=True)
class Crossing:
    """One field of one algorithm's message."""

    algorithm: str
    direction: str
    field: str
    payload: str


def crossings(algorithms: Iterable[type[AnyAlgorithm]]) -> list[Crossing]:
    """Everything that the algorithms let across; a server that works alone exchanges nothing in its rounds."""
    found = []
    for algorithm in algorithms:
        if not algorithm.federated:
            continue
        for direction, kind in (("down", algorithm.types.down), ("up", algorithm.types.up)):
            found += [Crossing(algorithm.name, direction, *item) for item in kind.payloads().items()]
    return found + [
        Crossing(ANY, "up", *item) for kind in (ClientEvaluation, Trouble) for item in kind.payloads().items()
    ]


@dataclass(frozen=True)
class Change:
    """What a layer does to one field of a message; `before` and `after` are payload kinds, empty for none."""

    layer: str
    direction: str
    field: str
    before: str
    after: str


def changes(layered: Layered) -> list[Change]:
    """What the outermost layer adds to the messages of the algorithm inside, takes away, or sends as something else."""
    layer, inner, outer = layered.layer, layered.inner.types, layered.types
    settings = [
        f"{each.name} = {json.dumps(getattr(layer, each.name))}"
        for each in fields(layer)  # type: ignore[arg-type]
        if getattr(layer, each.name) != each.default
    ]
    title = ", ".join([layer.name, *settings])
    found = []
    for direction, plain, changed in (("down", inner.down, outer.down), ("up", inner.up, outer.up)):
        before, after = plain.payloads(), changed.payloads()
        for question in outer.questions:
            message = question.down if direction == "down" else question.up
            after |= {f"{name} ({question.name})": kind for name, kind in message.payloads().items()}
        for field in {**before, **after}:
            if before.get(field) != after.get(field):
                found.append(Change(title, direction, field, before.get(field, ""), after.get(field, "")))
    found += [Change(title, "up", f"the figure {name}", "", "Scalars") for name in layer.figures]
    return found or [Change(title, "", "nothing", "", "")]


def layer_changes(layers: Iterable[Layer], algorithms: Iterable[type[AnyAlgorithm]]) -> list[Change]:
    """What each layer changes, around the first of the algorithms that it can go around."""
    return [change for layer in layers for change in changes(_around_first(layer, algorithms))]


def withheld(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> frozenset[str]:
    """Fields that stay empty: of an algorithm with its hyper-parameters, those it says; of a class alone, none."""
    return algorithm.withheld if isinstance(algorithm, Algorithm) else frozenset()


def sends(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> list[str]:
    """The payload kinds that leave a client, in alphabetical order."""
    return sorted(kind.__name__ for kind in _sent(algorithm))


def leaves(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> list[str]:
    """The same with what any client may answer: its figures, and that it failed."""
    return sorted({*sends(algorithm), *ClientEvaluation.payloads().values(), *Trouble.payloads().values()})


def descriptions(algorithms: Iterable[AnyAlgorithm | type[AnyAlgorithm]]) -> dict[str, Description]:
    """Every payload kind that may cross in a run of these, in words."""
    messages: list[type[Message]] = [ClientEvaluation, Trouble]
    messages += [kind for each in algorithms if each.federated for kind in (*each.types.downs, *each.types.ups)]
    kinds = {kind for message in messages for kind in message.kinds().values()}
    return {kind.__name__: kind.description() for kind in sorted(kinds, key=lambda kind: kind.__name__)}


def _sent(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> set[type[Payload]]:
    kept, messages = withheld(algorithm), algorithm.types.ups if algorithm.federated else ()
    return {kind for message in messages for field, kind in message.kinds().items() if field not in kept}


def warning(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> str | None:
    """What a user has to be told before a run."""
    if algorithm.pools_faces:
        return f"{algorithm.name} pools the faces of all clients in one place: it is a comparison, not a private method"
    if algorithm.shows_others:
        return (
            f"{algorithm.name} shows every client the class embeddings of all others: it is a comparison, not private"
        )
    if templates := sorted(kind.__name__ for kind in _sent(algorithm) if kind.is_template):
        return f"{algorithm.name} sends {', '.join(templates)}: a biometric template of each person leaves the client"
    layers = layers_of(algorithm) if isinstance(algorithm, Algorithm) else ()
    hiding = [each.name for each in layers if each.hides_single_updates]
    if hiding:
        return f"{hiding[0]} hides single updates: the server checks none of them, and trusts its clients to be honest"
    return None


def seen_by_others(stage: Stage, eligible: int) -> str | None:
    """What clients see of each other in a stage with so many of them: in rounds that ask as few as its policy may."""
    if not stage.algorithm.federated or stage.algorithm.aggregates == "nothing":
        return None
    return seen_of_few(stage.selection.smallest(eligible, stage.rounds))


def markdown(algorithms: Iterable[type[AnyAlgorithm]], layers: Iterable[Layer] = ()) -> str:
    """`docs/reference/disclosure.md`. A layer is shown around the first of the algorithms that it can go around."""
    chosen = list(algorithms)
    stacks = [_around_first(layer, chosen) for layer in layers]
    lines = [PREAMBLE, "| algorithm | direction | field | payload |", "|---|---|---|---|"]
    lines += [f"| {item.algorithm} | {item.direction} | {item.field} | {item.payload} |" for item in crossings(chosen)]
    lines += ["", "| layer | direction | field | without it | with it |", "|---|---|---|---|---|"]
    told = [change for each in stacks for change in changes(each)]
    lines += [f"| {each.layer} | {each.direction} | {each.field} | {each.before} | {each.after} |" for each in told]
    lines += ["", "| payload | what it is |", "|---|---|"]
    lines += [f"| {name} | {each.meaning} |" for name, each in descriptions([*chosen, *stacks]).items()]
    lines += ["", "| algorithm | figures that its clients send |", "|---|---|"]
    lines += [f"| {each.name} | {', '.join(each.figures)} |" for each in chosen if each.federated]
    lines += ["", "| code of a failure | what it says |", "|---|---|"]
    lines += [f"| {problem.value} | {problem.words} |" for problem in Problem]
    notes = [f"- {text}" for algorithm in chosen if (text := warning(algorithm))]
    alone = [algorithm.name for algorithm in chosen if not algorithm.federated]
    notes += [f"- {name}: no client is asked in its rounds; evaluating it sends back figures alone" for name in alone]
    return "\n".join([*lines, "", *notes, ""])


def _around_first(layer: Layer, algorithms: Iterable[type[AnyAlgorithm]]) -> Layered:
    for kind in algorithms:
        with suppress(ValueError):
            return layer.around(kind())
    raise ValueError(f"layer {layer.name} goes around none of these")


def message_bytes(message: type[Message], expected: Expectation, without: frozenset[str] = frozenset()) -> int:
    """The size of a message before there is one, but for the fields that stay empty."""
    return sum(kind.expected_bytes(expected) for field, kind in message.kinds().items() if field not in without)
