from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.errors import ConfigError
from personae.models import NETWORKS, Network
from personae.parts.batches import Batch
from personae.parts.images import Augmentation, normalise
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from toys import random_faces

LIGHT = ["small", "sphere20", "iresnet18", "mobilefacenet", "mbf"]
"""One of each family: the deeper ones differ in the number of blocks alone."""

BLOCKS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.layout().parameters())


def test_the_networks_of_the_papers_are_there() -> None:
    assert list(NETWORKS) == ["small", "sphere20", "sphere64", *BLOCKS, "mobilefacenet", "mbf"]


@pytest.mark.parametrize(("height", "width"), [(112, 112), (112, 96), (64, 64), (32, 32), (50, 33)])
@pytest.mark.parametrize("name", LIGHT)
def test_images_of_any_size_become_embeddings_of_any_size(name: str, height: int, width: int) -> None:
    embedding = 1 if (height, width) == (32, 32) else width
    model = Network(name=name, embedding=embedding, height=height, width=width).build()
    images = torch.rand(2, 3, height, width).mul(2).sub(1).to(memory_format=torch.channels_last)
    embeddings = model.to(memory_format=torch.channels_last)(images)
    assert embeddings.shape == (2, embedding)
    assert embeddings.dtype == torch.float32
    assert embeddings.isfinite().all()


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_runs_at_the_smallest_size(name: str) -> None:
    network = Network(name=name, embedding=16, height=32, width=32)
    model = network.build()
    model(torch.randn(3, 3, 32, 32)).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", NETWORKS)
def test_state_is_float32_and_integer_counters(name: str) -> None:
    for key, tensor in Network(name=name).layout().state_dict().items():
        assert tensor.dtype == (torch.int64 if key.endswith("num_batches_tracked") else torch.float32)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("iresnet18", 24.03), ("iresnet34", 34.14), ("iresnet50", 43.59), ("iresnet100", 65.16)],
)
def test_iresnet_has_the_published_number_of_parameters(name: str, millions: float) -> None:
    assert parameters(Network(name=name, embedding=512, height=112, width=112)) / 1e6 == pytest.approx(
        millions, abs=0.005
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_iresnet_keys_are_insightfaces(name: str) -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "prelu.weight", "fc.weight", "fc.bias"}
    expected |= {f"{layer}.{key}" for layer in ("bn1", "bn2", "features") for key in norm}
    for stage, count in enumerate(BLOCKS[name], start=1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            expected |= {f"{at}.{layer}.weight" for layer in ("conv1", "prelu", "conv2")}
            expected |= {f"{at}.{layer}.{key}" for layer in ("bn1", "bn2", "bn3") for key in norm}
        expected |= {f"layer{stage}.0.downsample.0.weight"}
        expected |= {f"layer{stage}.0.downsample.1.{key}" for key in norm}
    assert Network(name=name).layout().state_dict().keys() == expected


def test_iresnet_does_not_learn_the_scale_of_its_embeddings() -> None:
    model = Network(name="iresnet18").build()
    assert [key for key, parameter in model.named_parameters() if not parameter.requires_grad] == ["features.weight"]
    assert (model.get_parameter("features.weight") == 1).all()


@pytest.mark.parametrize(("name", "layers"), [("sphere20", 20), ("sphere64", 64)])
def test_sphere_networks_have_their_number_of_layers_and_no_statistics(name: str, layers: int) -> None:
    layout = Network(name=name, embedding=512, height=112, width=96).layout()
    assert sum(isinstance(layer, nn.Conv2d) for layer in layout.modules()) == layers
    assert not list(layout.buffers())
    assert layout.get_parameter("fc.weight").shape == (512, 512 * 7 * 6)


def test_sphere_weights_start_as_in_the_paper() -> None:
    model = Network(name="sphere20").build()
    for key, weight in model.named_parameters():
        if weight.dim() > 1 and f"{key.removesuffix('weight')}bias" in model.state_dict():
            fan_in, fan_out = weight.shape[1] * weight[0, 0].numel(), weight.shape[0] * weight[0, 0].numel()
            bound = (6 / (fan_in + fan_out)) ** 0.5
            assert 0.98 * bound < weight.abs().max() <= bound, key
        elif weight.dim() > 1:
            assert weight.std().item() == pytest.approx(0.01, rel=0.02), key
        elif key.endswith("bias"):
            assert (weight == 0).all(), key


def test_a_linear_layer_after_the_backbone_casts_its_output_to_the_embedding() -> None:
    """Table III of HF-MAML: a backbone with 1,000 outputs, then 1,000 x 512."""
    plain = Network(name="iresnet18", embedding=1000, height=128, width=128)
    cast = Network(name="iresnet18", embedding=512, height=128, width=128, hidden=1000)
    assert parameters(cast) == parameters(plain) + 1000 * 512 + 512
    small = Network(name="small", embedding=5, height=32, width=32, hidden=20)
    module = small.build(torch.Generator().manual_seed(1)).eval()
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    state = module.state_dict()
    inside = Network(name="small", embedding=20, height=32, width=32).build().eval()
    inside.load_state_dict(
        {name.removeprefix("body."): entry for name, entry in state.items() if name.startswith("body.")}
    )
    expected = inside(images) @ state["cast.weight"].T + state["cast.bias"]
    assert torch.allclose(module(images), expected, atol=1e-6)
    assert module(images).shape == (3, 5)


def test_small_is_small() -> None:
    assert parameters(Network()) == pytest.approx(300_000, rel=0.05)


def test_mobilefacenet_weighs_every_place_of_the_last_map() -> None:
    for (height, width), kernel in {(112, 112): (7, 7), (112, 96): (7, 6), (64, 64): (4, 4)}.items():
        layout = Network(name="mobilefacenet", embedding=128, height=height, width=width).layout()
        assert layout.get_parameter("GDC_dw.weight").shape == (512, 1, *kernel)


@pytest.mark.parametrize("name", LIGHT)
def test_weights_depend_on_the_generator_alone(name: str) -> None:
    def build(seed: int | None) -> dict[str, Tensor]:
        torch.rand(1)  # the global state is another every time
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return Network(name=name, height=32, width=32).build(generator).state_dict()

    for seed in (None, 5):
        first, second = build(seed), build(seed)
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(a, b) for a, b in zip(build(5).values(), build(6).values(), strict=True))

    before = torch.get_rng_state()
    Network(name=name, height=32, width=32).build()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_left_uninitialised(name: str) -> None:
    constants = {"running_mean": 0.0, "running_var": 1.0, "num_batches_tracked": 0, "bias": 0.0}
    for layer in Network(name=name, embedding=8, height=32, width=32).build().modules():
        for key, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            if key in constants:
                assert (tensor == constants[key]).all(), (layer, key)
            elif isinstance(layer, nn.Conv2d | nn.Linear):
                assert 0 < tensor.std() < 1, (layer, key)
            else:
                assert (tensor == (0.25 if isinstance(layer, nn.PReLU) else 1.0)).all(), (layer, key)


