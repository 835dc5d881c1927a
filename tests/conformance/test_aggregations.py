"""One suite over every rule of how vectors become one, and each computed again independently."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from personae.aggregation import (
    AGGREGATIONS,
    PREPARATIONS,
    Bucketing,
    Clip,
    GeometricMedian,
    Grouped,
    Mean,
    Median,
    MultiKrum,
    Prepared,
    TrimmedMean,
    stack,
)
from personae.algorithms import ALGORITHMS, Adapt, Central, Cluster, FedPE, Pretrain, QFedAvg, Unsupervised
from personae.core.aggregation import Aggregation, Workbench
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.layers import Carry
from personae.runtime.firewall import Firewall
from personae.selection import FixedCount
from toys import Crowd, Rehearsal, Troubled, cut_off, quickly, stage_of

RULES: dict[str, Aggregation] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed-mean": TrimmedMean(cut=0.25),
    "geometric-median": GeometricMedian(),
    "multi-krum": MultiKrum(faulty=1),
    "grouped": Grouped(),
}
ALONE = {"unsupervised": Unsupervised(strength=0.0)}  # these toys have no source
AROUND = torch.linspace(-1, 1, 50)


def vectors(count: int, seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [AROUND + torch.randn(50, generator=noise) * (1 + index % 3) for index in range(count)]


def combined(rule: Aggregation, given: list[Tensor], seed: int = 0, weights: list[float] | None = None) -> Tensor:
    pairs = zip(given, weights or [1.0] * len(given), strict=True)
    return rule.combine(pairs, AROUND, Workbench(torch.Generator().manual_seed(seed)))


def test_every_registered_rule_is_here():
    assert {name: type(rule) for name, rule in RULES.items()} == AGGREGATIONS
    assert {"clip": Clip, "bucketing": Bucketing} == PREPARATIONS


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
class TestConformance:
    def test_equal_vectors_stay_as_they_are(self, rule: Aggregation) -> None:
        (one,) = vectors(1)
        assert torch.allclose(combined(rule, [one.clone() for _ in range(5)]), one, atol=1e-6)

    def test_the_order_of_clients_does_not_matter(self, rule: Aggregation) -> None:
        given = vectors(7)
        assert torch.allclose(combined(rule, given), combined(rule, given[::-1]), atol=1e-5)

    def test_moved_vectors_move_the_result(self, rule: Aggregation) -> None:
        given, way = vectors(7), torch.randn(50, generator=torch.Generator().manual_seed(9))
        moved = rule.combine(((each + way, 1.0) for each in given), AROUND + way, Workbench())
        assert torch.allclose(moved, combined(rule, given) + way, atol=1e-4)

    def test_blocks_of_any_size_give_the_same(self, rule: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
        given = vectors(7)
        whole = combined(rule, given)
        for columns in (1, 7, 50):
            monkeypatch.setattr(stack, "BLOCK", 4 * 7 * columns)
            assert torch.allclose(combined(rule, given), whole, atol=1e-6)

    def test_nothing_cannot_be_combined(self, rule: Aggregation) -> None:
        with pytest.raises(ValueError, match="nothing to a"):
            combined(rule, [])

    def test_it_is_plain_settings(self, rule: Aggregation) -> None:
        assert pickle.loads(pickle.dumps(rule)) == rule

    def test_nothing_is_left_on_disk(self, rule: Aggregation, tmp_path: Path) -> None:
        rule.combine(((each, 1.0) for each in vectors(3)), AROUND, Workbench(scratch=tmp_path / "bench"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_median_and_trimmed_mean_against_numpy_and_scipy(count: int) -> None:
    given = vectors(count)
    matrix = torch.stack(given).double().numpy()
    np.testing.assert_allclose(combined(Median(), given), np.median(matrix, axis=0), atol=1e-6)
    for cut in (0.0, 0.125, 0.3, 0.49):
        wanted = scipy.stats.trim_mean(matrix, cut, axis=0)
        np.testing.assert_allclose(combined(TrimmedMean(cut=cut), given), wanted, atol=1e-6)


def test_a_group_of_like_steps_is_one_voice_of_the_trimmed_mean() -> None:
    """Two of ten want the same: with half a voice each they are what the trimmed mean makes of nine vectors."""
    source = torch.Generator().manual_seed(3)
    length = 4000
    around = torch.zeros(length)
    honest = [torch.randn(length, generator=source) for _ in range(8)]
    wanted = torch.randn(length, generator=source)
    both = [wanted + 0.3 * torch.randn(length, generator=source) for _ in range(2)]
    found = Grouped(trimmed=0.2).combine(((each, 1.0) for each in (*honest, *both)), around, Workbench())
    middle = torch.stack([*honest, *both]).norm(dim=1).quantile(0.5, interpolation="lower")
    steps = [each * min(1.0, float(middle / each.norm())) for each in (*honest, *both)]
    voices = torch.stack([*steps[:8], (steps[8] + steps[9]) / 2]).double().numpy()
    np.testing.assert_allclose(found, scipy.stats.trim_mean(voices, 0.2, axis=0), atol=1e-5)


def test_a_voice_that_ruins_the_model_is_not_heard() -> None:
    given = vectors(6)
    given[2] = AROUND + 50.0
    bench = Workbench(judge=lambda model: 0.5 if float((model - AROUND).mean()) > 1 else 0.9)
    lengths = torch.stack([each - AROUND for each in given]).double().norm(dim=1)
    kept = [
        AROUND + (each - AROUND) * min(1.0, float(lengths.median() / length))
        for index, (each, length) in enumerate(zip(given, lengths, strict=True))
        if index != 2
    ]
    found = Grouped(trimmed=0.2).combine(((each, 1.0) for each in given), AROUND, bench)
    wanted = scipy.stats.trim_mean(torch.stack(kept).double().numpy(), 0.2, axis=0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_only_weights_decide_who_is_alike() -> None:
    """Statistics of BatchNorm, behind the weights, are larger by far and alike among honest clients."""
    source = torch.Generator().manual_seed(3)
    weights = [torch.randn(500, generator=source) for _ in range(8)]
    given = [torch.cat([each, torch.full((20,), 100.0 * (index < 2))]) for index, each in enumerate(weights)]
    bench = Workbench(weights=500)
    found = Grouped(trimmed=0.0).combine(((each, 1.0) for each in given), torch.zeros(520), bench)
    middle = torch.stack(weights).norm(dim=1).median()
    mean = torch.stack([each * min(1.0, float(middle / each.norm())) for each in weights]).mean(0)
    torch.testing.assert_close(found[:500], mean, atol=1e-5, rtol=1e-4)


def test_geometric_median_against_an_optimiser() -> None:
    given = vectors(9)
    matrix = torch.stack(given).double().numpy()

    def total(point: np.ndarray) -> tuple[float, np.ndarray]:
        away = point - matrix
        distances = np.linalg.norm(away, axis=1)
        return distances.sum(), (away / distances[:, None]).sum(axis=0)

    best = scipy.optimize.minimize(total, matrix.mean(axis=0), jac=True, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(combined(GeometricMedian(), given), best.x, atol=1e-5)


def test_the_geometric_median_on_a_line_is_the_median() -> None:
    along = torch.randn(50, generator=torch.Generator().manual_seed(1))
    given = [AROUND + step * along for step in (-2.0, 0.0, 0.5, 3.0, 100.0)]
    assert torch.allclose(combined(GeometricMedian(), given), AROUND + 0.5 * along, atol=1e-3)


@pytest.mark.parametrize("faulty", [0, 1, 3])
def test_multi_krum_by_brute_force(faulty: int) -> None:
    given = vectors(8)
    kept = len(given) - faulty
    scores = []
    for one in given:
        distances = sorted(float((one.double() - other.double()).square().sum()) for other in given)
        scores.append(sum(distances[:kept]))
    chosen = sorted(range(len(given)), key=lambda index: scores[index])[:kept]
    wanted = torch.stack([given[index].double() for index in chosen]).mean(dim=0).float()
    assert torch.allclose(combined(MultiKrum(faulty=faulty), given), wanted, atol=1e-6)


@pytest.mark.parametrize(("left", "faulty"), [(4, 1), (3, 1), (2, 0), (1, 0)])
def test_multi_krum_goes_on_when_updates_were_refused(left: int, faulty: int) -> None:
    """With faulty = 2 it takes five. Of fewer it leaves out as many as are less than half of them."""
    given = vectors(left)
    assert torch.equal(combined(MultiKrum(faulty=2), given), combined(MultiKrum(faulty=faulty), given))


def test_no_client_ends_a_run_of_multi_krum_by_an_update_that_is_refused(tmp_path: Path) -> None:
    stage = stage_of(quickly(Troubled(trouble=(("bob", "nan"),))), aggregation=MultiKrum(faulty=1))
    run = Rehearsal(tmp_path, (stage,), holdings=Crowd(("ann", "bob", "eve"))).run()
    assert [set(event["rejected"]) for event in run.notebook.rounds()] == [{"bob"}, {"bob"}]


def test_rules_agree_with_byzfl_where_it_is_installed() -> None:
    aggregators = pytest.importorskip("byzfl.aggregators.aggregators", reason="ByzFL needs torchvision")
    given = vectors(9)
    matrix = torch.stack(given).double()
    pairs = {
        "median": (Median(), aggregators.Median()),
        "trimmed-mean": (TrimmedMean(cut=2 / 9), aggregators.TrMean(2)),
        "multi-krum": (MultiKrum(faulty=2), aggregators.MultiKrum(2)),
        "geometric-median": (GeometricMedian(), aggregators.GeometricMedian(1e-9, 2000)),
    }
    for name, (ours, theirs) in pairs.items():
        assert torch.allclose(combined(ours, given).double(), theirs(matrix).double(), atol=1e-5), name


def test_clipping() -> None:
    near, far = AROUND + 0.01, AROUND + 100.0
    rule = Prepared(rule=Mean(), before=(Clip(norm=2.0),))
    pulled = AROUND + 2.0 / 50**0.5
    assert torch.allclose(combined(rule, [far]), pulled, atol=1e-5)
    assert torch.equal(combined(rule, [near]), near)
    assert torch.allclose(combined(rule, [near, far], weights=[1.0, 3.0]), (near + 3 * pulled) / 4, atol=1e-5)


def test_bucketing_takes_everybody_once_and_keeps_the_mean() -> None:
    given, weights = vectors(7), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    bench = Workbench(torch.Generator().manual_seed(3))
    buckets = list(Bucketing(size=3).apply(zip(given, weights, strict=True), AROUND, bench))
    assert sorted(weight for _, weight in buckets)[0] <= 7
    assert sum(weight for _, weight in buckets) == 28
    assert len(buckets) == 3
    plain = combined(Mean(), given, weights=weights)
    rule = Prepared(rule=Mean(), before=(Bucketing(size=3),))
    assert torch.allclose(combined(rule, given, weights=weights), plain, atol=1e-5)
    pairs = Prepared(rule=Median(), before=(Bucketing(),))
    assert len({tuple(combined(pairs, given, seed).tolist()) for seed in range(5)}) > 1  # who shares one is drawn


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule != Mean()], ids=lambda rule: rule.name)
def test_one_client_that_sends_anything_does_not_decide(rule: Aggregation) -> None:
    honest = [AROUND + 0.1 * torch.randn(50, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    result = combined(rule, [*honest, AROUND + 1e6])
    assert float((result - AROUND).norm()) < 2.0
    assert float((combined(Mean(), [*honest, AROUND + 1e6]) - AROUND).norm()) > 1e5


def allowed() -> list[tuple[str, str]]:
    return [
        (name, rule)
        for name, rule in itertools.product(ALGORITHMS, RULES)
        if ALGORITHMS[name].federated and ALGORITHMS[name].aggregates == "vectors"
    ]


@pytest.mark.parametrize(("name", "rule"), allowed())
def test_every_algorithm_runs_with_every_rule_and_resumes(name: str, rule: str, tmp_path: Path) -> None:
    algorithm = quickly(ALONE.get(name) or ALGORITHMS[name]())

    def rehearse(folder: str) -> Rehearsal:
        return Rehearsal(tmp_path / folder, (stage_of(algorithm, aggregation=RULES[rule]),))

    whole, again = rehearse("whole").run(), cut_off(rehearse("cut"), after=1).run()
    assert again.files() == whole.files()
    assert bool(whole.final().isfinite().all())
    assert {path.name for path in whole.folder.iterdir()} <= {
        "checkpoints",
        "private",
        "public",
    }  # nothing is left over
    if rule != "mean":
        plain = Rehearsal(tmp_path / "plain", (stage_of(algorithm),)).run()
        assert not torch.equal(plain.final(), whole.final())


def test_the_engine_hands_the_rule_on(tmp_path: Path) -> None:
    """A client that goes a hundred times too far moves the mean, and not the median."""
    honest = Rehearsal(tmp_path / "honest", (stage_of(quickly(FedPE()), rounds=1, aggregation=Median()),)).run()
    begin = honest.federation.backbone().flat
    far = quickly(Troubled(trouble=(("bob", "long"),)))
    lengths = {}
    for rule in (Mean(), Median()):
        stage = stage_of(far, rounds=1, aggregation=rule)
        run = Rehearsal(tmp_path / rule.name, (stage,), firewall=Firewall(enabled=False)).run()
        lengths[rule.name] = float((run.final("fedpe") - begin).norm())
    usual = float((honest.final() - begin).norm())
    assert lengths["median"] < 3 * usual
    assert lengths["mean"] > 10 * usual


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (QFedAvg(), "q_fedavg is defined by weighted means"),
        (Adapt(), "adapt aggregates nothing"),
        (Cluster(), "cluster aggregates nothing"),
        (Central(), "central aggregates nothing"),
        (Carry(control_variates=True).around(FedPE()), "fedpe with carry is defined by weighted means"),
    ],
)
def test_what_cannot_go_together_is_refused(algorithm, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"aggregation median cannot be used, since {reason}"):
        stage_of(algorithm, aggregation=Median())


def test_what_clients_keep_to_themselves_goes_with_any_rule() -> None:
    stage_of(Carry(momentum="client", batch_norm="statistics").around(FedPE()), aggregation=Median())


def experiment(aggregation: dict) -> dict:
    return {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"by": "equal", "clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedpe"}, "aggregation": aggregation}],
    }


def test_an_experiment_file_says_how() -> None:
    given = {"name": "trimmed-mean", "cut": 0.1, "before": [{"name": "clip", "norm": 1.0}, {"name": "bucketing"}]}
    read = parse_experiment(experiment(given), "x.toml")
    wanted = Prepared(rule=TrimmedMean(cut=0.1), before=(Clip(norm=1.0), Bucketing(size=2)))
    assert read.recipe[0].aggregation == wanted
    assert read.recipe[0].aggregation.name == "trimmed-mean"
    assert parse_experiment(read.resolved(), "again").recipe[0].aggregation == wanted
    assert parse_experiment(experiment({"name": "mean"}), "x").recipe[0].aggregation == Mean()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"name": "medan"}, r"stages\.a\.aggregation\.name is 'medan'; did you mean median\?"),
        ({"name": "trimmed-mean", "cut": 0.5}, r"cut is 0\.5"),
        ({"name": "trimmed-mean", "cutt": 0.1}, r"cutt: there is no such key; did you mean cut\?"),
        ({"name": "multi-krum", "faulty": -1}, "must not be negative"),
        ({"name": "geometric-median", "iterations": 0}, "iterations is 0, it must be at least 1"),
        ({"name": "mean", "before": [{"name": "clip", "norm": 0}]}, r"norm is 0\.0"),
        ({"name": "mean", "before": [{"name": "bucketing", "size": 0}]}, "size is 0"),
        ({"name": "mean", "before": [{"name": "clp"}]}, r"before\.clp\.name is 'clp'; did you mean clip\?"),
        ({"name": "mean", "before": "clip"}, "before is a list of tables"),
    ],
)
def test_what_does_not_fit_is_named(given: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_experiment(experiment(given), "x.toml")


def test_how_many_updates_a_rule_takes() -> None:
    krum = MultiKrum(faulty=2)
    assert [rule.least for rule in RULES.values()] == [1, 1, 1, 1, 3, 1]
    assert krum.least == 5
    assert Prepared(rule=krum, before=(Clip(norm=1.0), Bucketing(size=3))).least == 13  # five buckets, the last of one
    assert combined(Prepared(rule=krum, before=(Bucketing(size=3),)), vectors(13)).isfinite().all()


def test_a_rule_that_would_get_too_few_updates_is_refused_before_anything_runs(tmp_path: Path) -> None:
    stages = (
        stage_of(Pretrain()),
        stage_of(quickly(FedPE()), selection=FixedCount(clients=3), aggregation=MultiKrum(faulty=2)),
    )
    run = Rehearsal(tmp_path, stages)
    with pytest.raises(ConfigError, match="multi-krum takes at least 5 updates, and 3 of 4 clients are asked"):
        run.run()
    assert run.notebook.books["metrics"] == []
