"""The command line: it reads options, calls the package, and shows what comes back."""

import errno
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from click import Context
from typer.core import TyperGroup

from personae import screen
from personae.commands import about, data, deployment, recipes, recognition
from personae.commands.options import (
    Align,
    AsJson,
    AsTheyAre,
    BackboneName,
    ClientName,
    Device,
    EmbeddingSize,
    ExperimentFile,
    IdentityLevel,
    ImageSize,
    Mirror,
    Missed,
    Model,
    OwnData,
    Personal,
    RawPixels,
    RunName,
    Settings,
    SkipUnreadable,
    StageName,
    Unlabelled,
    Variant,
    Without,
    Workers,
    check_device,
    handling_of,
    network_of,
    options_of,
    protocols_of,
    tell_what_leaves,
)
from personae.console import messages, meter, notify
from personae.core.acceleration import Acceleration
from personae.data import PartitionPlan, default_cache, open_faces, synthetic_faces
from personae.errors import ConfigError, Interrupted, OutOfTime, PersonaeError
from personae.evaluation.suite import evaluate as evaluate_all
from personae.experiment.assess import load_model
from personae.experiment.clusters import cluster_faces, clustering_of
from personae.experiment.config import SYNTHETIC, Experiment, load_experiment
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials
from personae.experiment.run import run_experiment
from personae.experiment.rundir import is_taken
from personae.files import require_place
from personae.interrupts import interruptible
from personae.recognition.threshold import save_evaluation
from personae.report.evaluation_page import write_evaluation
from personae.report.html import write_report
from personae.report.partition_plot import plot_partition
from personae.reproduce.reproduce import find_system, reproduce
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS
from personae.runtime.inprocess import STREAMS, available_cores


class Commands(TyperGroup):
    """Typer would call an interrupted command aborted, with the exit code of a failure."""

    def invoke(self, ctx: Context) -> Any:
        with interruptible("stopped"):
            return super().invoke(ctx)


app = typer.Typer(cls=Commands, callback=about.personae, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(recipes.app)
app.add_typer(deployment.app)
app.add_typer(recognition.app)
app.add_typer(data.app, name="data")
app.add_typer(about.app)


class Clusterer(StrEnum):
    c_finch = "c-finch"
    finch = "finch"
    k_means = "k-means"
    dbscan = "dbscan"


class By(StrEnum):
    equal = "equal"
    one_identity = "one-identity"
    lognormal_identities = "lognormal-identities"
    lognormal_images = "lognormal-images"
    attributes = "attributes"
    domain = "domain"


class Scale(StrEnum):
    small = "small"
    large = "large"
    paper = "paper"


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/demo by default.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last completed round, if there is any.")
    ] = False,
    workers: Workers = None,
) -> None:
    """Pre-train, federate and compare on synthetic faces; nothing is needed but a few minutes."""
    experiment = load_experiment("demo")
    usual = Path("runs/demo")
    folder = out or (usual if resume else _free(usual))
    _execute(experiment, folder, resume=resume, workers=workers, hint=f"personae demo --out {folder} --resume")


