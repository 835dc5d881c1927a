"""Photographs of employees as an office has them: odd sizes, names and formats, one broken, one folder empty."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from personae.data import synthetic_faces

NAMES = ("Zoë Šimková", "Pat O'Neil, jr.", "李 小龙", "anna-maria", "Jean  Dupont", "Ünal_Öz")
SIZES = ((241, 317), (400, 300), (256, 256), (523, 411))  # width and height
BROKEN, EMPTY = "Zoë Šimková/broken scan.jpg", "left the company"
ORIENTATION, QUARTER_TURN = 0x0112, 6  # EXIF: the camera was held upright, the pixels lie on their side


def take_photographs(folder: Path, cache: Path, *, first: int, people: int, images: int) -> None:
    """An office's folder: so many synthetic people, from the number `first` on, in scenes of several kinds."""
    faces = synthetic_faces(identities=people, images=images, first=first, size=160, cache=cache)
    for row, face in enumerate(faces.images(np.arange(len(faces)))):
        person = folder / NAMES[faces.identity[row]]
        person.mkdir(parents=True, exist_ok=True)
        name, content = _developed(face, row)
        (person / name).write_bytes(content)
    whole = (folder / NAMES[0] / "IMG 0.jpg").read_bytes()
    (folder / BROKEN).write_bytes(whole[: len(whole) // 3])
    (folder / EMPTY).mkdir()


def people_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if any(path.iterdir()))


def photographs_of(folder: Path, person: str) -> list[Path]:
    return sorted(path for path in (folder / person).iterdir() if str(path.relative_to(folder)) != BROKEN)


def _developed(face: np.ndarray, number: int) -> tuple[str, bytes]:
    width, height = SIZES[number % len(SIZES)]
    side = min(width, height) * 2 // 3
    scene = Image.new("RGB", (width, height), (90, 110, 130))
    scene.paste(Image.fromarray(face).resize((side, side), Image.Resampling.BICUBIC), ((width - side) // 2, 20))
    kinds = (_plain, _turned, _grey, _for_print, _with_alpha)
    return kinds[number % len(kinds)](scene, number)


def _plain(scene: Image.Image, number: int) -> tuple[str, bytes]:
    return f"IMG {number}.jpg", _saved(scene, "JPEG", quality=92)


def _turned(scene: Image.Image, number: int) -> tuple[str, bytes]:
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN
    return f"phone {number}.JPG", _saved(scene.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=92, exif=exif)


def _grey(scene: Image.Image, number: int) -> tuple[str, bytes]:
    return f"badge-{number}.jpeg", _saved(scene.convert("L"), "JPEG", quality=92)


def _for_print(scene: Image.Image, number: int) -> tuple[str, bytes]:
    return f"brochure {number}.jpg", _saved(scene.convert("CMYK"), "JPEG", quality=92)


def _with_alpha(scene: Image.Image, number: int) -> tuple[str, bytes]:
    return f"Bildschirmfoto größer {number}.png", _saved(scene.convert("RGBA"), "PNG")


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
