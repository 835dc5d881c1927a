"""BatchNorm folded into convolutions: the same function, whatever happens to the weights in between."""

import copy

import pytest
import torch
from torch import Tensor, nn

from personae.core.folding import Folded
from personae.models import Network


def lived(module: nn.Module, seed: int = 0) -> nn.Module:
    """With weights and statistics as after some training, in double precision, so that rounding does not show."""
    source = torch.Generator().manual_seed(seed)
    for name, entry in module.state_dict().items():
        if name.endswith("running_var"):
            entry.uniform_(0.5, 2, generator=source)
        elif entry.is_floating_point() and entry.dim() == 1:
            entry.normal_(0.5, 0.2, generator=source)
    return module.double().eval()


def norms(module: nn.Module) -> int:
    return sum(isinstance(each, nn.BatchNorm2d) for each in module.modules())


@pytest.mark.parametrize(
    ("name", "left"),
    [("small", 0), ("mobilefacenet", 0), ("mbf", 0), ("sphere20", 0), ("iresnet18", 9)],  # 9: before convolutions
)
@torch.no_grad()
def test_it_is_the_same_function(name: str, left: int):
    module = lived(Network(name=name, embedding=8, height=32, width=32).build())
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected, before = module(images), copy.deepcopy(module.state_dict())
    folded = Folded(module).refreshed()
    assert norms(folded) == left
    assert torch.allclose(folded(images), expected, rtol=1e-9)
    assert all(torch.equal(entry, before[key]) for key, entry in module.state_dict().items())


@torch.no_grad()
def test_it_follows_the_weights_and_statistics_when_it_is_told_to():
    module = lived(Network(name="small", embedding=8, height=32, width=32).build())
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    folded = Folded(module)
    first = folded.refreshed()(images)
    lived(module, seed=5)
    module.train()
    second = folded.refreshed()(images)
    assert not torch.allclose(first, second, rtol=0.1)
    assert not module.training  # a layer that stayed as it was must not take the statistics of a batch
    assert torch.allclose(second, module(images), rtol=1e-9)


class Shared(nn.Module):
    """One convolution before two norms, one norm after two convolutions, one output that two layers take."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other, self.third = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.one, self.two, self.three, self.four = (nn.BatchNorm2d(3) for _ in range(4))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.one(self.conv(images)) + self.two(self.conv(images + 1))
        maps = self.three(self.other(maps)) + self.three(maps)
        seen = self.third(maps)
        return self.four(seen) + seen


@torch.no_grad()
def test_what_somebody_else_uses_too_is_left_apart():
    module = lived(Shared())
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    folded = Folded(module).refreshed()
    assert norms(folded) == 4
    assert torch.equal(folded(images), module(images))


class Choosing(nn.Module):
    """What it does depends on the numbers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images) if images.mean() > 0 else self.body(-images)


@torch.no_grad()
def test_code_that_cannot_be_traced_stays_as_it_is():
    module = lived(Choosing())
    assert Folded(module).refreshed() is module
