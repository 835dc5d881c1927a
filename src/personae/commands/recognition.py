"""Models in use: write them as files, make people known, recognise them."""

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personae import recognition, screen
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    BackboneName,
    ClientName,
    EmbeddingSize,
    IdentityLevel,
    ImageSize,
    Mirror,
    Missed,
    OwnData,
    Personal,
    RawPixels,
    Resamples,
    RunName,
    SkipUnreadable,
    StageName,
    handling_of,
    network_of,
    protocols_of,
)
from personae.console import meter, notify
from personae.data import default_cache
from personae.deferred import importing
from personae.errors import ConfigError
from personae.words import counted

if TYPE_CHECKING:
    from personae.experiment.model import Model as LoadedModel
    from personae.recognition import Gallery, Threshold

app = typer.Typer()


UsedModel = Annotated[
    Path, typer.Option("--model", help="A run, a client's home, a weights file (.safetensors, .pth), or .onnx.")
]
GalleryFile = Annotated[Path, typer.Option("--gallery", metavar="FILE", help="The gallery, a file.")]
AtFar = Annotated[
    float | None, typer.Option("--far", min=0, max=1, help="Use the threshold for this false accept rate.")
]
EvaluationFile = Annotated[
    Path | None,
    typer.Option(
        "--evaluation", metavar="FILE.json", help="File with thresholds (evaluate --save); the model's card by default."
    ),
]
BenchmarkName = Annotated[str | None, typer.Option(help="The benchmark that the threshold was measured on.")]
ShowScores = Annotated[
    bool, typer.Option("--scores", help="Also show scores. A few dozen scores are enough to compute a template.")
]
ByHand = Annotated[
    float | None, typer.Option("--threshold", min=-1, max=1, help="Accept scores of at least this value.")
]


