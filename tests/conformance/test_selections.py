"""One suite over every policy of who is asked in a round, and what each of them promises."""

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch

from personae.algorithms import Cluster, FedPE, Pretrain, Unsupervised
from personae.core.algorithm import ClientInfo
from personae.core.selection import Everybody, Occasion, Selection
from personae.errors import ConfigError
from personae.selection import SELECTIONS, BySamples, FixedCount, Growing, HighestLoss, Passes, Poisson, Share
from toys import Rehearsal, cut_off, quickly, stage_of

POLICIES: dict[str, Selection] = {
    "all": Everybody(),
    "share": Share(share=0.4),
    "count": FixedCount(clients=3),
    "poisson": Poisson(rate=0.5),
    "growing": Growing(first=1, last=6),
    "passes": Passes(clients=3),
    "by-samples": BySamples(clients=3),
    "highest-loss": HighestLoss(clients=2, candidates=4),
}
CLIENTS = [ClientInfo(f"c{index}", index) for index in range(7)]
KNOWN = {client.name: {"samples": 1.0 + client.index, "loss": 5.0 - client.index} for client in CLIENTS[:5]}
ROUNDS = 9


def occasion(round_: int = 1, **options) -> Occasion:
    return Occasion(**{"clients": CLIENTS, "seed": 3, "stage": "train", "round": round_, "rounds": ROUNDS, **options})


def test_every_registered_policy_is_here():
    assert POLICIES.keys() == SELECTIONS.keys()
    assert {name: type(policy) for name, policy in POLICIES.items()} == SELECTIONS


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
class TestConformance:
    @pytest.mark.parametrize("known", [{}, KNOWN], ids=["nothing known", "known"])
    def test_as_many_as_it_says_each_once_and_in_order(self, policy: Selection, known) -> None:
        for round_ in range(1, ROUNDS + 1):
            for eligible in (1, 2, 7):
                chosen = policy.select(occasion(round_, clients=CLIENTS[:eligible], known=known))
                assert policy.count(eligible, round_, ROUNDS) >= 1
                if not isinstance(policy, Poisson):  # which leaves it to chance
                    assert len(chosen) == policy.count(eligible, round_, ROUNDS)
                assert [client.index for client in chosen] == sorted({client.index for client in chosen})
                assert set(chosen) <= set(CLIENTS[:eligible])

    @pytest.mark.parametrize("eligible", [1, 2, 7])
    def test_no_round_asks_fewer_than_the_smallest_cohort(self, policy: Selection, eligible: int) -> None:
        rounds = range(1, ROUNDS + 1)
        cohorts = [len(policy.select(occasion(each, clients=CLIENTS[:eligible]))) for each in rounds]
        asked = [cohort for cohort in cohorts if cohort]  # a policy that leaves it to chance may ask nobody
        assert min(asked) >= policy.smallest(eligible, ROUNDS)
        if not isinstance(policy, Poisson):
            assert min(asked) == policy.smallest(eligible, ROUNDS)

    def test_the_same_occasion_gives_the_same_clients(self, policy: Selection) -> None:
        again = pickle.loads(pickle.dumps(policy))
        assert again == policy
        rounds = [policy.select(occasion(round_, known=KNOWN)) for round_ in range(1, ROUNDS + 1)]
        assert [again.select(occasion(round_, known=KNOWN)) for round_ in range(1, ROUNDS + 1)] == rounds
        if not isinstance(policy, Everybody):
            assert [policy.select(occasion(round_, known=KNOWN, seed=4)) for round_ in range(1, ROUNDS + 1)] != rounds

    def test_a_run_resumes_to_the_same_bits(self, policy: Selection, tmp_path: Path) -> None:
        def rehearse(folder: str) -> Rehearsal:
            return Rehearsal(tmp_path / folder, (stage_of(quickly(FedPE()), rounds=4, selection=policy),))

        whole, again = rehearse("whole").run(), cut_off(rehearse("cut"), after=2).run()
        assert again.files() == whole.files()
        assert again.notebook.rounds() == whole.notebook.rounds()


def test_a_pass_asks_everybody_once() -> None:
    policy, rounds = Passes(clients=3), [occasion(round_) for round_ in range(1, 10)]
    asked = [policy.select(each) for each in rounds]
    assert [len(each) for each in asked] == [2, 2, 3] * 3
    orders = []
    for begin in (0, 3, 6):
        names = [client.name for cohort in asked[begin : begin + 3] for client in cohort]
        assert Counter(names) == Counter(client.name for client in CLIENTS)
        orders.append(names)
    assert len(set(map(tuple, orders))) == 3  # each pass in an order of its own


def test_a_pass_of_pairs_over_an_odd_number_has_rounds_of_one() -> None:
    assert Passes(clients=2).smallest(6, 18) == 2
    assert Passes(clients=2).smallest(7, 18) == 1
    assert Passes(clients=2).smallest(2, 18) == 2


def test_chance_may_leave_one_client() -> None:
    assert Poisson(rate=0.9).smallest(100, 5) == 1
    assert Poisson(rate=1.0).smallest(100, 5) == 100