@app.command()
def run(
    path: ExperimentFile,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    settings: Settings = None,
    variant: Variant = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last completed round, if there is any.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and stop.")] = False,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    workers: Workers = None,
    device: Device = "cpu",
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment."""
    acceleration = Acceleration().without(without or [])
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    experiment = load_experiment(path, settings or [], variant).handled(handling)
    if dry_run:
        count = _workers(workers, device)
        screen.forecast(forecast(Materials(experiment, count, meter, notify=notify), count), as_json)
        return
    folder = out or Path("runs") / (f"{experiment.name}-{variant}" if variant else experiment.name)
    hint = f"personae run {path} --out {folder} --resume" + (f" --variant {variant}" if variant else "")
    hint += "".join(f" --set {item}" for item in settings or [])
    hint += "".join(f" --without {name}" for name in without or [])
    hint += options_of(handling)
    _execute(
        experiment,
        folder,
        resume=resume,
        workers=workers,
        device=device,
        acceleration=acceleration,
        as_json=as_json,
        hint=hint,
    )


@app.command(name="reproduce")
def reproduce_claims(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"The system: {', '.join(SYSTEMS)}.")],
    scale: Annotated[
        Scale, typer.Option(help="For two cores in minutes, nearer to the paper, or at its numbers.")
    ] = Scale.small,
    claims: Annotated[str, typer.Option(metavar="ID,ID", help="Some of its claims; all by default.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: each has other people.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/reproduce-NAME-SCALE by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on; what is finished is not run again.")] = False,
    budget: Annotated[
        float | None, typer.Option(metavar="MINUTES", min=0, help="Stop after so long, to be resumed (exit code 5).")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one a core, or 8 on a GPU.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run the experiments behind a paper's claims, and say which of them hold."""
    system = find_system(name)
    folder = out or Path("runs") / f"reproduce-{name}-{scale}"
    hint = f"personae reproduce {name} --scale {scale} --seeds {seeds} --out {folder} --device {device} --resume"
    hint += (f" --claims {claims}" if claims else "") + ("" if budget is None else f" --budget {budget:g}")
    deadline = None if budget is None else time.monotonic() + 60 * budget
    try:
        result = reproduce(
            system,
            folder,
            scale=scale.value,
            claims=[item.strip() for item in claims.split(",")] if claims else [],
            seeds=seeds,
            resume=resume,
            runner=Runner(_workers(workers, device), device, progress=meter, notify=notify, deadline=deadline),
            notify=notify,
        )
    except (KeyboardInterrupt, OutOfTime) as stop:
        why = f"the {budget:g} minutes are spent" if isinstance(stop, OutOfTime) else "stopped"
        raise Interrupted(f"{why}; what is done is in {folder}; continue with: {hint}") from None
    screen.findings_of_claims(result, folder, as_json)


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
    resamples: Annotated[int, typer.Option(min=0, help="Of the confidence intervals; 0 for none.")] = 200,
    use_cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep vectors for the next time.")] = True,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with curves.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write it for enroll and the like.")] = None,
    skip_unreadable: SkipUnreadable = False,
    align: Align = False,
    missed: Missed = None,
    as_they_are: AsTheyAre = False,
    identity_level: IdentityLevel = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: accuracy, true accept rates, ranks, groups; with intervals and curves."""
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
    try:
        found = evaluate_all(loaded.embedder, protocols, cache=cache, device=device, progress=meter)
    except KeyboardInterrupt:
        raise Interrupted("stopped; sets that were embedded whole are kept, and the same command goes on") from None
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
    method: Annotated[Clusterer, typer.Option(help="How.")] = Clusterer.c_finch,
    distance: Annotated[float | None, typer.Option(help="c-finch: link first neighbours nearer than this.")] = None,
    metric: Annotated[str | None, typer.Option(help="c-finch, finch: euclidean or cosine.")] = None,
    level: Annotated[int | None, typer.Option(help="c-finch, finch: the partition; 0 finest, -1 coarsest.")] = None,
    centroids: Annotated[str | None, typer.Option(help="c-finch, finch: means of clusters, unit or mean.")] = None,
    search: Annotated[
        str | None, typer.Option(help="c-finch, finch: exact, faiss or auto: faiss beyond 200,000 images.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="k-means: how many.")] = None,
    images_each: Annotated[float | None, typer.Option(help="k-means without --clusters: images of a person.")] = None,
    radius: Annotated[float | None, typer.Option(help="dbscan: how near neighbours are.")] = None,
    neighbours: Annotated[int | None, typer.Option(help="dbscan: how many make an image dense.")] = None,
    min_images: Annotated[int, typer.Option(min=1, help="Drop smaller clusters.")] = 2,
    seed: Annotated[int, typer.Option(help="k-means: where it begins.")] = 0,
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
    """Divide faces by identity, without labels; write who is with whom, and a picture of the clusters."""
    check_device(device)
    options = {"distance": distance, "metric": metric, "level": level, "centroids": centroids, "search": search}
    options |= {"clusters": clusters, "images_each": images_each, "radius": radius, "neighbours": neighbours}
    way = clustering_of(method.value, {name: value for name, value in options.items() if value is not None})
    loaded = load_model(model, stage, network_of(backbone, embedding, size), size=size, device=device, notify=notify)
    handling = handling_of(skip_unreadable, align, missed, as_they_are, identity_level)
    found = cluster_faces(
        loaded, on, way, min_images, seed=seed, unlabelled=unlabelled, progress=meter, notify=notify, **handling
    )
    found.write(out)
    screen.clusters(found, out, as_json)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")], as_json: AsJson = False
) -> None:
    """Write a run's report.html anew, and print its table."""
    screen.models(path, write_report(path), as_json)


