"""From light to the numbers in a file: blur, tone response, sensor noise, eight bits."""

from functools import lru_cache

import torch
from torch import Tensor

from personae.data.synthetic.capture import Capture, Film
from personae.data.synthetic.random import BLOCK, Stream

NOISE_OFFSETS = 1 << 16
SENSOR_BLUR = 0.25  # pixels
BRIGHTEST = 1.2  # light beyond this is lost
KERNEL_RADIUS = 2.6457513110645906  # of a kernel (1 - r²)² with standard deviation one


def develop(image: Tensor, film: Film, gray: Tensor, capture: Capture) -> Tensor:
    """Light [N, 3, size, size] to uint8 [N, size, size, 3]; `gray` are the rows without colour."""
    size = image.shape[-1]
    image = _blur(image, film.blur * size + SENSOR_BLUR, capture.blur[1] * size + SENSOR_BLUR)
    image.index_copy_(0, gray, _luma(image.index_select(0, gray)))
    curve, contrast, brightness, noise = (
        setting.unsqueeze(1) for setting in (film.curve, film.contrast, film.brightness, film.noise)
    )
    image.clamp_(0, BRIGHTEST)
    image.div_((image * (1 - curve)).add_(curve))
    image.mul_(contrast * 255).add_((0.5 - 0.5 * contrast + brightness) * 255 + 0.5)
    strings = _noise(image[0].numel(), image.device)
    image.add_(strings[film.noise_offset.flatten().long()].view(image.shape).mul_(noise * 255))
    return image.clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _blur(image: Tensor, sigma: Tensor, largest: float) -> Tensor:
    """Separable blur with a compact kernel; its reach is set by the capture's worst case, never by the batch."""
    reach = min(int(largest * KERNEL_RADIUS), image.shape[-1] - 1)
    steps = torch.arange(reach + 1, device=image.device, dtype=torch.float32).view(1, -1, 1, 1)
    taps = (1 - (steps / (sigma.unsqueeze(1) * KERNEL_RADIUS)).square()).clamp_(min=0).square_()
    centre, *sides = taps.unsqueeze(2).unbind(1)
    total = centre
    for tap in sides:
        total = total + 2 * tap
    for dimension in (2, 3):
        size = image.shape[dimension]
        blurred = image * (centre / total)
        for distance, tap in enumerate(sides, 1):
            share, rest = image * (tap / total), size - distance
            blurred.narrow(dimension, distance, rest).add_(share.narrow(dimension, 0, rest))
            blurred.narrow(dimension, 0, rest).add_(share.narrow(dimension, distance, rest))
            # beyond the border, the outermost pixels go on
            blurred.narrow(dimension, 0, distance).add_(share.narrow(dimension, 0, 1))
            blurred.narrow(dimension, rest, distance).add_(share.narrow(dimension, size - 1, 1))
        image = blurred
    return image


def _luma(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(1)
    return (0.299 * red).add_(0.587 * green).add_(0.114 * blue).unsqueeze(1).expand_as(image)


@lru_cache(maxsize=8)
def _noise(length: int, device: torch.device) -> Tensor:
    """One long string of standard noise, seen from each of its first places: row i starts at its number i."""
    draw = Stream("sensor noise", torch.arange((NOISE_OFFSETS + length) // BLOCK + 1))
    string = torch.cat([draw.normal() for _ in range(BLOCK)]).float().to(device)
    return string.as_strided((NOISE_OFFSETS, length), (1, 1))
