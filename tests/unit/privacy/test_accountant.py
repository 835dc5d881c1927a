"""Epsilon, computed again: from the formula of the Gaussian mechanism, by integration, and from published figures."""

import builtins
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from personae.algorithms import Adapt, Central, Cluster, FedGC, FedPE, Pretrain
from personae.core.events import PrivacySpent, TrainingRound
from personae.core.layer import layered
from personae.core.selection import Everybody, Selection
from personae.errors import ConfigError, QuorumLost
from personae.layers import Clip, LocalNoise, Noise, SecretSum
from personae.layers.people import People
from personae.privacy import accountant
from personae.privacy.accountant import Accountant, Budget
from personae.privacy.spent import in_words, spent
from personae.selection import BySamples, FixedCount, Growing, HighestLoss, Passes, Poisson, Share
from toys import stage_of

DELTA = 1e-5


def noised(multiplier: float, rounds: int, selection: Selection | None = None, name: str = "train", **options: Any):
    layer = Noise(norm=1.0, multiplier=multiplier, **options)
    return stage_of(layered(FedPE(), layer), name=name, rounds=rounds, selection=selection or Everybody())


def epsilon(*stages: Any, clients: int = 100, **budget: Any) -> float:
    accounts = Accountant(stages, {stage.name: clients for stage in stages}, Budget(delta=DELTA, **budget))
    (found,) = accounts.spent(stages[-1], stages[-1].rounds)
    return found.epsilon


def analytic(sigma: float, delta: float = DELTA) -> float:
    """Balle and Wang, 2018: the least epsilon of a Gaussian mechanism of sensitivity 1."""

    def excess(epsilon: float) -> float:
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return float(ndtr(near) - math.exp(epsilon) * ndtr(far)) - delta

    return float(brentq(excess, 1e-9, 200))


def integrated(rate: float, sigma: float, delta: float = DELTA) -> float:
    """One round of Poisson sampling: the hockey-stick divergence of both directions on a fine grid."""
    x = np.linspace(-40 * sigma, 40 * sigma + 1, 2_000_001)

    def density(centre: float) -> Any:
        return np.exp(-((x - centre) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    without, within = density(0), (1 - rate) * density(0) + rate * density(1)

    def excess(epsilon: float) -> float:
        ways = ((within, without), (without, within))
        return max(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x) for p, q in ways) - delta

    return float(brentq(excess, 1e-6, 50))


@pytest.mark.parametrize(("multiplier", "rounds"), [(0.7, 1), (2.0, 1), (5.0, 30), (20.0, 400)])
def test_everybody_in_every_round_is_a_gaussian_mechanism_with_less_noise(multiplier: float, rounds: int) -> None:
    exact = analytic(multiplier / math.sqrt(rounds))
    tight, loose = (epsilon(noised(multiplier, rounds), accountant=method) for method in ("pld", "rdp"))
    assert exact <= tight < 1.001 * exact
    assert tight < loose < 1.35 * exact


@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 1.0), (0.5, 2.0), (0.01, 0.6)])
def test_a_round_of_poisson_sampling_by_integration(rate: float, multiplier: float) -> None:
    found = epsilon(noised(multiplier, 1, Poisson(rate=rate)))
    assert found == pytest.approx(integrated(rate, multiplier), rel=2e-3)
    assert found < analytic(multiplier)


def test_many_rounds_of_poisson_sampling_by_moments() -> None:
    """The moments of Mironov, Talwar and Zhang (2019) at whole orders, and their conversion as by Canonne et al."""
    rate, sigma, rounds = 0.02, 1.1, 500

    def moment(order: int) -> float:
        logs = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * sigma**2)
            for k in range(order + 1)
        ]  # fmt: skip
        return float(np.logaddexp.reduce(logs)) / (order - 1)

    bound = min(
        rounds * moment(order) + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        for order in range(2, 64)
    )
    stage = noised(sigma, rounds, Poisson(rate=rate))
    by_moments, by_losses = (epsilon(stage, accountant=method) for method in ("rdp", "pld"))
    assert by_moments == pytest.approx(bound, rel=0.02)
    assert 0.8 * by_moments < by_losses < by_moments


