"""Canaries: what a Gaussian mechanism costs is found again, and a layer puts them into a model."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from attacked import evidence, sent
from personae.algorithms import FedGC, FedPE
from personae.core.algorithm import ClientInfo, Reply, Server
from personae.core.payload import ModelState
from personae.layers.canaries import Canaries
from personae.privacy.audit.canaries import CanaryEstimate, estimate, gaussian_epsilon


@pytest.mark.parametrize("mean", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_epsilon_of_shifted_normals_is_that_of_the_gaussian_mechanism(mean, delta):
    epsilon = gaussian_epsilon(mean, delta)
    exact = norm.cdf(mean / 2 - epsilon / mean) - math.exp(epsilon) * norm.cdf(-mean / 2 - epsilon / mean)
    assert exact == pytest.approx(delta, rel=1e-2)


def test_directions_that_were_never_put_in_cost_nothing():
    cosines = np.random.default_rng(0).normal(0, 1 / math.sqrt(10_000), 400)
    assert estimate(cosines, 10_000, 1e-2) < 0.5


def served(plain, layer, noise):
    """The state after a round of one client whose update is noise, with the canaries of the layer."""
    algorithm = layer.around(FedPE())
    random = torch.Generator().manual_seed(5)
    flat = plain.model.flat + noise * torch.randn(len(plain.model.flat), generator=random)
    reply = Reply(ClientInfo("a", 0), sent("a", plain.model, flat).message)
    server = Server(plain.model, plain.backbone, None, None, random, 1, 1, (reply.client,))
    return algorithm, algorithm.merge(FedPE.types.state(model=plain.model), [reply], server)


def test_a_layer_puts_canaries_into_the_model_and_they_are_found():
    plain, layer = evidence(), Canaries(count=8, norm=2.0)
    algorithm, state = served(plain, layer, 0.0)
    size = plain.model.layout.trainable_size
    expected = sum(layer.direction(k, plain.model) for k in range(8)) * 2.0 / 9
    assert torch.allclose(state.model.flat[:size] - plain.model.flat[:size], expected, atol=1e-5)
    (found,) = CanaryEstimate().findings(replace(plain, algorithm=algorithm, model=state.model))
    assert found.low > 10

    algorithm, state = served(plain, layer, 1.0)  # the canaries are drowned
    way = state.model.flat - plain.model.flat
    noise = 50 * torch.randn(len(way), generator=torch.Generator().manual_seed(6))
    drowned = ModelState(plain.model.layout, plain.model.flat + way + noise)
    (found,) = CanaryEstimate().findings(replace(plain, algorithm=algorithm, model=drowned))
    assert found.value < 2
    assert found.low == 0  # eight canaries cannot tell this from no canaries at all


def test_where_there_are_none_nothing_is_measured():
    (found,) = CanaryEstimate().findings(evidence())
    assert "no canaries" in found.reason
    with pytest.raises(ValueError, match="keeps vectors of people by client"):
        Canaries().around(FedGC())
    with pytest.raises(ValueError, match="count"):
        Canaries(count=1)
