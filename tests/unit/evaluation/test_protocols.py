import dataclasses
import json
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from personae.errors import DataError
from personae.evaluation.curves import sweep
from personae.evaluation.protocols import Benchmark, BenchmarkResult, PairBenchmark, first_of_each
from personae.evaluation.verification import all_pairs, listed, sample_pairs, tar_at_far, ten_fold


@dataclass
class Noise:
    """Pictures of 30 identities, 7 each, in mixed order."""

    classes: int = 30

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(5)
        self.labels = torch.arange(self.classes).repeat(7)[torch.randperm(7 * self.classes, generator=random)]
        centres = torch.randint(40, 215, (self.classes, 3, 3, 3), generator=random)
        noise = torch.randint(-40, 41, (len(self), 3, 3, 3), generator=random)
        self.pixels = (centres[self.labels] + noise).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        return self.pixels[positions]


def flat(images: Tensor) -> Tensor:
    return torch.nn.functional.normalize(images.flatten(1).float() - 127.5)


def test_equals_its_parts():
    samples = Noise()
    pairs = sample_pairs(samples.labels, pairs_per_fold=20)
    result = Benchmark("heldout", samples, fars=(0.1, 0.001), pairs=pairs).evaluate(flat)
    vectors = flat(samples.pixels)
    folds = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same)
    scores = all_pairs(vectors, samples.labels)
    rates = tar_at_far(scores, (0.1, 0.001))
    assert list(result.metrics) == ["accuracy", "accuracy_std", "tar@1e-01", "tar@1e-03", "rank1"]
    assert result.metrics["accuracy"] == folds.accuracy
    assert result.metrics["accuracy_std"] == folds.deviation
    assert (result.metrics["tar@1e-01"], result.metrics["tar@1e-03"]) == (rates[0.1], rates[0.001])
    found = sweep(scores)
    assert (result.roc, result.histogram, result.eer, result.auc) == (found.roc, found.histogram, found.eer, found.auc)
    assert (result.genuine_pairs, result.impostor_pairs) == (30 * 21, 210 * 209 // 2 - 30 * 21)
    assert sum(result.histogram.genuine) == result.genuine_pairs


def test_pairs_alone():
    samples = Noise()
    pairs = sample_pairs(samples.labels, folds=5, pairs_per_fold=40)
    result = PairBenchmark("pairs", samples, pairs, fars=(0.1,)).evaluate(flat)
    vectors = flat(samples.pixels)
    left, right = vectors[pairs.left], vectors[pairs.right]
    folds, scores = ten_fold(left, right, pairs.same, folds=5), listed(vectors, pairs)
    assert result.metrics == {
        "accuracy": folds.accuracy,
        "accuracy_std": folds.deviation,
        "tar@1e-01": tar_at_far(scores, (0.1,))[0.1],
    }
    assert (result.roc, result.genuine_pairs, result.impostor_pairs) == (sweep(scores).roc, 100, 100)


def test_rank_one_tries_the_other_images_on_the_first_of_each_identity():
    samples = Noise()
    vectors, labels = flat(samples.pixels), samples.labels.tolist()
    gallery = {label: vectors[labels.index(label)] for label in range(30)}
    right = probes = 0
    for position, label in enumerate(labels):
        if position != labels.index(label):
            probes += 1
            right += max(gallery, key=lambda name, at=position: float(gallery[name] @ vectors[at])) == label
    assert Benchmark("heldout", samples).evaluate(flat).metrics["rank1"] == right / probes


def test_first_of_each():
    labels = torch.tensor([7, 2, 7, 2, 0, 7, 0])
    assert first_of_each(labels).tolist() == [True, True, False, False, True, False, False]


def test_without_pairs_there_is_no_ten_fold_accuracy():
    assert set(Benchmark("heldout", Noise()).evaluate(flat).metrics) == {"tar@1e-01", "tar@1e-02", "tar@1e-03", "rank1"}


def test_a_benchmark_needs_images_to_compare():
    samples = Noise()
    samples.labels = torch.arange(len(samples))
    with pytest.raises(DataError, match="there are 0 and"):
        Benchmark("heldout", samples).evaluate(flat)


def test_travels_between_processes_and_to_json():
    samples = Noise()
    benchmark = Benchmark("heldout", samples, pairs=sample_pairs(samples.labels, pairs_per_fold=20))
    result = benchmark.evaluate(flat)
    assert pickle.loads(pickle.dumps(benchmark)).evaluate(flat) == result
    stored = json.loads(json.dumps(dataclasses.asdict(result)))
    assert stored["roc"] == {"far": list(result.roc.far), "tar": list(result.roc.tar)}
    assert stored.keys() == {field.name for field in dataclasses.fields(BenchmarkResult)}
    assert (stored["intervals"], stored["groups"]) == ({}, {})
    assert set(stored["histogram"]) == {"edges", "genuine", "impostor"}


def test_intervals_and_resamples_are_of_the_final_model_alone():
    benchmark = Benchmark("heldout", Noise(), fars=(0.1,), resamples=40)
    assert benchmark.evaluate(flat, final=False).resampled == {}
    found = benchmark.evaluate(flat)
    rates = found.resampled["tar@1e-01"]
    assert len(rates) == 40
    assert (found.intervals["tar@1e-01"].low, found.intervals["tar@1e-01"].high) == (
        sorted(rates)[0],
        sorted(rates)[38],
    )
    assert found.resampled == benchmark.evaluate(flat).resampled  # the same people are drawn every time