def test_the_published_figure_of_the_moments_accountant() -> None:
    """Abadi et al. (2016), Section 3.1: q = 0.01, sigma = 4 and T = 10000 give epsilon 1.26 at delta 1e-5."""
    stage = noised(4.0, 10_000, Poisson(rate=0.01))
    assert 0.9 < epsilon(stage) < epsilon(stage, accountant="rdp") < 1.27


def test_a_fixed_number_without_replacement() -> None:
    """The general bound of Wang, Balle and Kasiviswanathan (2019), Theorem 9, for a sensitivity of 2."""
    cohort, of, sigma, rounds = 20, 1000, 3.0, 50
    rate, own = cohort / of, sigma / 2

    def moment(order: int) -> float:
        logs = [0.0, 2 * math.log(rate) + math.log(math.comb(order, 2))
                + min(math.log(4 * math.expm1(1 / own**2)), 1 / own**2 + math.log(2))]  # fmt: skip
        logs += [
            j * math.log(rate) + math.log(math.comb(order, j)) + (j - 1) * j / (2 * own**2) + math.log(2)
            for j in range(3, order + 1)
        ]
        return float(np.logaddexp.reduce(logs)) / (order - 1)

    bound = min(
        rounds * moment(order) + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        for order in range(2, 200)
    )
    stage = noised(sigma, rounds, FixedCount(clients=cohort))
    found = epsilon(stage, clients=of)
    assert found <= 1.001 * bound
    assert found > epsilon(noised(sigma, rounds, Poisson(rate=rate)), clients=of)
    assert found == epsilon(noised(sigma, rounds, Share(share=rate)), clients=of)


def test_cohorts_that_grow_cost_what_each_of_them_costs() -> None:
    growing = epsilon(noised(4.0, 3, Growing(first=10, last=30)))
    least, most = (epsilon(noised(4.0, 3, FixedCount(clients=number))) for number in (10, 30))
    assert least < growing < most


def test_who_is_asked_once_in_a_pass_pays_once() -> None:
    passes = Passes(clients=25)  # four cohorts of a hundred clients
    for rounds, times in ((4, 1), (5, 2), (12, 3)):
        assert epsilon(noised(3.0, rounds, passes)) == epsilon(noised(3.0, times))


def test_a_draw_of_everybody_is_no_draw() -> None:
    plain = epsilon(noised(3.0, 5))
    assert epsilon(noised(3.0, 5, Poisson(rate=1.0))) == plain
    assert epsilon(noised(3.0, 5, FixedCount(clients=100)), accountant="rdp") == epsilon(
        noised(3.0, 5), accountant="rdp"
    )


def stated(stage: Any, clients: int = 100, **more: Any) -> dict[str, PrivacySpent]:
    """By observer."""
    found = Accountant((stage,), {stage.name: clients}, Budget(delta=DELTA), **more).spent(stage, stage.rounds)
    return {each.against: each for each in found}


def test_noise_of_a_client_is_for_any_two_sets_of_faces_and_every_round() -> None:
    layer = LocalNoise(norm=1.0, multiplier=20.0)
    for selection in (Everybody(), Poisson(rate=0.1), FixedCount(clients=3)):
        found = stated(stage_of(layered(FedPE(), layer), rounds=9, selection=selection))
        assert found["server"].epsilon == pytest.approx(analytic(10.0 / 3), rel=1e-3)
        assert found["server"].noises == 0
    passes = stage_of(layered(FedPE(), layer), rounds=8, selection=Passes(clients=25))
    assert stated(passes)["server"].epsilon == pytest.approx(analytic(10.0 / math.sqrt(2)), rel=1e-3)