@app.command(name="export")
def export_a_model(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|HOME|WEIGHTS", help="A run, a client's home, or a weights file.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A .safetensors or .onnx file.")],
    stage: StageName = None,
    client: ClientName = None,
    run: RunName = None,
    personal: Personal = False,
    data: OwnData = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    raw_pixels: Annotated[
        bool, typer.Option("--raw-pixels", help="Make the ONNX model take pixels from 0 to 255.")
    ] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Make the ONNX model give vectors of length one.")] = False,
    mirror: Mirror = True,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="[NAME=]PATH", help="Evaluate on these faces; by default on those of the run."),
    ] = None,
    evaluate: Annotated[bool, typer.Option(help="Evaluate the written model, for the card.")] = True,
    far: Annotated[list[float] | None, typer.Option(min=0, max=1, help="A false accept rate; repeat for more.")] = None,
    resamples: Resamples = 200,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as safetensors or ONNX, checked against PyTorch, with a card beside it."""
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    exported = recognition.export_model(
        source,
        to,
        stage=stage,
        client=client,
        run=run,
        personal=personal,
        data=data,
        network=network_of(backbone, embedding, size),
        raw=raw_pixels,
        unit=unit,
        mirror=mirror,
        evaluate=evaluate,
        on=(lambda model: protocols_of(on, model, far, resamples, handling)) if on else None,
        fars=far or (),
        resamples=resamples,
        cache=default_cache() / "embeddings",
        progress=meter,
        notify=notify,
    )
    screen.exported(exported, as_json)


@app.command()
def enroll(
    faces: Annotated[
        list[Path], typer.Argument(help="A folder per person, a zip, a list or a pack; with --name, images.")
    ],
    model: UsedModel,
    gallery: GalleryFile,
    name: Annotated[str | None, typer.Option(help="The name of the person on these images.")] = None,
    align: Align = False,
    skip_unreadable: SkipUnreadable = False,
    identity_level: IdentityLevel = None,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    run: RunName = None,
    personal: Personal = False,
    data: OwnData = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    as_json: AsJson = False,
) -> None:
    """Enrol people: keep the vectors of their faces in a gallery, with a threshold."""
    loaded = _loaded(model, stage, client, run, personal, data, mirror, raw_pixels)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    if gallery.exists():
        recognition.open_gallery(gallery, loaded).close()  # that it is another model's is said before the work
    people = (
        [(name, recognition.read_portraits(faces, loaded, align=align, notify=notify))]
        if name
        else chain.from_iterable(
            [
                recognition.read_people(path, loaded, align=align, identity_level=identity_level, notify=notify)
                for path in faces
            ]
        )
    )
    found = recognition.prepare(people, loaded)
    for one, other in found.twice:
        notify(f"{one} and {other} are one photograph, under two names; whose is it?")
    if not skip_unreadable:
        found.refuse_gaps()
    found.refuse_nobody()
    with recognition.open_gallery(gallery, loaded) as known:
        added = known.add_all(found.vectors)
        if chosen:
            known.threshold = chosen
        screen.enrolled(added, found, known, as_json)


@app.command()
def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="An image; with --gallery, somebody's name.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="An image.")],
    model: UsedModel,
    gallery: Annotated[Path | None, typer.Option("--gallery", metavar="FILE", help="The gallery, a file.")] = None,
    align: Align = False,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    run: RunName = None,
    personal: Personal = False,
    data: OwnData = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    scores: ShowScores = False,
    as_json: AsJson = False,
) -> None:
    """Say whether two images show one person, or whether B shows the enrolled person A. Exit code 0: yes, 7: no."""
    loaded = _loaded(model, stage, client, run, personal, data, mirror, raw_pixels)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    with _opened(gallery) as known:
        used = recognition.Recogniser(loaded, _stated(chosen, known), known)
        face = recognition.read_face(second, loaded, align=align)
        match = (
            used.verify(first, face)
            if known
            else used.compare(recognition.read_face(Path(first), loaded, align=align), face)
        )
        screen.matches({str(second): match}, used.threshold, as_json, scores=scores, claimed=True)


@app.command()
def identify(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images of faces.")],
    model: UsedModel,
    gallery: GalleryFile,
    align: Align = False,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    run: RunName = None,
    personal: Personal = False,
    data: OwnData = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    scores: ShowScores = False,
    as_json: AsJson = False,
) -> None:
    """Say which enrolled person each image shows. Exit code 0: all are known, 7: one is not.

    It names images that it cannot use and answers for the others; the exit code is then 3.
    """
    import torch

    loaded = _loaded(model, stage, client, run, personal, data, mirror, raw_pixels)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    with recognition.Gallery.open(gallery) as known:
        used = recognition.Recogniser(loaded, _stated(chosen, known), known)
        given = recognition.read_portraits(images, loaded, align=align)
        found = used.identify(torch.stack(list(given.faces.values()))) if given.faces else []
        matches = dict(zip(given.faces, found, strict=True))
        screen.matches(matches, used.threshold, as_json, scores=scores, unusable=given.unusable)


galleries = typer.Typer(help="List the enrolled people, or erase one.", no_args_is_help=True)
app.add_typer(galleries, name="gallery")


@galleries.command(name="list")
def list_people(
    gallery: Annotated[Path, typer.Argument(metavar="FILE", help="The gallery, a file.")], as_json: AsJson = False
) -> None:
    """List the enrolled people and the threshold."""
    with recognition.Gallery.open(gallery) as known:
        screen.people(known, as_json)


@galleries.command(name="remove")
def remove_person(
    gallery: Annotated[Path, typer.Argument(metavar="FILE", help="The gallery, a file.")],
    name: Annotated[str, typer.Argument(help="The person to erase.")],
) -> None:
    """Erase a person: the file is rewritten, so that nothing of them is left in it."""
    with recognition.Gallery.open(gallery) as known:
        erased = counted(known.remove(name), "face")
        notify(f"{name}: {erased} erased from {gallery}; copies of the file still have them")


def _loaded(
    model: Path,
    stage: str | None,
    client: str | None,
    run: str | None,
    personal: bool,
    data: Path | None,
    mirror: bool,
    raw: bool,
) -> "LoadedModel":
    with importing():
        from personae.experiment.model import load_model

    return load_model(
        model,
        stage,
        client=client,
        run=run,
        personal=personal,
        data=data,
        mirror=mirror,
        raw=raw,
        progress=meter,
        notify=notify,
    )


def _threshold(
    model: "LoadedModel",
    path: Path,
    far: float | None,
    evaluation: Path | None,
    benchmark: str | None,
    score: float | None,
) -> "Threshold | None":
    """What the options say; None where they say nothing."""
    if far is None:
        if evaluation is not None or benchmark is not None:
            raise ConfigError("--evaluation and --benchmark go with --far, the false accept rate to choose")
        return None if score is None else recognition.by_hand(score)
    if score is not None:
        raise ConfigError("--far and --threshold exclude each other")
    source = evaluation or recognition.card_paths(path)[1]
    if evaluation is None and not source.is_file():
        raise ConfigError(f"--far: there is no card beside {path}; give --evaluation, from `personae evaluate --save`")
    return recognition.threshold_at(far, source, model, benchmark)


def _stated(chosen: "Threshold | None", gallery: "Gallery | None") -> "Threshold":
    found = chosen or (gallery.threshold if gallery else None)
    if found is None:
        raise ConfigError("no threshold: give --far (with --evaluation, if the model has no card), or --threshold")
    return found


def _opened(gallery: Path | None) -> "AbstractContextManager[Gallery | None]":
    return nullcontext() if gallery is None else recognition.Gallery.open(gallery)
