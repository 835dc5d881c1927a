"""Quantities over clients, pictures of two methods client by client and of forgetting, from runs written by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from personae.errors import DataError
from personae.experiment.config import parse_experiment
from personae.reproduce import served
from personae.reproduce.pages import save
from personae.reproduce.quantities import Outcome, over_rounds, said, training_loss
from personae.reproduce.reproduce import variants_of
from personae.reproduce.served import client_by_client, gain_of_third, over_clients, tuned_clients
from personae.reproduce.systems import SYSTEMS, hf_maml, unsupervised

RAW = {
    "name": "x",
    "data": {"private": {"identities": 10}},
    "partition": {"clients": 2},
    "stages": [{"name": "tune", "algorithm": {"name": "tune"}}],
}
NEW = ["g", "h"]


def outcome(folder: Path, before: dict[str, float], after: dict[str, float]) -> Outcome:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    clients = {name: {"global/t": before[name], "personal/t": after[name]} for name in before}
    event = {"event": "personal", "stage": "tune", "round": 1, "clients": clients, "new": NEW}
    (folder / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    return Outcome(parse_experiment(RAW, "here"), folder)


BEFORE = dict(zip("abcdefgh", (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.3, 0.9), strict=True))
ONE = dict(zip("abcdefgh", (0.3, 0.5, 0.6, 0.6, 0.7, 0.9, 0.4, 0.5), strict=True))
OTHER = dict(zip("abcdefgh", (0.6, 0.55, 0.6, 0.66, 0.7, 0.9, 0.5, 0.6), strict=True))


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[str, Outcome]:
    return {"one": outcome(tmp_path / "one", BEFORE, ONE), "other": outcome(tmp_path / "other", BEFORE, OTHER)}


def test_figures_over_trained_and_over_new_clients(outcomes: dict[str, Outcome]):
    trained = np.array([ONE[name] for name in "abcdef"])
    assert over_clients("x", "one", "t", tuned=True).read(outcomes) == pytest.approx(100 * trained.mean())
    assert over_clients("x", "one", "t", tuned=True, of="deviation").read(outcomes) == pytest.approx(
        100 * trained.std()
    )
    assert over_clients("x", "one", "t", tuned=True, of="worst_decile").read(outcomes) == pytest.approx(30)
    assert over_clients("x", "one", "t", tuned=False, new=True).read(outcomes) == pytest.approx(60)
    assert over_clients("x", "one", "t", tuned=True, new=True).read(outcomes) == pytest.approx(45)
    with pytest.raises(DataError, match="no new client has the metric y"):
        over_clients("x", "one", "y", tuned=True, new=True).read(outcomes)


def test_the_gain_of_the_weakest_and_of_the_strongest_third(outcomes: dict[str, Outcome]):
    """Of eight clients a third is two."""
    weakest = gain_of_third("x", "one", "other", "t", weakest=True, chosen_by="before")
    assert weakest.read(outcomes) == pytest.approx(100 * ((0.6 / 0.3 - 1) + (0.5 / 0.4 - 1)) / 2)  # a and g
    strongest = gain_of_third("x", "one", "other", "t", weakest=False, chosen_by="before")
    assert strongest.read(outcomes) == pytest.approx(0)  # f and e
    both = gain_of_third("x", "one", "other", "t", weakest=True, chosen_by="both")
    assert both.read(outcomes) == pytest.approx(100 * ((0.5 / 0.4 - 1) + (0.6 / 0.3 - 1)) / 2)  # g, a at 0.45
    assert weakest.variants == ("one", "other")


def test_chosen_by_one_noisy_measurement_the_weakest_seem_to_gain_and_by_both_they_do_not(tmp_path: Path):
    """Two measurements of the same clients, noise alone between them."""
    random = np.random.default_rng(0)
    gaps: dict[str, list[float]] = {"before": [], "both": []}
    for turn in range(40):
        truth = random.uniform(0.6, 0.7, 30)
        first, second = (
            {f"c{at}": float(value) for at, value in enumerate(truth + random.normal(0, 0.05, 30))} for _ in range(2)
        )
        runs = {
            "one": outcome(tmp_path / f"{turn}-one", first, first),
            "other": outcome(tmp_path / f"{turn}-other", second, second),
        }
        for chosen_by, found in gaps.items():
            weak, strong = (
                gain_of_third("x", "one", "other", "t", weakest=weakest, chosen_by=chosen_by).read(runs)
                for weakest in (True, False)
            )
            found.append(weak - strong)
    assert np.mean(gaps["before"]) > 5
    assert abs(np.mean(gaps["both"])) < 2


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, which are so all the same."""
    kept: list[Figure] = []
    for module in (served, unsupervised):
        monkeypatch.setattr(module, "save", lambda picture, path: (kept.append(picture), save(picture, path)))
    return kept


