"""`personae data`: look at faces, pack them, align them."""

from pathlib import Path
from typing import Annotated

import typer

from personae import screen
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    IdentityLevel,
    Missed,
    SkipUnreadable,
    Unlabelled,
    handling_of,
    layout_at,
)
from personae.console import meter, notify
from personae.data.handling import MIN_SCORE
from personae.data.inspection import inspect_faces
from personae.interrupts import interruptible

app = typer.Typer()
faces = typer.Typer(help="Look at faces, pack them into one file, align them.", no_args_is_help=True)
app.add_typer(faces, name="data")

Faces = Annotated[
    str,
    typer.Argument(
        metavar="[NAME=]PATH",
        help="Faces: a folder, zip, list, .rec, Parquet, pack, or a benchmark, such as cfpfp=PATH.",
    ),
]
Height = Annotated[int, typer.Option(min=1, help="Height of the images, in pixels.")]
Width = Annotated[int, typer.Option(min=1, help="Width of the images, in pixels; some networks want 96.")]


@faces.command()
def inspect(
    faces: Faces,
    identity_level: IdentityLevel = None,
    unlabelled: Unlabelled = False,
    sample: Annotated[int | None, typer.Option(min=0, help="Look at this many images only, evenly spread.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe face data: its format, how many people, what is odd, and what to do with it."""
    path, layout = layout_at(faces)
    found = inspect_faces(
        path, layout=layout, identity_level=identity_level, unlabelled=unlabelled, sample=sample, progress=meter
    )
    screen.inspection(found, as_json)


@faces.command()
def pack(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Faces in any supported format.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The file to write, such as train.faces.")],
    height: Height = 112,
    width: Width = 112,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    unlabelled: Unlabelled = False,
    as_json: AsJson = False,
) -> None:
    """Decode faces into one file, which experiments read without decoding it."""
    from personae.data.decoded import pack_faces

    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    faces = pack_faces(
        source,
        target,
        height=height,
        width=width,
        unlabelled=unlabelled,
        progress=meter,
        notify=notify,
        **handling,
    )
    screen.packed(faces, target, as_json)


@faces.command()
def align(
    source: Annotated[
        str,
        typer.Argument(metavar="[NAME=]SRC", help="Photographs in any supported format; cfpfp=SRC names the format."),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A new folder, or one that is not finished.")],
    height: Height = 112,
    width: Width = 112,
    landmarks: Annotated[
        Path | None, typer.Option(help="File with five points per image (path x y x y ...), instead of the detector.")
    ] = None,
    margin: Annotated[
        float, typer.Option(min=0, max=4, help="Margin to add around tight crops, as a share of the longer side.")
    ] = 0.0,
    min_score: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out faces with a lower detector score.")
    ] = MIN_SCORE,
    identity_level: IdentityLevel = None,
    unlabelled: Unlabelled = False,
    as_json: AsJson = False,
) -> None:
    """Find the main face of each image, and move its eyes, nose and mouth to where networks expect them."""
    from personae.data.aligned import align_faces

    with interruptible(f"stopped; what is done is in {target}; the same command goes on"):
        path, layout = layout_at(source)
        done = align_faces(
            path,
            target,
            height=height,
            width=width,
            landmarks=landmarks,
            margin=margin,
            min_score=min_score,
            layout=layout,
            identity_level=identity_level,
            unlabelled=unlabelled,
            progress=meter,
            notify=notify,
        )
    screen.aligned(done, target, as_json)
