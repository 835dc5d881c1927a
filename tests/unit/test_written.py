"""What is read from the text of modules is what they have once they are imported."""

from typing import get_args

import pytest

from personae.attacks import ATTACKS
from personae.parts.clustering.finch import Centroids
from personae.parts.clustering.methods import METHODS
from personae.parts.clustering.neighbours import Metric, Search
from personae.privacy.audit import PRIVACY_ATTACKS
from personae.privacy.audit.finding import known_attacks
from personae.reproduce.reproduce import Scale
from personae.reproduce.systems import SYSTEMS
from personae.runtime.coding import CODINGS
from personae.written import literal, options, register


def test_registers_have_the_names_of_their_registries_in_their_order():
    for package, variable, registry in (
        ("personae.attacks", "ATTACKS", ATTACKS),
        ("personae.privacy.audit", "PRIVACY_ATTACKS", PRIVACY_ATTACKS),
    ):
        assert list(register(package, variable).own) == list(registry.own)


def test_dictionaries_have_their_keys():
    assert options("personae.runtime.coding", "CODINGS") == list(CODINGS)
    assert options("personae.parts.clustering.methods", "METHODS") == list(METHODS)
    assert options("personae.reproduce.systems", "SYSTEMS") == list(SYSTEMS)


def test_literals_are_the_same():
    assert literal("personae.parts.clustering.neighbours", "Metric", "Search") == [Metric, Search]
    assert literal("personae.parts.clustering.finch", "Centroids") == [Centroids]
    assert options("personae.reproduce.reproduce", "Scale") == list(get_args(Scale))


def test_attacks_are_described_in_their_own_words():
    words = [(kind.name, kind.has, kind.tries, kind.strength) for kind in PRIVACY_ATTACKS.own.values()]
    assert [(each.name, each.has, each.tries, each.strength) for each in known_attacks()] == words


def test_what_is_not_written_out_has_no_options():
    for module, variable in (("personae.words", "counted"), ("personae.words", "nothing"), ("json", "dumps")):
        with pytest.raises(LookupError):
            options(module, variable)
        with pytest.raises(LookupError):
            register(module, variable)