def test_a_sum_has_the_noise_of_all_who_must_answer_but_one() -> None:
    """Of a hundred clients the quorum is 80, and one of these may tell its noise: that of 79 is left."""
    layer = LocalNoise(norm=1.0, multiplier=3.0)
    (found,) = stated(stage_of(layered(FedPE(), layer, SecretSum()), rounds=9, quorum=0.8)).values()
    assert found.noises == 79
    assert found.epsilon == pytest.approx(analytic(3.0 / 2 * math.sqrt(79) / 3), rel=1e-3)
    assert in_words(found).startswith(
        f"epsilon {found.epsilon:.3g} at delta 1e-05 for each client, from the server, too, as long as 79 clients"
    )
    (plain,) = stated(stage_of(layered(FedPE(), layer), rounds=9, quorum=0.8)).values()  # updates are compared there
    assert plain.noises == 0
    assert plain.epsilon == pytest.approx(analytic(3.0 / 2 / 3), rel=1e-3)
    ten = stage_of(layered(FedPE(), LocalNoise(norm=1.0, multiplier=3.0, pooling=10), SecretSum()), quorum=0.8)
    assert stated(ten)["server"].noises == 70


def test_noise_in_a_sum_by_simulation() -> None:
    """79 independent noises of one client each have the deviation that the accounts say."""
    noise = np.random.default_rng(1).normal(0, 3.0, (79, 200_000)).sum(0)
    assert float(noise.std()) / 2 == pytest.approx(3.0 / 2 * math.sqrt(79), rel=0.01)


def test_of_a_number_left_to_chance_a_sum_counts_on_the_least() -> None:
    layer, drawn = LocalNoise(norm=1.0, multiplier=20.0), Poisson(rate=0.5)
    hidden = stated(stage_of(layered(FedPE(), layer, SecretSum(least=5)), rounds=9, selection=drawn))
    assert hidden["server"].noises == 4
    assert hidden["server"].epsilon == pytest.approx(analytic(10 * 2 / 3), rel=1e-3)


def test_a_round_without_the_noise_that_was_counted_on_is_refused() -> None:
    stage = stage_of(layered(FedPE(), LocalNoise(norm=1.0, multiplier=3.0), SecretSum()), rounds=9, quorum=0.8)
    accounts = Accountant((stage,), {stage.name: 10}, Budget(delta=DELTA))
    accounts.require(stage, 1, 10)
    with pytest.raises(QuorumLost, match="at least 7 clients, and with 8 who are asked it may be that of 6"):
        accounts.require(stage, 1, 8)
    fewer = Accountant((stage,), {stage.name: 10}, Budget(delta=DELTA), absent={stage.name: 2})
    fewer.require(stage, 1, 8)
    assert fewer.spent(stage, 9)[0].noises == 6
    assert fewer.spent(stage, 9)[0].epsilon > accounts.spent(stage, 9)[0].epsilon


def for_people(multiplier: float, rounds: int, selection: Selection | None = None, share: float = 1.0) -> Any:
    return noised(multiplier, rounds, selection, people=People(expected=4, share=share))


@pytest.mark.parametrize("selection", [Everybody(), Poisson(rate=0.1), FixedCount(clients=3)])
def test_people_pay_in_every_round_in_which_their_client_may_be_asked(selection: Selection) -> None:
    (found,) = stated(for_people(6.0, 9, selection)).values()
    assert (found.unit, found.against) == ("person", "readers")
    assert found.epsilon == pytest.approx(analytic(2.0), rel=1e-3)
    assert "for each person, from whoever gets the models, as long as the server is trusted" in in_words(found)
    assert "took part" not in in_words(found)
    (once,) = stated(for_people(6.0, 4, Passes(clients=25))).values()
    assert once.epsilon == pytest.approx(analytic(6.0), rel=1e-3)


