"""A network over one flat vector is still the same network."""

import copy
import pickle

import pytest
import torch
from torch import nn

from personae.core.backbone import Backbone
from personae.core.layout import Layout
from personae.core.payload import ModelState
from personae.parts.images import normalise
from toys import TinyPlan, random_faces


def twin(backbone: Backbone) -> nn.Module:
    """The same weights in an ordinary module."""
    module = TinyPlan().build()
    module.load_state_dict(copy.deepcopy(backbone.module.state_dict()))
    return module


def test_trainable_parameters_come_first_and_every_float_entry_is_there(backbone: Backbone):
    state = backbone.module.state_dict()
    assert set(backbone.layout.names) == {name for name, entry in state.items() if entry.is_floating_point()}
    assert set(backbone.layout.names[: backbone.layout.trainable]) == dict(backbone.module.named_parameters()).keys()
    assert backbone.layout.trainable_size == sum(entry.numel() for entry in backbone.module.parameters())
    assert backbone.layout.size == sum(entry.numel() for entry in state.values() if entry.is_floating_point())


def test_binding_changes_neither_weights_nor_outputs():
    module = TinyPlan().build()
    plain = copy.deepcopy(module)
    backbone = Backbone(module, 8)
    images = normalise(random_faces(0, 2, 3).pixels)
    for name, entry in plain.state_dict().items():
        assert torch.equal(backbone.module.state_dict()[name], entry), name
    assert torch.allclose(backbone.module.eval()(images), plain.eval()(images), rtol=1e-5, atol=1e-6)


def test_training_moves_the_vector_and_gradients_are_those_of_an_ordinary_module(backbone: Backbone):
    plain = twin(backbone)
    images = normalise(random_faces(0, 2, 3).pixels)
    before = backbone.flat.clone()
    backbone.gradient.zero_()
    backbone.module.train()(images).square().sum().backward()
    plain.train()(images).square().sum().backward()
    trainable = backbone.layout.trainable_size
    gradients = {name: entry.grad for name, entry in plain.named_parameters()}
    views = backbone.layout.views(torch.cat([backbone.gradient, before[trainable:]]))
    for name, gradient in gradients.items():
        assert torch.allclose(views[name], gradient, rtol=1e-4, atol=1e-5), name
    assert torch.equal(backbone.flat[:trainable], before[:trainable])
    assert not torch.equal(backbone.flat[trainable:], before[trainable:])  # the statistics of BatchNorm
    backbone.weights.add_(1.0)
    weights = dict(backbone.module.named_parameters())["4.weight"]
    assert torch.equal(weights, backbone.layout.views(before)["4.weight"] + 1.0)


def test_a_second_backward_adds_to_the_same_vector(backbone: Backbone):
    images = normalise(random_faces(0, 2, 3).pixels)
    backbone.module.eval()
    backbone.gradient.zero_()
    backbone.module(images).sum().backward()
    once = backbone.gradient.clone()
    backbone.module(images).sum().backward()
    assert torch.allclose(backbone.gradient, 2 * once)
    assert backbone.gradient.abs().sum() > 0


def test_a_state_is_a_copy_and_loading_it_is_one_too(backbone: Backbone):
    state = backbone.state()
    kept = state.flat.clone()
    backbone.flat.add_(1)
    assert torch.equal(state.flat, kept)
    backbone.load(state)
    backbone.flat.add_(1)
    assert torch.equal(state.flat, kept)


def test_a_loaded_model_does_not_remember_how_long_the_module_was_used(backbone: Backbone):
    state = backbone.state()
    fresh = copy.deepcopy(backbone.load(state).state_dict())
    backbone.module.train()(normalise(random_faces(0, 2, 3).pixels))
    again = backbone.load(state).state_dict()
    assert [name for name in fresh if not torch.equal(fresh[name], again[name])] == []


def test_frozen_parameters_are_part_of_the_model_but_not_of_what_moves():
    module = TinyPlan().build()
    module[0].weight.requires_grad_(False)
    backbone = Backbone(module, 8)
    assert "0.weight" in backbone.layout.names[backbone.layout.trainable :]
    backbone.gradient.zero_()
    backbone.module(normalise(random_faces(0, 2, 3).pixels)).sum().backward()
    assert module[0].weight.grad is None
    state = ModelState(backbone.layout, torch.zeros(backbone.layout.size))
    backbone.load(state)
    assert module[0].weight.abs().sum() == 0


def test_only_float32_networks_are_taken():
    with pytest.raises(TypeError, match=r"weight is torch\.float64"):
        Layout.of(nn.Linear(2, 2).double())


def test_flatten_names_what_does_not_fit(layout: Layout):
    entries = layout.views(torch.zeros(layout.size))
    with pytest.raises(ValueError, match=r"1 entry is missing, 4\.bias first"):
        layout.flatten({name: entry for name, entry in entries.items() if name != "4.bias"})
    with pytest.raises(ValueError, match="1 entry is unknown, extra first"):
        layout.flatten({**entries, "extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"4\.bias has shape \(9,\), expected \(8,\)"):
        layout.flatten({**entries, "4.bias": torch.zeros(9)})
    with pytest.raises(ValueError, match=r"4\.bias is torch\.float16, expected torch\.float32"):
        layout.flatten({**entries, "4.bias": torch.zeros(8).half()})


def test_a_layout_travels(layout: Layout):
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert again.size == layout.size
