"""Decoding of image files that come from anywhere: look at the header first, refuse what is too large, say why."""

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from personae.data.pixels import Pixels

SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
HEIC = frozenset({".heic", ".heif", ".hif"})
HEIC_ADVICE = "HEIC takes pip install 'personae[heic]'"
MAX_PIXELS = 50_000_000
MAX_SIDE = 65_535  # as of JPEG; decoders hold whole lines more than once
MAX_BYTES = 100_000_000
MAX_SCANS = 100  # of a JPEG; encoders make about ten
MAX_SCANNED = 1_000_000_000  # pixels in all its scans together

NO_FACE = "no face was found"

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF")
_JPEG, _SCAN = b"\xff\xd8", b"\xff\xda"
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_COLOURS = {"L": "grey", "I": "grey", "I;16": "grey", "1": "black and white", "LA": "grey", "P": "palette"}
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


class NoFaceError(ImageError):
    """An image that can be decoded, and in which no face is found."""


@cache
def reads_heic() -> bool:
    """Whether the extra `heic` is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


def is_image(name: str) -> bool:
    """Whether a file of this name is read; of HEIC, with the extra alone."""
    suffix = PurePath(name).suffix.lower()
    return suffix in SUFFIXES or (suffix in HEIC and reads_heic())


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


class Header(NamedTuple):
    """What an image file says of itself."""

    kind: str
    colours: str
    height: int
    width: int
    turned: bool
    """Whether the camera says that it was held otherwise."""


def header_of(encoded: bytes) -> Header:
    with _opened(encoded) as image:
        return Header(
            image.format or "",
            _COLOURS.get(image.mode, image.mode),
            image.height,
            image.width,
            _noted(image) is not None,
        )


def size_of(encoded: bytes) -> tuple[int, int]:
    """Height and width as they are stored; of nearly all files much faster than the whole header."""
    try:
        if encoded.startswith(_JPEG):
            height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
            return height, width
    except ValueError:
        pass  # the general way may know better
    header = header_of(encoded)
    return header.height, header.width


def _refuse_many_scans(encoded: bytes, height: int, width: int) -> None:
    """Every scan of a progressive JPEG goes over all its pixels; the marker cannot be part of what is compressed."""
    scans = encoded.count(_SCAN) if encoded.startswith(_JPEG) else 1
    if scans > min(MAX_SCANS, MAX_SCANNED // max(1, height * width)):
        raise ImageError(f"{scans} scans of {width} x {height} pixels are too many")


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
        _refuse_many_scans(encoded, height, width)
        if colours not in ("YCbCr", "Gray", "RGB"):
            return None
        return np.asarray(simplejpeg.decode_jpeg(encoded, "RGB", min_height=enough, min_width=enough))
    except ValueError as error:
        if "premature end" in str(error).lower():
            raise ImageError("truncated") from error
        return None


def _decode_any(encoded: bytes) -> Pixels:
    with _opened(encoded) as image:
        _refuse_huge(image.height, image.width)
        _refuse_many_scans(encoded, image.height, image.width)
        rgb = _as_rgb(image)
        if rgb is not image:
            image.close()  # its pixels would take as much again
        return np.asarray(rgb)


@contextmanager
def _opened(encoded: bytes) -> Iterator[Image.Image]:
    formats: tuple[str, ...] = _FORMATS
    if _is_heic(encoded):
        if not reads_heic():
            raise ImageError(HEIC_ADVICE)
        import pillow_heif  # an extra

        pillow_heif.register_heif_opener()
        formats = ("HEIF",)
    with _explained(encoded), Image.open(io.BytesIO(encoded), formats=formats) as image:
        yield image


def _is_heic(encoded: bytes) -> bool:
    return encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIC_BRANDS


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
        unknown = "damaged" if _is_heic(encoded) else "not a JPEG, PNG, BMP, WebP, GIF, TIFF or HEIC image"
        raise ImageError(unknown if encoded else "an empty file") from error
    except Exception as error:  # decoders of damaged data raise nearly anything
        raise ImageError("truncated" if "truncated" in str(error).lower() else "damaged") from error


def _turn(encoded: bytes) -> Image.Transpose | None:
    if encoded.startswith(_JPEG) and b"Exif\0\0" not in encoded[:_EXIF_WITHIN]:
        return None
    try:
        with _opened(encoded) as image:
            return _noted(image)
    except ImageError:  # metadata that cannot be read says nothing
        return None


def _noted(image: Image.Image) -> Image.Transpose | None:
    """How the camera says to turn it; a TIFF is turned when it is decoded, whoever asks."""
    return None if image.format == "TIFF" else _TURNS.get(image.getexif().get(_ORIENTATION, 1))


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