@app.command()
def partition(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder, zip or list of faces, or `synthetic`.")],
    by: Annotated[By, typer.Option(help="How identities are dealt.")] = By.equal,
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients.")] = None,
    mu: Annotated[float, typer.Option(help="Log-normal: the mean of the logarithm.")] = 3.0,
    sigma: Annotated[float, typer.Option(help="Log-normal: the deviation of the logarithm.")] = 3.0,
    shared: Annotated[float, typer.Option(help="Share of identities held by several clients.")] = 0.0,
    new_clients: Annotated[int, typer.Option(help="Clients kept out of training.")] = 0,
    predicate: Annotated[list[str] | None, typer.Option(help='By attributes: e.g. "Male & !Young"; repeat.')] = None,
    source: Annotated[str, typer.Option(help="By domain: the source domain.")] = "",
    drop_small: Annotated[bool, typer.Option(help="Leave identities with a single image out.")] = False,
    unlabelled: Unlabelled = False,
    identities: Annotated[int, typer.Option(help="Synthetic: how many people.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed, another partition.")] = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
    table: Annotated[Path | None, typer.Option(help="Write client, identity, image, split as CSV.")] = None,
    skip_unreadable: SkipUnreadable = False,
    identity_level: IdentityLevel = None,
    as_json: AsJson = False,
) -> None:
    """Divide faces among clients; print and plot who holds what."""
    plan = PartitionPlan(
        by=by.value,
        clients=clients,
        mu=mu,
        sigma=sigma,
        shared=shared,
        new_clients=new_clients,
        predicates=tuple(predicate or ()),
        source=source,
        drop_small=drop_small,
    )
    if data == SYNTHETIC:
        faces = synthetic_faces(identities=identities, images=20, seed=seed, size=32, progress=meter)
    else:
        # Who holds what does not depend on whether faces are aligned.
        handling = handling_of(skip_unreadable, as_they_are=True, identity_level=identity_level)
        faces = open_faces(
            Path(data), height=112, width=112, progress=meter, notify=notify, unlabelled=unlabelled, **handling
        )
    division = plan.apply(faces, seed)
    plot_partition(faces, division, plot)
    if table:
        division.write_table(faces, table)
    screen.holdings(division.summary(faces), plot, as_json)


def main() -> None:
    """Errors that a user can act on are one line and an exit code."""
    try:
        app()
    except PersonaeError as error:
        _fail(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(Interrupted(f"{error.filename or 'writing'}: the disk is full; free some space and resume"))
        _fail(ConfigError(f"{error.filename}: {error.strerror}"))


def _fail(error: PersonaeError) -> NoReturn:
    messages.print(f"personae: {error}", style="red", markup=False, soft_wrap=True)
    sys.exit(error.exit_code)


def _execute(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    acceleration: Acceleration | None = None,
    as_json: bool = False,
    hint: str,
) -> None:
    tell_what_leaves(experiment)
    with interruptible(f"stopped; the completed rounds are in {out}; continue with: {hint}"):
        result = run_experiment(
            experiment,
            out,
            resume=resume,
            workers=_workers(workers, device),
            device=device,
            acceleration=acceleration,
            progress=meter,
            notify=notify,
        )
        screen.models(out, result.report, as_json)


def _workers(asked: int | None, device: str) -> int:
    check_device(device)
    return asked or (available_cores() if device == "cpu" else STREAMS)


def _free(wanted: Path) -> Path:
    """The folder itself, or with the first number behind it that makes it new."""
    number, path = 1, wanted
    while is_taken(path):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
