"""The faster PReLU is PReLU: its value to the bit, its gradients up to rounding, once and twice."""

import copy

import pytest
import torch
from torch import nn

from personae.core import prelu
from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.core.prelu import FastPReLU, accelerate
from personae.models import Network


def layer(channels: int, dtype: torch.dtype = torch.float32) -> FastPReLU:
    found = FastPReLU(channels, dtype=dtype)
    with torch.no_grad():
        found.weight.copy_(torch.linspace(-0.3, 1.2, channels))
    return found


def by_hand(maps: torch.Tensor, slopes: torch.Tensor, arriving: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients as the definition has them: max(0, x) + a min(0, x)."""
    of_maps, of_slopes = torch.zeros_like(maps), torch.zeros_like(slopes)
    for image, channel, row, column in torch.cartesian_prod(*(torch.arange(size) for size in maps.shape)).tolist():
        place = (image, channel, row, column)
        positive = maps[place] > 0
        of_maps[place] = arriving[place] * (1 if positive else slopes[channel])
        of_slopes[channel] += 0 if positive else arriving[place] * maps[place]
    return of_maps, of_slopes


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("piece", [1, 600, 1 << 20])
def test_gradients_are_those_of_the_definition(
    memory: torch.memory_format, piece: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prelu, "PIECE", piece)
    random = torch.Generator().manual_seed(3)
    maps = torch.randn(5, 3, 4, 6, generator=random, dtype=torch.float64).contiguous(memory_format=memory)
    maps[0, 0, 0, 0] = 0
    arriving = torch.randn(5, 3, 4, 6, generator=random, dtype=torch.float64)
    fast = layer(3, torch.float64)
    entering = maps.clone().requires_grad_()
    fast(entering).backward(arriving)
    of_maps, of_slopes = by_hand(maps, fast.weight.detach(), arriving)
    assert entering.grad is not None
    assert fast.weight.grad is not None
    assert torch.allclose(entering.grad, of_maps, rtol=1e-12)
    assert torch.allclose(fast.weight.grad, of_slopes, rtol=1e-12)


def test_gradcheck_once_and_twice():
    maps = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    maps = (maps.sign() * (maps.abs() + 0.1)).requires_grad_()  # away from the kink
    fast = layer(3, torch.float64)

    def function(entering: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(fast, {"weight": slopes}, (entering,))

    inputs = (maps, fast.weight)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_second_derivatives_by_functional_transforms():
    plain, fast = nn.PReLU(4), FastPReLU(4)
    maps = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(2)).requires_grad_()

    def curvature(module: nn.Module) -> torch.Tensor:
        def loss(entering: torch.Tensor) -> torch.Tensor:
            return (module(entering) ** 3).sum()

        def slope(entering: torch.Tensor) -> torch.Tensor:
            return (torch.func.grad(loss)(entering) ** 2).sum()

        return torch.func.grad(slope)(maps.detach())

    assert torch.allclose(curvature(plain), curvature(fast), rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3)])
def test_other_shapes_are_left_to_pytorch(shape: tuple[int, ...]):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert "_PReLU" not in type(layer(4)(maps).grad_fn).__name__


def test_a_backbone_has_it_unless_it_is_switched_off():
    network = Network(name="small", embedding=8, height=32, width=32)

    def kinds(acceleration: Acceleration) -> set[type]:
        module = Backbone(network.build(), 8, acceleration=acceleration).module
        return {type(each) for each in module.modules() if isinstance(each, nn.PReLU)}

    assert kinds(Acceleration()) == {FastPReLU}
    assert kinds(Acceleration(prelu=False)) == {nn.PReLU}


@pytest.mark.parametrize("name", ["small", "mobilefacenet"])
def test_a_step_is_the_same_up_to_rounding(name: str):
    plain = Network(name=name, embedding=8, height=32, width=32).build(torch.Generator().manual_seed(1)).double()
    fast = copy.deepcopy(plain)
    accelerate(fast)
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for module in (plain, fast):
        module.train()(images).square().sum().backward()
    for (key, one), other in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-10), key