def test_a_draw_of_clients_does_not_hide_people_whose_neighbours_show() -> None:
    """With probability 0.1 a client is drawn, and the others there shift the sum far: who sees it knows of the draw.

    At the epsilon that is stated, the divergence of both runs is below delta. At one that counts the draw, it is not.
    """
    rate, sigma, far = 0.1, 1.5, 40.0
    x = np.linspace(-12, 60, 2_000_001)

    def density(centre: float) -> Any:
        return np.exp(-((x - centre) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    rest = (1 - rate) * density(0)
    with_person, without = rest + rate * density(far + 1), rest + rate * density(far)

    def divergence(epsilon: float) -> float:
        return float(np.trapezoid(np.maximum(with_person - math.exp(epsilon) * without, 0), x))

    (found,) = stated(for_people(sigma, 1, Poisson(rate=rate))).values()
    assert divergence(found.epsilon) <= DELTA
    assert divergence(epsilon(noised(sigma, 1, Poisson(rate=rate)))) > 100 * DELTA


@pytest.mark.parametrize("cohorts_known", [False, True])
def test_people_whom_a_client_draws_secretly_pay_less(cohorts_known: bool) -> None:
    (found,) = stated(for_people(1.0, 1, share=0.1), cohorts_known=cohorts_known).values()
    assert found.epsilon == pytest.approx(integrated(0.1, 1.0), rel=2e-3)
    layer = LocalNoise(norm=1.0, multiplier=1.0, people=People(expected=4, share=0.1))
    for layers, noise in (((layer,), 1.0), ((layer, SecretSum()), math.sqrt(49))):
        local = stage_of(layered(FedPE(), *layers), rounds=1)
        (at_client,) = stated(local, cohorts_known=cohorts_known).values()
        assert at_client.epsilon == pytest.approx(integrated(0.1, noise), rel=5e-3)


def test_draws_of_people_and_of_a_fixed_number_of_clients_are_two_units() -> None:
    people, clients = for_people(2.0, 2, share=0.5), noised(2.0, 2, FixedCount(clients=3), name="b")
    found = Accountant((people, clients), {"train": 9, "b": 9}).spent(clients, 2)
    assert {(each.unit, each.complete) for each in found} == {("person", False), ("client", False)}


def test_who_knows_the_cohorts_gains_nothing_from_sampling() -> None:
    stage = noised(3.0, 4, Poisson(rate=0.1))
    (known,) = Accountant((stage,), {"train": 100}, cohorts_known=True).spent(stage, 4)
    assert known.epsilon == pytest.approx(analytic(1.5), rel=1e-3)
    passes = noised(3.0, 8, Passes(clients=25))
    (known,) = Accountant((passes,), {"train": 100}, cohorts_known=True).spent(passes, 8)
    assert known.epsilon == pytest.approx(analytic(3 / math.sqrt(2)), rel=1e-3)


def test_stages_add_up() -> None:
    first, second = noised(4.0, 3, name="first"), noised(6.0, 5, name="second")
    exact = analytic((3 / 16 + 5 / 36) ** -0.5)
    assert epsilon(first, second) == pytest.approx(exact, rel=1e-3)
    assert epsilon(stage_of(Pretrain(), name="public"), first, second) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("selection", [BySamples(clients=2), HighestLoss(clients=2, candidates=4)])
def test_choices_by_what_clients_hold_are_refused(selection: Selection) -> None:
    """A stage refuses them already, since nothing is sent to choose by; an accountant would, too."""
    with pytest.raises(ConfigError, match="does not disclose"):
        noised(1.0, 2, selection)

    class Unsaid(FixedCount):
        def draw(self, eligible: int, round_: int, rounds: int) -> None:  # type: ignore[override]
            return None

    with pytest.raises(ConfigError, match="stage train: epsilon cannot be stated, since selection count may choose"):
        epsilon(noised(1.0, 2, Unsaid(clients=2)))
    assert selection.draw(10, 1, 2) is None


def test_two_kinds_of_draws_have_no_accountant() -> None:
    stages = noised(2.0, 2, Poisson(rate=0.1), name="a"), noised(2.0, 2, FixedCount(clients=3), name="b")
    with pytest.raises(ConfigError, match="no accountant has both"):
        epsilon(*stages)


def test_a_run_without_noise_has_no_epsilon() -> None:
    stage = stage_of(layered(FedPE(), Clip(norm=1.0)), rounds=2)
    assert Accountant((stage,), {stage.name: 4}).spent(stage, 2) == []
    assert spent([TrainingRound(stage="a", round=1, participants=(), rejected={}, failed={}, scalars={})]) == []


def test_what_leaves_without_noise_in_any_stage_is_said() -> None:
    plain, last = stage_of(FedPE(), name="plain"), noised(4.0, 2, name="last")
    for others, complete in (
        ((plain,), False),
        ((stage_of(Central(), name="pooled"),), False),
        ((stage_of(Pretrain(), name="public"), stage_of(Cluster(), name="figures")), True),
        ((stage_of(Adapt(), name="alone"),), True),
    ):
        recipe = (*others, last)
        accounts = Accountant(recipe, {stage.name: 9 for stage in recipe})
        (found,) = accounts.spent(last, 2)
        assert found.complete is complete
        assert ("; none for" in in_words(found)) is not complete
    assert Accountant((last, plain), {"last": 9, "plain": 9}).spent(plain, 1)[0].complete is False


def test_words_name_what_no_noise_covers_and_what_is_assumed() -> None:
    recipe = (stage_of(Central(), name="pooled"), noised(4.0, 2, Poisson(rate=0.5), name="last"))
    (found,) = Accountant(recipe, {"pooled": 0, "last": 9}).spent(recipe[-1], 2)
    assert in_words(found).endswith(
        "as long as the server is trusted and nobody knows who took part; none for the faces of all clients of stage "
        "pooled"
    )
    everybody = noised(4.0, 2)
    assert "took part" not in in_words(Accountant((everybody,), {"train": 9}).spent(everybody, 2)[0])


def test_a_budget_ends_a_stage_before_it_is_exceeded() -> None:
    stage = noised(5.0, 100)
    accounts = Accountant((stage,), {"train": 10}, Budget(epsilon=4.0, delta=DELTA))
    last = accounts.affordable(stage)
    assert analytic(5 / math.sqrt(last)) <= 4 < analytic(5 / math.sqrt(last + 1))
    assert accounts.spent(stage, last)[0].epsilon <= 4 < accounts.spent(stage, last + 1)[0].epsilon
    remark = accounts.remark(stage)
    assert remark is not None
    assert remark.startswith(f"stage train stops after round {last} of 100: the budget is epsilon 4 at delta 1e-05")
    assert Accountant((stage,), {"train": 10}, Budget(epsilon=40.0)).remark(stage) is None


def test_the_outlook_is_of_the_whole_run_within_its_budget() -> None:
    stage, plain = noised(5.0, 100), stage_of(Pretrain(), name="public")
    accounts = Accountant((plain, stage), {"public": 0, "train": 10}, Budget(epsilon=4.0, delta=DELTA))
    words, early = accounts.outlook()
    assert words == in_words(accounts.spent(stage, accounts.affordable(stage))[0])
    assert early == accounts.remark(stage)
    assert Accountant((plain,), {"public": 0}).outlook() == []


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"budget: stage plain sends ModelState without noise"):
        epsilon(stage_of(FedPE(), name="plain"), noised(5.0, 3), epsilon=8.0)
    with pytest.raises(ConfigError, match=r"budget: stage pooled sends the faces of all clients"):
        epsilon(stage_of(Central(), name="pooled"), epsilon=8.0)
    with pytest.raises(ConfigError, match=r"nothing of epsilon 1 is left for stage train"):
        epsilon(noised(0.5, 3), epsilon=1.0)
    for wrong in ({"epsilon": 0.0}, {"delta": 0.0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match="it must be"):
            Budget(**wrong)


def test_hardly_any_noise_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"stage train: no finite epsilon follows from so little noise"):
        Accountant((noised(1e-6, 3),), {"train": 10})


def test_class_embeddings_are_no_part_of_a_budget() -> None:
    with pytest.raises(ConfigError, match="sends ModelState, ClassEmbeddings without noise"):
        epsilon(stage_of(FedGC()), epsilon=8.0)


def test_the_last_word_of_the_records_is_what_was_spent() -> None:
    stage = noised(5.0, 3)
    accounts = Accountant((stage,), {"train": 10})
    events: list[PrivacySpent] = [event for round_ in (1, 2, 3) for event in accounts.spent(stage, round_)]
    assert spent(events) == accounts.spent(stage, 3)
    assert [event.epsilon for event in events] == sorted({event.epsilon for event in events})
    assert in_words(events[0]).startswith(f"epsilon {events[0].epsilon:.3g} at delta 1e-05 for each client")


def test_without_the_extra_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **others: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest, **others)

    accountant._epsilon.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"personae\[privacy\]"):
        epsilon(noised(5.0, 3))
