"""The weighted mean against float64."""

import numpy as np
import pytest
import torch

from personae.core.aggregation import weighted_mean
from personae.parts.averaging import weight_of


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [3.0, 500.0, 20.0, 1.0], [1e-8, 1.0, 1e8], [5.0]])
def test_it_is_the_mean_computed_in_double_precision(weights):
    vectors = [torch.randn(1000, generator=torch.Generator().manual_seed(index)) for index in range(len(weights))]
    expected = np.average(np.stack([vector.double().numpy() for vector in vectors]), axis=0, weights=weights)
    mean = weighted_mean(zip(vectors, weights, strict=True))
    # One rounding to float32 in each step, of values of size 5 at most.
    assert np.abs(mean.double().numpy() - expected).max() < len(weights) * 5 * 2**-23


def test_many_clients_do_not_pile_up_errors():
    vectors = torch.randn(2000, 50, generator=torch.Generator().manual_seed(0))
    mean = weighted_mean((vector, 1.0 + index % 7) for index, vector in enumerate(vectors))
    weights = [1.0 + index % 7 for index in range(2000)]
    assert np.abs(mean.numpy() - np.average(vectors.double().numpy(), axis=0, weights=weights)).max() < 2e-6


def test_a_weight_of_zero_has_no_say_even_when_it_comes_first():
    one, two = torch.zeros(3), torch.ones(3)
    assert torch.equal(weighted_mean([(one, 0.0), (two, 2.0)]), two)
    assert torch.equal(weighted_mean([(two, 2.0), (one, 0.0)]), two)


def test_inputs_are_left_alone():
    vectors = [torch.zeros(3), torch.ones(3)]
    mean = weighted_mean((vector, 1.0) for vector in vectors)
    assert torch.equal(mean, torch.full((3,), 0.5))
    assert torch.equal(vectors[0], torch.zeros(3))
    assert torch.equal(vectors[1], torch.ones(3))
    only = weighted_mean([(vectors[0], 1.0)])
    only.add_(1)
    assert torch.equal(vectors[0], torch.zeros(3))


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="nothing to average"):
        weighted_mean([])


def test_weights():
    assert weight_of("samples", 12) == 12.0
    assert weight_of("uniform", 12) == 1.0
