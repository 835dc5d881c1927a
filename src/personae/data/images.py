"""Decoding of image files that come from anywhere: look at the header first, refuse what is too large, say why."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from personae.data.pixels import Pixels

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
MAX_PIXELS = 50_000_000
MAX_SIDE = 65_535  # as of JPEG; decoders hold whole lines more than once
MAX_BYTES = 100_000_000

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_JPEG = b"\xff\xd8"
_EXIF_WITHIN = 65_536
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(Exception):
    """Why an image cannot be used, in a few words."""


def decode(
    encoded: bytes, height: int, width: int, *, upright: bool, crop: Callable[[Pixels], Pixels] | None = None
) -> Pixels:
    """uint8 [height, width, 3], RGB; cropped around the centre where the proportions differ.

    `upright` turns photographs as their camera says; `crop` cuts something out of them then, such as a face.
    """
    enough = MAX_PIXELS if crop else 2 * max(height, width)  # nobody knows how small a part will be left
    pixels = _decode(encoded, enough)
    turn = _turn(encoded) if upright else None
    if turn is None and crop is None and pixels.shape[:2] == (height, width):
        return pixels
    image = Image.fromarray(pixels)
    if turn is not None:
        image = image.transpose(turn)
    if crop:
        image = Image.fromarray(crop(np.asarray(image)))
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def decode_whole(encoded: bytes, *, upright: bool = False) -> Pixels:
    """uint8 [height, width, 3], RGB, in the size of the file; not turned where coordinates refer to it."""
    pixels = _decode(encoded, MAX_PIXELS)
    turn = _turn(encoded) if upright else None
    return pixels if turn is None else np.asarray(Image.fromarray(pixels).transpose(turn))


def size_of(encoded: bytes) -> tuple[int, int]:
    """Height and width, as the header has them."""
    try:
        if encoded.startswith(_JPEG):
            height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
            return height, width
    except ValueError:
        pass  # the general way may know better
    with _explained(encoded), Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
        return image.height, image.width


def _decode(encoded: bytes, enough: int) -> Pixels:
    pixels = _decode_jpeg(encoded, enough) if encoded.startswith(_JPEG) else None
    return _decode_any(encoded) if pixels is None else pixels


def _decode_jpeg(encoded: bytes, enough: int) -> Pixels | None:
    """The fast and strict way, for nearly all files; None where the general way may know better.

    A photograph is decoded at the smallest of its built-in scales that has `enough` pixels a side to average.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
        _refuse_huge(height, width)
        if colours not in ("YCbCr", "Gray", "RGB"):
            return None
        return np.asarray(simplejpeg.decode_jpeg(encoded, "RGB", min_height=enough, min_width=enough))
    except ValueError as error:
        if "premature end" in str(error).lower():
            raise ImageError("truncated") from error
        return None


def _decode_any(encoded: bytes) -> Pixels:
    with _explained(encoded), Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
        _refuse_huge(image.height, image.width)
        rgb = _as_rgb(image)
        if rgb is not image:
            image.close()  # its pixels would take as much again
        return np.asarray(rgb)


@contextmanager
def _explained(encoded: bytes) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd metadata; what matters is checked here
            yield
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError("not a JPEG, PNG, BMP or WebP image" if encoded else "an empty file") from error
    except Exception as error:  # decoders of damaged data raise nearly anything
        raise ImageError("truncated" if "truncated" in str(error).lower() else "damaged") from error


def _turn(encoded: bytes) -> Image.Transpose | None:
    if encoded.startswith(_JPEG) and b"Exif\0\0" not in encoded[:_EXIF_WITHIN]:
        return None
    try:
        with _explained(encoded), Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except ImageError:  # metadata that cannot be read says nothing
        return None


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, which a plain conversion would clip
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    # A conversion is a copy, even of what needs none, and an image may be large.
    if image.has_transparency_data:
        coloured = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", image.size, "black")
        image.paste(coloured, mask=coloured.getchannel("A"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _refuse_huge(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ImageError(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    if max(height, width) > MAX_SIDE:
        raise ImageError(f"{width} x {height} is longer than {MAX_SIDE:,} pixels")