@pytest.mark.parametrize("name", ["small", "mobilefacenet", "iresnet18"])
def test_group_normalisation_keeps_images_apart(name: str) -> None:
    model = Network(name=name, norm="group").build()
    assert model.training
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    together, alone = model(images), torch.cat([model(image[None]) for image in images])
    assert together.isfinite().all()
    torch.testing.assert_close(together / together.norm(), alone / together.norm(), atol=1e-5, rtol=1e-4)
    assert not list(model.buffers())


@pytest.mark.parametrize("name", ["small", "mobilefacenet", "iresnet18"])
def test_group_normalisation_stands_wherever_batch_normalisation_stood(name: str) -> None:
    batch, group = (Network(name=name, embedding=20, norm=norm).build() for norm in ("batch", "group"))
    replaced = {at: layer for at, layer in batch.named_modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)}
    last = {"mobilefacenet": "last_bn"}.get(name, "features")
    for at, layer in group.named_modules():
        assert not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        if at in replaced and at != last:
            assert isinstance(layer, nn.GroupNorm)
            assert layer.num_channels == replaced[at].num_features
    assert isinstance(group.get_submodule(last), nn.Identity)
    weights, others = dict(batch.named_parameters()), dict(group.named_parameters())
    assert set(weights) - set(others) == {f"{last}.weight", f"{last}.bias"}
    assert all(torch.equal(weights[key], value) for key, value in others.items())  # drawn alike


@pytest.mark.parametrize("name", ["small", "mobilefacenet"])
def test_a_network_with_group_normalisation_learns(name: str) -> None:
    network = Network(name=name, embedding=8, height=32, width=32, norm="group")
    backbone, faces = Backbone(network.build(), 8), random_faces(3, 3, 4)
    rows = torch.nn.functional.normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)))
    margin = Margin(kind="cosface", scale=8.0, margin=0.1)
    still = Augmentation(flip=False, shift=0, colour=0.0)
    sgd = LocalSGD(lr=0.02, batch_size=6, iterations=50, weight_decay=0.0, augmentation=still)

    def loss(batch: Batch) -> torch.Tensor:
        return margin.loss(backbone.module(batch.images), rows, batch.labels)

    sgd.fit(backbone, [rows], faces, loss, torch.Generator().manual_seed(2))
    with torch.no_grad():
        features = backbone.module(normalise(faces.pixels))
    assert (features @ rows.T).argmax(1).tolist() == faces.labels.tolist()
    assert float(margin.loss(features, rows, faces.labels)) < 0.1  # log 3 and more before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"name": "resnet50"}, r"network.name = 'resnet50'.*small, sphere20.*mobilefacenet"),
        ({"norm": "layer"}, r"network.norm = 'layer'.*batch, group"),
        ({"name": "sphere20", "norm": "group"}, "'sphere20' has no BatchNorm"),
        ({"hidden": 0}, "network.hidden = 0: at least 1"),
        ({"embedding": 0}, "network.embedding = 0"),
        ({"height": 31}, "31x64: at least 32x32"),
        ({"width": -1}, "64x-1: at least 32x32"),
    ],
)
def test_impossible_networks_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Network(**arguments).build()


def test_experiment_files_are_validated() -> None:
    networks = TypeAdapter(Network)
    assert networks.validate_python({"name": "mobilefacenet", "embedding": 128}) == Network(
        name="mobilefacenet", embedding=128
    )
    with pytest.raises(ValidationError, match="depth"):
        networks.validate_python({"depth": 50})
