from dataclasses import dataclass

import torch
from torch import Tensor

from personae.evaluation.identification import class_means, rank_one
from personae.evaluation.personal import evaluate_client
from personae.evaluation.verification import all_pairs, tar_at_far


@dataclass
class Pictures:
    pixels: Tensor
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        return self.pixels[positions]


def pictures(labels, classes, seed=0):
    """2 x 2 pictures: a colour for each identity, and noise."""
    random = torch.Generator().manual_seed(seed)
    colours = torch.randint(0, 200, (classes, 2, 2, 3), generator=torch.Generator().manual_seed(9))
    noise = torch.randint(0, 55, (len(labels), 2, 2, 3), generator=random)
    labels = torch.tensor(labels, dtype=torch.int64)
    return Pictures((colours[labels] + noise).to(torch.uint8), labels, classes)


def flat(images: Tensor) -> Tensor:
    return torch.nn.functional.normalize(images.flatten(1).float() - 100)


def test_equals_its_parts():
    train, test = pictures([0, 1, 2] * 5, 3, seed=1), pictures([2, 1, 0, 0] * 4, 3, seed=2)
    found = evaluate_client(flat, train, test, (0.1, 0.01))
    rates = tar_at_far(all_pairs(flat(test.pixels), test.labels), (0.1, 0.01))
    gallery = class_means(flat(train.pixels), train.labels, 3)
    assert found == {
        "tar@1e-01": rates[0.1],
        "tar@1e-02": rates[0.01],
        "rank1": rank_one(gallery, torch.arange(3), flat(test.pixels), test.labels),
    }
    assert found["rank1"] > 0.8


def test_one_identity_has_neither_impostors_nor_ranks():
    assert evaluate_client(flat, pictures([0, 0], 1), pictures([0, 0, 0], 1), (0.1,)) == {}


def test_single_images_have_ranks_but_no_rates():
    found = evaluate_client(flat, pictures([0, 1, 2], 3), pictures([0, 1, 2], 3), (0.1,))
    assert found == {"rank1": 1.0}


def test_training_on_one_of_the_identities_leaves_rates():
    found = evaluate_client(flat, pictures([1, 1], 2), pictures([0, 1, 1, 0], 2), (0.1,))
    assert set(found) == {"tar@1e-01"}


def test_classes_without_training_images_attract_no_probe():
    train, test = pictures([0, 2, 0, 2], 5), pictures([0, 2, 2], 5)
    assert evaluate_client(flat, train, test, (0.1,))["rank1"] == 1.0


def test_no_test_images():
    assert evaluate_client(flat, pictures([0, 1], 2), pictures([], 2), (0.1,)) == {}