def test_figure_3_has_both_methods_at_each_client_as_means_over_seeds_and_the_improvement(
    outcomes: dict[str, Outcome], tmp_path: Path, drawn: list[Figure]
):
    better = {name: value + 0.1 for name, value in OTHER.items()}
    second = {"one": outcomes["one"], "other": outcome(tmp_path / "better", BEFORE, better)}
    (picture,) = client_by_client("one", "FedAvg", "other", "HF-MAML", "t")({0: outcomes, 1: second}, tmp_path)
    with Image.open(picture) as image:
        assert image.size[0] > 500
    assert tuned_clients(outcomes["one"], "t") == ONE
    (axes,) = drawn[0].axes
    means = {name: value + 0.05 for name, value in OTHER.items()}
    for bars, label, expected in zip(axes.containers, ("FedAvg", "HF-MAML"), (ONE, means), strict=True):
        assert bars.get_label() == label
        assert [bar.get_width() for bar in bars] == pytest.approx([100 * value for value in expected.values()])
    gains = [f"{100 * (means[name] / ONE[name] - 1):+.1f}%" for name in ONE]
    assert [text.get_text() for text in axes.texts] == gains
    assert gains[0] == "+116.7%"  # from 0.3 to 0.65
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["a", "b", "c", "d", "e", "f", "g (new)", "h (new)"]


