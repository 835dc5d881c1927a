"""Augmentation in batches against a slow loop over single images."""

import numpy as np
import pytest
import torch

from personae.parts.images import Augmentation, _move_at_once, _move_one_by_one, normalise


def pictures(count: int, height: int = 9, width: int = 7) -> torch.Tensor:
    return torch.randint(0, 256, (count, height, width, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def slowly(augmentation: Augmentation, images: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    """The same numbers drawn in the same order, then one pixel at a time, in float64."""
    count, height, width, _ = images.shape
    flips = torch.rand(count, 1, generator=generator) < 0.5 if augmentation.flip else torch.zeros(count, 1)
    moves = torch.zeros(2, count, 1, dtype=torch.long)
    if augmentation.shift:
        moves = torch.randint(-augmentation.shift, augmentation.shift + 1, (2, count, 1), generator=generator)
    strengths = [torch.zeros(count, channels) for channels in (1, 3, 1)]
    if augmentation.colour:
        draws = [torch.rand(count, channels, 1, 1, generator=generator) for channels in (1, 3, 1)]
        strengths = [(draw.flatten(1) * 2 - 1) * augmentation.colour for draw in draws]
    contrast, gains, brightness = (strength.double().numpy() for strength in strengths)
    result = np.zeros((count, 3, height, width))
    for n in range(count):
        picture = images[n].numpy()
        if flips[n, 0]:
            picture = picture[:, ::-1]
        for y in range(height):
            for x in range(width):
                # The shifted picture shows at (y, x) what stood a move further, or at the border beyond it.
                from_y = min(max(y + int(moves[0, n, 0]), 0), height - 1)
                from_x = x + int(moves[1, n, 0]) * (-1 if flips[n, 0] else 1)
                from_x = min(max(from_x, 0), width - 1)
                for channel in range(3):
                    value = picture[from_y, from_x, channel] / 127.5 - 1
                    value *= (1 + contrast[n, 0]) * (1 + gains[n, channel])
                    result[n, channel, y, x] = value + brightness[n, 0]
    return result


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 3, 20])
@pytest.mark.parametrize("colour", [0.0, 0.3])
def test_it_does_what_a_loop_over_pixels_does(flip, shift, colour):
    augmentation, images = Augmentation(flip=flip, shift=shift, colour=colour), pictures(12)
    fast = augmentation(images, augmentation.draw(12, torch.Generator().manual_seed(4)))
    slow = slowly(augmentation, images, torch.Generator().manual_seed(4))
    assert fast.dtype == torch.float32
    assert np.abs(fast.double().numpy() - slow).max() < 1e-6  # a few roundings of values below 2.5


@pytest.mark.parametrize("shift", [0, 1, 3, 20])
def test_slices_and_gathers_move_pictures_alike(shift):
    augmentation, images = Augmentation(shift=shift), pictures(40)
    drawn = augmentation.draw(40, torch.Generator().manual_seed(2))
    mirrored, moves = drawn[:, 0] > 0, drawn[:, 1:3].long()
    assert torch.equal(_move_one_by_one(images, mirrored, moves), _move_at_once(images, mirrored, moves))


def test_normalised_bytes_span_minus_one_to_one_exactly():
    values = normalise(torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)).flatten()
    assert (values.min(), values.max()) == (-1.0, 1.0)
    assert np.abs(normalise(pictures(2)).numpy() - (pictures(2).permute(0, 3, 1, 2).numpy() / 127.5 - 1)).max() < 1e-6


def test_the_pictures_themselves_are_left_alone():
    images = pictures(5)
    for augmentation in (Augmentation(), Augmentation(flip=False, shift=0), Augmentation(colour=0.0)):
        augmentation(images, augmentation.draw(5, torch.Generator().manual_seed(0)))
        assert torch.equal(images, pictures(5))


def test_flips_are_fair_and_moves_reach_every_place_equally():
    images = torch.zeros(4000, 1, 5, 3, dtype=torch.uint8)
    images[:, :, 2] = 255
    shifts = Augmentation(flip=False, shift=1, colour=0.0)
    moved = shifts(images, shifts.draw(4000, torch.Generator().manual_seed(0)))
    found = moved[:, 0, 0].argmax(1).bincount(minlength=5)
    assert found[[0, 4]].tolist() == [0, 0]
    assert all(abs(int(count) - 4000 / 3) < 4 * (4000 * 2 / 9) ** 0.5 for count in found[1:4])
    images = torch.zeros(4000, 1, 2, 3, dtype=torch.uint8)
    images[:, :, 0] = 255
    flips = Augmentation(shift=0, colour=0.0)
    flipped = flips(images, flips.draw(4000, torch.Generator().manual_seed(0)))[:, 0, 0, 1] > 0
    assert abs(int(flipped.sum()) - 2000) < 4 * 1000**0.5


@pytest.mark.parametrize("options", [{"shift": -1}, {"colour": 1.0}, {"colour": -0.1}, {"colour": float("nan")}])
def test_impossible_strengths_are_refused(options):
    with pytest.raises(ValueError, match=r"shift is -1, it must not be negative|colour is .*, it must be in \[0, 1\)"):
        Augmentation(**options)
