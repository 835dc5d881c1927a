"""Decoding of image files that come from anywhere: look at the header first, refuse what is too large, say why."""

import io
import warnings

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from personae.data.pixels import Pixels

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
MAX_PIXELS = 50_000_000
MAX_BYTES = 100_000_000

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_EXIF_WITHIN = 65_536


class ImageError(Exception):
    """Why an image cannot be used, in a few words."""


def decode(encoded: bytes, height: int, width: int, *, upright: bool) -> Pixels:
    """uint8 [height, width, 3], RGB; cropped around the centre where the proportions differ.

    `upright` turns photographs as their camera says.
    """
    if encoded.startswith(b"\xff\xd8") and not (upright and b"Exif\0\0" in encoded[:_EXIF_WITHIN]):
        image = _decode_jpeg(encoded, height, width)
        if image is not None:
            return _fit(image, height, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on odd metadata; what matters is checked here
        return _fit(_decode_any(encoded, upright), height, width)


def _decode_jpeg(encoded: bytes, height: int, width: int) -> Pixels | None:
    """The fast way, for nearly all files; None where the general way may know better."""
    try:
        full_height, full_width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
        _refuse_huge(full_height, full_width)
        if colours not in ("YCbCr", "Gray", "RGB"):
            return None
        # A photograph is decoded at the smallest of its built-in scales that leaves the resampling enough to average.
        return np.asarray(simplejpeg.decode_jpeg(encoded, "RGB", min_height=2 * height, min_width=2 * width))
    except ValueError as error:
        if "premature end" in str(error).lower():
            raise ImageError("truncated") from error
        return None


def _decode_any(encoded: bytes, upright: bool) -> Pixels:
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            _refuse_huge(image.height, image.width)
            turned = ImageOps.exif_transpose(image) if upright else image
            return np.asarray(_as_rgb(turned))
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError("not a JPEG, PNG, BMP or WebP image" if encoded else "an empty file") from error
    except Exception as error:  # decoders of damaged data raise nearly anything
        raise ImageError("truncated" if "truncated" in str(error).lower() else "damaged") from error


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, which a plain conversion would clip
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), coloured)
    return image.convert("RGB")


def _fit(image: Pixels, height: int, width: int) -> Pixels:
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(ImageOps.fit(Image.fromarray(image), (width, height), Image.Resampling.BICUBIC))


def _refuse_huge(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ImageError(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
