"""Embedders and first class embeddings, image by image."""

import pytest
import torch
import torch.nn.functional as F

from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.core.embedder import embed
from personae.models import Network
from personae.parts import embedding
from personae.parts.embedding import BackboneEmbedder, class_features
from personae.parts.heads import first_rows
from personae.parts.images import normalise
from toys import Faces, random_faces


def one_by_one(backbone: Backbone, faces: Faces, mirror: bool) -> torch.Tensor:
    """Each image alone, its mirror image made of its columns in reverse."""
    found = []
    for picture in faces.pixels:
        views = [picture, picture[:, range(picture.shape[1] - 1, -1, -1)]] if mirror else [picture]
        batch = torch.stack([view.permute(2, 0, 1).double() / 127.5 - 1 for view in views]).float()
        with torch.no_grad():
            total = sum(backbone.module.eval()(view[None])[0] for view in batch)
        found.append(total / total.norm())
    return torch.stack(found)


@pytest.mark.parametrize("mirror", [False, True])
def test_vectors_are_those_of_single_images_and_of_length_one(backbone: Backbone, faces: Faces, mirror: bool):
    backbone.module.train()  # an embedder sees to it that the network is in evaluation mode
    vectors = embed(BackboneEmbedder(backbone, mirror), faces, batch=4)
    assert torch.allclose(vectors, one_by_one(backbone, faces, mirror), atol=1e-5)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(faces)), atol=1e-6)
    assert not vectors.requires_grad


def test_a_mirror_image_has_the_same_vector(backbone: Backbone, faces: Faces):
    mirrored = Faces(faces.pixels.flip(2), faces.labels, faces.classes)
    embedder = BackboneEmbedder(backbone)
    assert torch.allclose(embed(embedder, faces), embed(embedder, mirrored), atol=1e-5)
    plain = BackboneEmbedder(backbone, mirror=False)
    assert not torch.allclose(embed(plain, faces), embed(plain, mirrored), atol=1e-3)


@pytest.mark.parametrize("name", ["small", "mobilefacenet"])
def test_folding_changes_a_vector_by_less_than_a_hundred_thousandth_of_its_length(name: str):
    network, faces = Network(name=name, embedding=16, height=32, width=32), random_faces(5, 3, 5)
    found = []
    for folding in (True, False):
        module = network.build(torch.Generator().manual_seed(1))
        backbone = Backbone(module, 16, acceleration=Acceleration(folding=folding))
        backbone.module.train()(normalise(faces.pixels))  # statistics of its own
        found.append(embed(BackboneEmbedder(backbone), faces))
    assert 0 < (found[0] - found[1]).norm(dim=1).max() < 1e-5


def test_vectors_have_the_same_bits_on_any_number_of_cores(backbone: Backbone, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding, "IN_CACHE", 2 * 32 * 32)
    faces, threads = random_faces(5, 3, 5), torch.get_num_threads()
    one, *others = (embed(BackboneEmbedder(backbone, cores=cores), faces) for cores in (1, 2, 5))
    assert all(torch.equal(one, other) for other in others)
    assert torch.get_num_threads() == threads


def test_a_model_that_was_trained_on_is_embedded_with_as_it_is_now(backbone: Backbone, faces: Faces):
    embedder = BackboneEmbedder(backbone)
    before = embed(embedder, faces)
    backbone.flat.mul_(1.5)
    assert not torch.allclose(embed(embedder, faces), before, atol=1e-3)
    assert torch.allclose(embed(embedder, faces), one_by_one(backbone, faces, mirror=True), atol=1e-5)


@pytest.mark.parametrize("batch", [1, 4, 256])
def test_first_rows_are_mean_directions(backbone: Backbone, batch: int):
    faces = random_faces(5, 3, 5)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    faces = Faces(faces.pixels[order], faces.labels[order], 3)
    single = one_by_one(backbone, faces, mirror=False)
    expected = torch.stack([F.normalize(single[faces.labels == person].mean(0), dim=0) for person in range(3)])
    assert torch.allclose(class_features(backbone, faces, batch), expected, atol=1e-5)
    assert torch.allclose(first_rows("mean", backbone, faces, torch.Generator()), expected, atol=1e-5)


def test_random_rows_come_from_the_generator_alone(backbone: Backbone, faces: Faces):
    draws = [first_rows("random", backbone, faces, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2], atol=0.1)
    assert draws[0].shape == (3, 8)
    assert torch.allclose(draws[0].norm(dim=1), torch.ones(3), atol=1e-6)


def test_no_faces_have_no_features(backbone: Backbone):
    nobody = Faces(torch.zeros(0, 32, 32, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.long), 0)
    with pytest.raises(ValueError, match="there are no samples"):
        class_features(backbone, nobody)
