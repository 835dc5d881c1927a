"""Models on faces: evaluate them on benchmarks, or divide faces by identity with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Choice

from personae import screen
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    BackboneName,
    ClientName,
    Device,
    EmbeddingSize,
    IdentityLevel,
    ImageSize,
    Mirror,
    Missed,
    Model,
    OwnData,
    Personal,
    RawPixels,
    Resamples,
    RunName,
    SkipUnreadable,
    StageName,
    Unlabelled,
    check_device,
    handling_of,
    network_of,
    protocols_of,
)
from personae.console import meter, notify
from personae.data import default_cache
from personae.deferred import importing
from personae.files import require_place
from personae.interrupts import interruptible
from personae.written import literal, options

if TYPE_CHECKING:
    from personae.parts.clustering.finch import Centroids
    from personae.parts.clustering.neighbours import Metric, Search
else:
    (Centroids,) = literal("personae.parts.clustering.finch", "Centroids")
    Metric, Search = literal("personae.parts.clustering.neighbours", "Metric", "Search")

app = typer.Typer()
METHODS = options("personae.parts.clustering.methods", "METHODS")


@app.command()
def evaluate(
    model: Model,
    on: Annotated[
        list[str],
        typer.Option(
            "--on",
            metavar="[NAME=]PATH",
            help="A benchmark (lfw, calfw, cplfw, sllfw, cfpfp, cfpff, agedb30, vgg2fp, rfw, ijba, ijbb, ijbc,"
            " megaface), or any faces: a folder, a zip, a list, a .bin of pairs.",
        ),
    ],
    stage: StageName = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    far: Annotated[list[float] | None, typer.Option(min=0, max=1, help="A false accept rate; repeat for more.")] = None,
    client: ClientName = None,
    of_run: RunName = None,
    personal: Personal = False,
    own_data: OwnData = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    resamples: Resamples = 200,
    use_cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep vectors for the next time.")] = True,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with curves.")] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Save the figures; enroll takes its threshold from them.")
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: accuracy, true accept rates, ranks and groups, with intervals and curves."""
    with importing():
        from personae.evaluation.suite import evaluate as evaluate_all
        from personae.experiment.model import load_model
        from personae.recognition import save_evaluation
        from personae.report.evaluation_page import write_evaluation

    check_device(device)
    for target in filter(None, (report, save)):
        require_place(target)
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    given = network_of(backbone, embedding, size)
    loaded = load_model(
        model,
        stage,
        given,
        client=client,
        run=of_run,
        personal=personal,
        data=own_data,
        mirror=mirror,
        raw=raw_pixels,
        size=size,
        device=device,
        progress=meter,
        notify=notify,
    )
    protocols = protocols_of(on, loaded, far, resamples, handling)
    cache = default_cache() / "embeddings" if use_cache else None
    with interruptible("stopped; sets that were embedded whole are kept, and the same command goes on"):
        found = evaluate_all(loaded.embedder, protocols, cache=cache, device=device, progress=meter)
    if save:
        save_evaluation(save, loaded, found)
    if report:
        write_evaluation(report, model.name, found)
    screen.benchmarks(found, report, as_json)


@app.command()
def cluster(
    model: Model,
    on: Annotated[Path, typer.Option("--on", help="Faces: a folder (labelled or not), a zip, or a list.")],
    out: Annotated[Path, typer.Option(help="Folder for labels.csv, clusters.json, clusters.png.")] = Path("clusters"),
    method: Annotated[str, typer.Option(click_type=Choice(METHODS), help="The clustering method.")] = METHODS[0],
    distance: Annotated[float | None, typer.Option(help="c-finch: link first neighbours nearer than this.")] = None,
    metric: Annotated[Metric | None, typer.Option(help="c-finch, finch: how near vectors are.")] = None,
    level: Annotated[int | None, typer.Option(help="c-finch, finch: the partition; 0 finest, -1 coarsest.")] = None,
    centroids: Annotated[Centroids | None, typer.Option(help="c-finch, finch: what stands for a cluster.")] = None,
    search: Annotated[
        Search | None, typer.Option(help="c-finch, finch: how neighbours are found; auto: faiss beyond 200,000 images.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="k-means: how many clusters.")] = None,
    images_each: Annotated[float | None, typer.Option(help="k-means without --clusters: images per person.")] = None,
    radius: Annotated[float | None, typer.Option(help="dbscan: how near neighbours are.")] = None,
    neighbours: Annotated[
        int | None, typer.Option(help="dbscan, hdbscan: neighbours that a core of a cluster has.")
    ] = None,
    min_images: Annotated[int, typer.Option(min=1, help="Drop smaller clusters.")] = 2,
    seed: Annotated[int, typer.Option(help="k-means: the random seed.")] = 0,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    unlabelled: Unlabelled = False,
    stage: StageName = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Cluster unlabelled faces by person; write the labels and a picture of the clusters."""
    with importing():
        from personae.experiment.clusters import cluster_faces, clustering_of
        from personae.experiment.model import load_model

    check_device(device)
    given = {"distance": distance, "metric": metric, "level": level, "centroids": centroids, "search": search}
    given |= {"clusters": clusters, "images_each": images_each, "radius": radius, "neighbours": neighbours}
    way = clustering_of(method, {name: value for name, value in given.items() if value is not None})
    loaded = load_model(model, stage, network_of(backbone, embedding, size), size=size, device=device, notify=notify)
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    found = cluster_faces(
        loaded, on, way, min_images, seed=seed, unlabelled=unlabelled, progress=meter, notify=notify, **handling
    )
    found.write(out)
    screen.clusters(found, out, as_json)
