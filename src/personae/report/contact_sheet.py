"""A picture of clusters: one row each, the largest first."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from personae.data.faces import FaceSet
from personae.files import replacing
from personae.words import counted

ROWS, COLUMNS = 24, 12
TILE, GAP, MARGIN, CAPTION = 64, 4, 12, 120
PAPER, INK, ODD = "#ffffff", "#333333", "#c0392b"
FRAME = 3


def draw_clusters(faces: FaceSet, labels: NDArray[np.int64], path: Path, *, marked: bool = False) -> None:
    """Save a PNG of up to 24 clusters and up to 12 faces of each, spread over the cluster.

    `marked`: faces of another identity than most of their cluster are framed.
    """
    sizes = np.bincount(labels[labels >= 0])
    shown = np.argsort(-sizes, kind="stable")[:ROWS]
    width = 2 * MARGIN + CAPTION + COLUMNS * (TILE + GAP)
    sheet = Image.new("RGB", (width, 2 * MARGIN + 24 + max(1, len(shown)) * (TILE + GAP)), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN), _title(faces, labels, len(sizes), len(shown), marked), INK, font)
    for row, label in enumerate(shown.tolist()):
        top = MARGIN + 24 + row * (TILE + GAP)
        members = np.flatnonzero(labels == label)
        draw.text((MARGIN, top + TILE // 2 - 16), f"cluster {label}\n{counted(len(members), 'image')}", INK, font)
        chosen = members[np.unique(np.linspace(0, len(members) - 1, COLUMNS).round().astype(np.int64))]
        usual = np.bincount(faces.identity[members]).argmax() if marked else None
        for column, member in enumerate(chosen.tolist()):
            left = MARGIN + CAPTION + column * (TILE + GAP)
            picture = Image.fromarray(faces.images(np.array([member]))[0])
            sheet.paste(ImageOps.pad(picture, (TILE, TILE), color=PAPER), (left, top))
            if marked and faces.identity[member] != usual:
                draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), outline=ODD, width=FRAME)
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")


def _title(faces: FaceSet, labels: NDArray[np.int64], clusters: int, shown: int, marked: bool) -> str:
    text = f"{faces.name}: {counted(len(labels), 'image')}, {counted(clusters, 'cluster')}"
    if shown < clusters:
        text += f", the {shown} largest"
    if left := int(np.count_nonzero(labels < 0)):
        text += f"; {counted(left, 'image')} in none"
    return f"{text}; a frame marks another person than most of the cluster" if marked else text
