"""Who is left out of an experiment: a client, or a person of a client.

A client that is forgotten keeps its place. It may be drawn in a round, and is not asked: all others do what they would
do if it never answered. Nobody holds its faces.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from personae.data import FaceSet, Partition
from personae.data.holdings import NOBODY
from personae.errors import ConfigError, DataError
from personae.experiment.section import Section
from personae.files import read_json

MARK = "blake2b:"


class Forgotten(Section):
    """One that was forgotten: a client, or one of the people whose faces it had."""

    client: str = Field(min_length=1)  # its name
    person: str | None = None  # a digest of the name of this person; without it, the client as a whole


def pseudonym(client: str, person: str) -> str:
    """What stands for a person's name in files. It hides the name from readers, not from whoever guesses it."""
    key = hashlib.blake2b(client.encode(), digest_size=16).digest()
    return MARK + hashlib.blake2b(person.encode(), key=key, digest_size=16).hexdigest()


def forgotten_in(run: Path) -> tuple[Forgotten, ...]:
    """Whom a run was made to forget: that holds for as long as it is resumed."""
    try:
        return read_json(
            run / "config.json", lambda known: tuple(Forgotten(**each) for each in known.get("forgotten", ()))
        )
    except DataError:
        return ()  # no run, or a damaged one, of which whoever opens it will tell


def absent(forgotten: Iterable[Forgotten]) -> frozenset[str]:
    """The clients that are not asked."""
    return frozenset(each.client for each in forgotten if each.person is None)


def people_of(partition: Partition, faces: FaceSet, client: str) -> dict[str, int]:
    """The people whose faces a client holds, by name, with their codes."""
    held = partition.rows(client)
    codes = np.unique(faces.identity[held[faces.labelled[held]]]).tolist()
    return {faces.identities[code]: code for code in codes}


def without(partition: Partition, faces: FaceSet, forgotten: Sequence[Forgotten]) -> Partition:
    """The same partition, in which nobody holds the faces of those who are forgotten."""
    if not forgotten:
        return partition
    holder = partition.client.copy()
    for each in forgotten:
        if each.client not in partition.clients:
            raise ConfigError(f"forgotten: no client is called {each.client!r}")
        rows = partition.rows(each.client)
        if each.person is not None:
            people = people_of(partition, faces, each.client)
            codes = [code for name, code in people.items() if each.person in (name, pseudonym(each.client, name))]
            if not codes:
                raise ConfigError(f"forgotten: {each.client} holds nobody of the name behind {each.person}")
            rows = rows[np.isin(faces.identity[rows], codes)]
        holder[rows] = NOBODY
    return replace(partition, client=holder)
