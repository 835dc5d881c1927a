"""Rows that stand for people are found; rows that say nothing are not."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest

from attacked import evidence
from personae.algorithms import FedGC
from personae.core.layer import layered
from personae.layers import Centres
from personae.privacy.audit import PRIVACY_ATTACKS, Audit, Finding, read_audit, write_audit
from personae.privacy.audit.attack import means
from personae.privacy.audit.finding import share_interval
from personae.privacy.audit.templates import Templates

LAYER = Centres(clusters=2, multiplier=1.0)


def with_rows(rows_of):
    """Evidence whose server holds the rows that `rows_of` makes of the clients' trained photographs."""
    plain = evidence(clients=20, each=2)
    embedder = plain.embedder()
    true = means(embedder, [person.trained for person in plain.people])
    clients = {f"c{k}": rows_of(true[2 * k : 2 * k + 2]) for k in range(20)}
    return evidence(clients=20, each=2, templates={"ClassEmbeddings": clients})


def test_rows_that_are_sent_plainly_are_named():
    (found,) = Templates().findings(with_rows(lambda rows: 3 * rows))
    assert found.value >= 0.95
    assert found.beyond_chance
    assert found.trials == 40
    assert found.chance == 1 / 40


def test_rows_of_noise_are_not_named():
    random = torch.Generator().manual_seed(1)
    server = with_rows(lambda rows: rows)
    named = []
    for _ in range(20):
        noise = {client: torch.randn(2, 64, generator=random) for client in server.rows}
        (found,) = Templates().findings(replace(server, templates={"ClassEmbeddings": noise}))
        named.append(found.value)
    assert sum(named) / len(named) <= 2 * found.chance


def centres(rows_of, each=3):
    """Evidence of a server that has rows of groups of people, `each` at every client."""
    plain = evidence(clients=12, each=each)
    true = means(plain.embedder(), [person.trained for person in plain.people])
    groups = {f"c{k}": rows_of(true[each * k : each * (k + 1)]) for k in range(12)}
    return replace(plain, algorithm=layered(FedGC(), LAYER), templates={"NoisedCentres": groups})


def test_centres_with_little_noise_say_who_is_at_which_client():
    """Two centres for three people: one of a single person, one of two."""
    server = centres(lambda rows: torch.stack([rows[0], rows[1] + rows[2]]))
    (found,) = Templates().findings(server)
    assert found.target == "NoisedCentres, who is at which client"
    assert found.value > 20 * found.chance
    assert found.trials == 36
    assert found.chance == pytest.approx(1 / 34)


def test_as_many_centres_as_people_are_centres_all_the_same():
    (found,) = Templates().findings(centres(lambda rows: rows.flip(0)))
    assert found.target == "NoisedCentres, who is at which client"
    assert found.value >= 0.95


def test_centres_of_noise_say_nothing():
    random, named = torch.Generator().manual_seed(1), []
    for _ in range(20):
        (found,) = Templates().findings(centres(lambda rows: torch.randn(2, 64, generator=random)))
        named.append(found.value)
    assert sum(named) / len(named) <= 2 * found.chance


def test_no_rows_are_not_measured():
    empty = centres(lambda rows: rows[:0])
    assert "no client has sent any row of NoisedCentres" in Templates().findings(empty)[0].reason
    (found,) = Templates().findings(evidence())
    assert found.value is None
    assert "no vectors of single people" in found.reason


def test_every_attack_says_what_it_assumes():
    for kind in PRIVACY_ATTACKS.own.values():
        words = kind.described()
        assert all((words.name, words.has, words.tries, words.strength, kind.figure))


def test_an_audit_is_read_as_it_was_written(tmp_path):
    whole = Audit((Templates.described(),), Templates().findings(with_rows(lambda rows: rows)))
    write_audit(tmp_path, whole)
    assert read_audit(tmp_path) == whole
    assert read_audit(tmp_path / "elsewhere") is None
    other = replace(whole.findings[0], attack="other")
    again = Audit((), (replace(whole.findings[0], value=0.1),))
    assert Audit((), (*whole.findings, other)).followed_by(again) == Audit((), (other, *again.findings))


def test_an_area_tells_as_much_below_half_as_above():
    area = {"attack": "membership", "stage": "train", "target": "model", "value": 0.2, "chance": 0.5}
    assert Finding(**area, figure="AUC", low=0.1, high=0.3).beyond_chance
    assert not Finding(**area, figure="AUC", low=0.1, high=0.6).beyond_chance
    assert not Finding(**area, figure="rank-1", low=0.1, high=0.3).beyond_chance


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 120), (5, 10), (10, 10)])
def test_the_interval_of_a_share_is_exact(hits, trials):
    assert share_interval(hits, trials) == pytest.approx(tuple(binomtest(hits, trials).proportion_ci()), abs=1e-9)


def test_one_lucky_hit_is_not_beyond_chance():
    low, high = share_interval(1, 120)
    lucky = Finding(attack="membership", stage="train", target="model", figure="TPR", value=1 / 120, low=low, high=high)
    assert not replace(lucky, chance=0.001).beyond_chance