def test_a_cohort_grows_in_equal_steps() -> None:
    assert [Growing(first=2, last=10).count(36, round_, 5) for round_ in range(1, 6)] == [2, 4, 6, 8, 10]
    assert [Growing(first=2, last=10).count(7, round_, 5) for round_ in range(1, 6)] == [2, 4, 6, 7, 7]
    assert Growing(first=2, last=10).count(36, 1, 1) == 10


def test_those_with_more_samples_are_asked_more_often() -> None:
    known = {"c0": {"samples": 1.0, "loss": 0.0}, "c1": {"samples": 9.0, "loss": 0.0}}
    asked = Counter(
        client.name
        for round_ in range(1, 2001)
        for client in BySamples(clients=1).select(occasion(round_, clients=CLIENTS[:3], known=known))
    )
    for name, weight in {"c0": 1, "c1": 9, "c2": 5}.items():  # nothing is known of c2: the mean of the others
        share = weight / 15
        assert abs(asked[name] / 2000 - share) < 4 * (share * (1 - share) / 2000) ** 0.5


def test_each_client_is_drawn_for_itself() -> None:
    asked = [{client.index for client in Poisson(rate=0.3).select(occasion(round_))} for round_ in range(1, 4001)]
    for first in range(7):
        assert abs(sum(first in each for each in asked) / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
        for second in range(first):
            both = sum({first, second} <= each for each in asked) / 4000
            assert abs(both - 0.09) < 4 * (0.09 * 0.91 / 4000) ** 0.5
    assert abs(sum(not each for each in asked) / 4000 - 0.7**7) < 4 * (0.7**7 / 4000) ** 0.5  # nobody at all


def test_a_round_in_which_nobody_is_asked_moves_nothing(tmp_path: Path) -> None:
    seldom = stage_of(quickly(FedPE()), rounds=2, selection=Poisson(rate=1e-6))
    run = Rehearsal(tmp_path, (seldom,)).run()
    assert [event["participants"] for event in run.notebook.rounds()] == [[], []]
    assert torch.equal(run.final(), run.federation.backbone().state().flat)


def test_the_highest_loss_of_the_candidates() -> None:
    everybody = HighestLoss(clients=3, candidates=7)
    assert [client.name for client in everybody.select(occasion(known=KNOWN))] == ["c0", "c5", "c6"]  # two are unheard
    some = HighestLoss(clients=1, candidates=2)
    known = {client.name: {"samples": 1.0, "loss": float(client.index)} for client in CLIENTS}
    asked = Counter(some.select(occasion(round_, known=known))[0].index for round_ in range(1, 2001))
    assert asked[0] == 0  # whoever is drawn beside it has a higher loss
    for index in range(1, 7):  # the higher of two distinct numbers below 7 is this one in index of 21 cases
        share = index / 21
        assert abs(asked[index] / 2000 - share) < 4 * (share * (1 - share) / 2000) ** 0.5


def test_the_engine_tells_a_policy_what_clients_said(tmp_path: Path) -> None:
    """Everybody is heard in the first two rounds; then those two whose last loss was highest are asked."""
    seen: list[Occasion] = []

    class Watching(HighestLoss):
        def select(self, occasion: Occasion) -> list[ClientInfo]:
            seen.append(occasion)
            return super().select(occasion)

    stage = stage_of(quickly(FedPE()), rounds=5, selection=Watching(clients=2, candidates=4))
    rounds = Rehearsal(tmp_path, (stage,)).run().notebook.rounds()
    assert [len(each.known) for each in seen] == [0, 2, 4, 4, 4]
    assert sorted(rounds[0]["participants"] + rounds[1]["participants"]) == ["ann", "bob", "eve", "zoe"]
    for each, event in zip(seen[2:], rounds[2:], strict=True):
        highest = sorted(each.known, key=lambda name: each.known[name]["loss"], reverse=True)[:2]
        assert event["participants"] == sorted(highest)


@pytest.mark.parametrize(
    ("algorithm", "policy", "missing"),
    [
        (Unsupervised(), BySamples(clients=1), "samples of clients, which unsupervised does not disclose"),
        (Cluster(), BySamples(clients=1), "samples of clients, which cluster does not disclose"),
    ],
)
def test_what_clients_do_not_say_is_no_ground_to_choose_them(algorithm, policy: Selection, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        stage_of(algorithm, selection=policy)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Share, {"share": 0.0}),
        (Share, {"share": 1.5}),
        (Poisson, {"rate": 0.0}),
        (Poisson, {"rate": 1.01}),
        (FixedCount, {"clients": 0}),
        (Passes, {"clients": 0}),
        (BySamples, {"clients": 0}),
        (Growing, {"first": 0, "last": 2}),
        (Growing, {"first": 3, "last": 2}),
        (HighestLoss, {"clients": 3, "candidates": 2}),
    ],
)
def test_impossible_settings_are_refused(kind, options) -> None:
    with pytest.raises(ValueError, match=r"at least 1|must be in|must not exceed"):
        kind(**options)


def test_a_stage_that_asks_nobody_selects_nobody() -> None:
    with pytest.raises(ConfigError, match="selection is for federated stages; pretrain is none"):
        stage_of(Pretrain(), selection=FixedCount(clients=1))