def test_figure_6_has_a_curve_of_each_variant_on_each_domain_as_means_over_seeds(tmp_path: Path, drawn: list[Figure]):
    def run(folder: Path, at: dict[int, tuple[float, float]]) -> Outcome:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        metrics = ("heldout/target/accuracy", "heldout/source/accuracy")
        events = [
            {"event": "global", "stage": "tune", "round": round_, "metrics": dict(zip(metrics, both, strict=True))}
            for round_, both in at.items()
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return Outcome(parse_experiment(RAW, "here"), folder)

    seeds = {
        seed: {
            "with-source": run(tmp_path / f"with-{seed}", {0: (0.8, 0.9), 2: (0.85 + 0.02 * seed, 0.9)}),
            "without-source": run(tmp_path / f"without-{seed}", {0: (0.8, 0.9), 2: (0.7, 0.6)}),
        }
        for seed in (0, 1)
    }
    (picture,) = unsupervised.forgetting(seeds, tmp_path)
    assert picture.is_file()
    target, source = drawn[0].axes
    for axes, title, expected in (
        (target, "accuracy on the target", {"with source": [80, 86], "without source": [80, 70]}),
        (source, "accuracy on the source", {"with source": [90, 90], "without source": [90, 60]}),
    ):
        assert axes.get_title() == title
        assert {str(line.get_label()): pytest.approx(list(line.get_ydata())) for line in axes.lines} == expected
        assert all(list(line.get_xdata()) == [0, 2] for line in axes.lines)
    fall = unsupervised.fall("x", "without-source", "heldout/source/accuracy")
    assert fall.read(seeds[0]) == pytest.approx(30)  # from the peak, which is where it began
    fall = unsupervised.fall("x", "with-source", "heldout/target/accuracy")
    assert fall.read(seeds[0]) == pytest.approx(0)
    area = over_rounds("x", "without-source", "heldout/target/accuracy")
    assert area.read(seeds[0]) == pytest.approx(75)  # a straight line from 80 to 70


@pytest.mark.parametrize("scale", ["small", "large", "paper"])
def test_every_claim_of_hf_maml_finds_its_variants_and_each_method_has_its_tuning(scale):
    system = SYSTEMS["hf_maml"]
    variants = variants_of(system, scale)
    assert [claim.id for claim in system.claims] == [f"HM-{number}" for number in range(1, 8)]
    assert {name for claim in system.claims for name in claim.variants} <= set(variants)
    for name, experiment in variants.items():
        start, train, *tuned = experiment.recipe
        assert start.algorithm.name == "pretrain"
        assert [stage.algorithm.name for stage in tuned] == ([] if name.endswith("-training") else ["tune"])
        assert (start.after, train.after) == (None, "start")
        assert experiment.partition.new_clients == 5
        assert experiment.partition.by.startswith(name.partition("-")[0])
        assert experiment.evaluation.personalized is not None


@pytest.mark.parametrize("scale", ["small", "large", "paper"])
def test_fedavg_sees_as_many_images_as_hf_maml_and_in_the_papers_budget_17_times_as_many(scale):
    variants = variants_of(SYSTEMS["hf_maml"], scale)
    meta = variants["attributes-hf"].recipe[1].algorithm.meta
    for name in ("fedavg", "fedavg-regularised", "fedavg-global", "q-fedavg"):
        sgd = variants[f"attributes-{name}"].recipe[1].algorithm.training
        assert sgd.iterations * sgd.batch_size == 3 * meta.iterations * meta.batch_size
    for form in ("", "-regularised", "-global"):
        fair = variants[f"attributes-fedavg{form}"].recipe[1].algorithm
        paper = variants[f"attributes-fedavg-paper{form}"].recipe[1].algorithm
        assert replace(paper, training=fair.training) == fair
        images = paper.training.iterations * paper.training.batch_size
        assert images == pytest.approx(17 * 3 * meta.iterations * meta.batch_size, rel=0.03)


@pytest.mark.parametrize("scale", ["small", "large", "paper"])
def test_the_control_of_hf_maml_differs_in_the_step_of_adaptation_alone(scale):
    variants = variants_of(SYSTEMS["hf_maml"], scale)
    meta, plain = (variants[f"attributes-{name}"].recipe[1].algorithm for name in ("hf", "hf-plain"))
    assert plain.meta.inner_lr < 1e-6
    assert replace(plain, meta=replace(plain.meta, inner_lr=meta.meta.inner_lr, order=meta.meta.order)) == meta


def test_training_has_slowed_down_where_the_global_model_changes_little(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    means = {0: 0.1, 2: 0.5, 4: 0.7, 6: 0.8}
    events = [
        {
            "event": "personal",
            "stage": "tune",
            "round": round_,
            "clients": {name: {"global/1:1 tar@1e-01": mean + more} for name, more in (("a", 0.1), ("b", -0.1))},
        }
        for round_, mean in means.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    outcomes = {"hf": Outcome(parse_experiment(RAW, "here"), folder)}
    assert hf_maml.by_round("x", "hf", 1.0).read(outcomes) == pytest.approx(80)
    assert hf_maml.by_round("x", "hf", 2 / 3).read(outcomes) == pytest.approx(70)


def test_what_clients_say_of_their_rounds_is_read_from_the_last_stage(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    nothing = {"participants": ["a"], "rejected": {}, "failed": {}}
    events = [
        {"event": "round", "stage": stage, "round": round_, **nothing, "scalars": {"loss": loss, "source_move": move}}
        for stage, round_, loss, move in (("start", 1, 9.0, 90.0), ("tune", 1, 2.0, 4.0), ("tune", 2, 0.5, 8.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    outcomes = {name: Outcome(parse_experiment(RAW, "here"), folder) for name in ("fedfr", "federated")}
    assert training_loss("x", "fedfr").read(outcomes) == 0.5
    assert said("x", "fedfr", "source_move").read(outcomes) == 6.0
    assert unsupervised.held("x", "fedfr", "federated").read(outcomes) == pytest.approx(100)
    with pytest.raises(DataError, match="no client said public_share"):
        said("x", "fedfr", "public_share").read(outcomes)
