"""The command line: it reads options, calls the package, and shows what comes back."""

import contextlib
import errno
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer

from personae import screen
from personae.console import messages, meter, notify
from personae.core.acceleration import Acceleration
from personae.data import PartitionPlan, default_cache, detection, open_faces, synthetic_faces
from personae.data_commands import app as data_app
from personae.deployment.plan import Conditions
from personae.deployment.processes import require_flower
from personae.doctor import examine
from personae.errors import ConfigError, Interrupted, PersonaeError
from personae.evaluation.protocols import EvaluationProtocol
from personae.evaluation.suite import evaluate as evaluate_all
from personae.experiment.assess import Model as LoadedModel
from personae.experiment.assess import Setting, load_model, open_protocol
from personae.experiment.clusters import cluster_faces, clustering_of
from personae.experiment.config import SYNTHETIC, Experiment, load_experiment
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials
from personae.experiment.run import run_experiment
from personae.models import Network
from personae.privacy.disclosure import warning
from personae.recognition.card import card_paths
from personae.recognition.export import export_model
from personae.recognition.faces import read_face, read_people, read_person
from personae.recognition.gallery import Gallery
from personae.recognition.recogniser import Recogniser, open_gallery
from personae.recognition.recogniser import enroll as enroll_person
from personae.recognition.threshold import Threshold, by_hand, save_evaluation, threshold_at
from personae.report.evaluation_page import write_evaluation
from personae.report.html import write_report
from personae.report.partition_plot import plot_partition
from personae.reproduce.reproduce import find_system, reproduce
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS
from personae.runtime.inprocess import STREAMS, available_cores

app = typer.Typer(
    help="Federated face recognition: train one model together, keep a personal one each, share no faces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")


def _with_detector(asked: bool) -> bool:
    """That it is not installed is said before a model is loaded or a gallery begun."""
    if asked:
        detection.require()
    return asked


Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Clients at once: processes, one a core; with cuda streams, 8."),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Without = Annotated[
    list[str] | None, typer.Option("--without", metavar="NAME", help="Switch an optimisation off; repeat for more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[Path, typer.Argument(help="A run, a weights file (.safetensors, .pth), or .onnx.")]
StageName = Annotated[str | None, typer.Option(help="Of a run: which stage's model.")]
BackboneName = Annotated[str | None, typer.Option(help="Of a weights file: the network, if unknown.")]
EmbeddingSize = Annotated[int, typer.Option(help="With --backbone: the size of its vectors.")]
ImageSize = Annotated[int, typer.Option(help="With --backbone or ONNX: the size of its images.")]
ClientName = Annotated[str | None, typer.Option("--client", help="Of a run: this client's personal model.")]
Mirror = Annotated[bool, typer.Option(help="Add the vector of an image's mirror image.")]
RawPixels = Annotated[bool, typer.Option("--raw-pixels", help="Of ONNX: pixels from 0 to 255, not -1 to 1.")]
UsedModel = Annotated[Path, typer.Option("--model", help="A run, a weights file (.safetensors, .pth), or .onnx.")]
GalleryFile = Annotated[Path, typer.Option("--gallery", metavar="FILE", help="Who is known; a file of its own.")]
AtFar = Annotated[
    float | None, typer.Option("--far", min=0, max=1, help="Accept at this false accept rate of an evaluation.")
]
EvaluationFile = Annotated[
    Path | None, typer.Option("--evaluation", metavar="FILE.json", help="Of the model; its card by default.")
]
BenchmarkName = Annotated[str | None, typer.Option(help="Of the evaluation: the benchmark that counts.")]
Align = Annotated[
    bool, typer.Option("--align", callback=_with_detector, help="Find and align the main face of each photograph.")
]
ByHand = Annotated[float | None, typer.Option("--threshold", min=-1, max=1, help="Accept from this score on.")]


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


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/demo by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last completed round.")] = False,
    workers: Workers = None,
) -> None:
    """Pre-train, federate and compare on synthetic faces; nothing is needed but a few minutes."""
    with as_file(files("personae.experiment") / "demo.toml") as path:
        experiment = load_experiment(path)
    usual = Path("runs/demo")
    folder = out or (usual if resume else _free(usual))
    _execute(experiment, folder, resume=resume, workers=workers, hint=f"personae demo --out {folder} --resume")


@app.command()
def run(
    path: Annotated[Path, typer.Argument(metavar="EXP.toml", help="The experiment.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of the experiment.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One of the variants that the file holds.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last completed round.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and stop.")] = False,
    workers: Workers = None,
    device: Device = "cpu",
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment."""
    acceleration = Acceleration().without(without or [])
    experiment = load_experiment(path, settings or [], variant)
    if dry_run:
        count = _workers(workers, device)
        screen.forecast(forecast(Materials(experiment, count, meter), count), as_json)
        return
    folder = out or Path("runs") / (f"{experiment.name}-{variant}" if variant else experiment.name)
    hint = f"personae run {path} --out {folder} --resume" + (f" --variant {variant}" if variant else "")
    hint += "".join(f" --set {item}" for item in settings or [])
    hint += "".join(f" --without {name}" for name in without or [])
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
    scale: Annotated[Scale, typer.Option(help="For two cores in minutes, or nearer to the paper.")] = Scale.small,
    claims: Annotated[str, typer.Option(metavar="ID,ID", help="Some of its claims; all by default.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: each has other people.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/reproduce-NAME-SCALE by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on; what is finished is not run again.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one a core, or 8 on a GPU.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run the experiments behind a paper's claims, and say which of them hold."""
    system = find_system(name)
    folder = out or Path("runs") / f"reproduce-{name}-{scale}"
    hint = f"personae reproduce {name} --scale {scale} --seeds {seeds} --out {folder} --device {device} --resume"
    try:
        result = reproduce(
            system,
            folder,
            scale=scale.value,
            claims=[item.strip() for item in claims.split(",") if item.strip()],
            seeds=seeds,
            resume=resume,
            runner=Runner(workers=_workers(workers, device), device=device, progress=meter, notify=notify),
            notify=notify,
        )
    except KeyboardInterrupt:
        hint += f" --claims {claims}" if claims else ""
        raise Interrupted(f"stopped; what is done is in {folder}; continue with: {hint}") from None
    screen.findings_of_claims(result, folder, as_json)


@app.command()
def serve(
    path: Annotated[Path, typer.Argument(metavar="EXP.toml", help="The experiment.")],
    certs: Annotated[Path, typer.Option(help="The server's folder, as made by personae certs.")] = Path("certs/server"),
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="And its port.")] = 9093,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of the experiment.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One of the variants that the file holds.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last completed round.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds that clients have to answer.")] = 600.0,
    wait: Annotated[float, typer.Option(help="Seconds for clients to connect before the run begins.")] = 3600.0,
    coding: Annotated[
        str, typer.Option(help="How models travel: exact, fp16, bf16, delta-fp16, delta-bf16.")
    ] = "exact",
    largest: Annotated[int, typer.Option(min=1, help="What an answer may hold, in MiB.")] = 1024,
    app_only: Annotated[bool, typer.Option("--app-only", help="Write the app for `flwr run`, and stop.")] = False,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run an experiment over a network, with the clients that join."""
    require_flower()
    from personae.deployment import serve as deployed
    from personae.deployment.certs import enrolled

    _check_device(device)
    experiment = load_experiment(path, settings or [], variant)
    folder = out or Path("runs") / (f"{experiment.name}-{variant}" if variant else experiment.name)
    conditions = Conditions(deadline=deadline, wait=wait, coding=coding, max_bytes=largest << 20, device=device)
    for stage in experiment.recipe:
        if text := warning(stage.algorithm):
            notify(f"stage {stage.name}: {text}")
    if app_only:
        deployed.prepare(experiment, folder, list(enrolled(certs)), conditions, resume=resume)
        screen.paths([folder / "app"], as_json)
        return
    try:
        deployed.serve(
            experiment, folder, certs, host=host, port=port, conditions=conditions, resume=resume, notify=notify
        )
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; the completed rounds are in {folder}; continue with the same and --resume"
        ) from None
    screen.models(folder, write_report(folder), as_json)


@app.command()
def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is.")],
    data: Annotated[Path, typer.Option(help="This client's faces: a folder per identity, a zip, or a list.")],
    certs: Annotated[Path, typer.Option(help="This client's folder, as made by personae certs.")],
    home: Annotated[Path, typer.Option(help="Where it keeps what never leaves it.")] = Path("personae-home"),
    public: Annotated[Path | None, typer.Option(help="Its copy of the experiment's public faces.")] = None,
    device: Device = "cpu",
) -> None:
    """Take part in a server's runs with the faces of this machine, until stopped."""
    require_flower()
    from personae.deployment import join as deployed

    _check_device(device)
    member = deployed.Member(data=data, home=home, public=public, device=device, progress=meter, notify=notify)
    with contextlib.suppress(KeyboardInterrupt):
        deployed.join(server, member, certs)


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What is there stays.")] = Path("certs"),
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; repeat for more.")
    ] = None,
    clients: Annotated[list[str] | None, typer.Option("--client", help="The name of a client; repeat.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an authority, a server's certificate and keys of clients, for tests and labs."""
    require_flower()
    from personae.deployment.certs import make_certificates

    screen.paths(make_certificates(folder, hosts or [], clients or []), as_json)


@app.command()
def deal(
    path: Annotated[Path, typer.Argument(metavar="EXP.toml", help="The experiment.")],
    out: Annotated[Path, typer.Option(help="Folder for one zip a client.")] = Path("dealt"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of the experiment.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Divide an experiment's private faces into a file for each client, to try a deployment with."""
    from personae.deployment.faces import deal as deal_faces

    screen.paths(deal_faces(Materials(load_experiment(path, settings or []), progress=meter), out), as_json)


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
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    resamples: Annotated[int, typer.Option(min=0, help="Of the confidence intervals; 0 for none.")] = 200,
    use_cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep vectors for the next time.")] = True,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with curves.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write it for enroll and the like.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks: accuracy, true accept rates, ranks, groups; with intervals and curves."""
    _check_device(device)
    given = _network(backbone, embedding, size)
    loaded = load_model(
        model, stage, given, client=client, mirror=mirror, raw=raw_pixels, size=size, device=device, progress=meter
    )
    protocols = _protocols(on, loaded, far, resamples)
    cache = default_cache() / "embeddings" if use_cache else None
    found = evaluate_all(loaded.embedder, protocols, cache=cache, device=device, progress=meter)
    if save:
        save_evaluation(save, loaded, found)
    if report:
        write_evaluation(report, model.name, found)
    screen.benchmarks(found, report, as_json)


@app.command(name="export")
def export_a_model(
    source: Annotated[Path, typer.Argument(metavar="RUN|WEIGHTS", help="A run, or a weights file.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A .safetensors or .onnx file.")],
    stage: StageName = None,
    client: ClientName = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    raw_pixels: Annotated[
        bool, typer.Option("--raw-pixels", help="Of ONNX: let it take pixels from 0 to 255.")
    ] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Of ONNX: let it give vectors of length one.")] = False,
    mirror: Mirror = True,
    on: Annotated[
        list[str] | None, typer.Option("--on", metavar="[NAME=]PATH", help="Judge it there; a run's own by default.")
    ] = None,
    judge: Annotated[bool, typer.Option(help="Evaluate what was written, for the card.")] = True,
    far: Annotated[list[float] | None, typer.Option(min=0, max=1, help="A false accept rate; repeat for more.")] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Of the confidence intervals; 0 for none.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Write a model as safetensors or ONNX, checked against PyTorch, with a card beside it."""
    exported = export_model(
        source,
        to,
        stage=stage,
        client=client,
        network=_network(backbone, embedding, size),
        raw=raw_pixels,
        unit=unit,
        mirror=mirror,
        judge=judge,
        on=(lambda model: _protocols(on, model, far, resamples)) if on else None,
        fars=far or (),
        resamples=resamples,
        cache=default_cache() / "embeddings",
        progress=meter,
    )
    screen.exported(exported, as_json)


@app.command()
def enroll(
    faces: Annotated[list[Path], typer.Argument(help="A folder per person, a zip or a list; with --name, images.")],
    model: UsedModel,
    gallery: GalleryFile,
    name: Annotated[str | None, typer.Option(help="Whose these images are.")] = None,
    align: Align = False,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    as_json: AsJson = False,
) -> None:
    """Make people known: keep the vectors of their faces in a gallery, with the threshold to accept from."""
    loaded = load_model(model, stage, client=client, mirror=mirror, raw=raw_pixels, progress=meter)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    people = (
        [(name, read_person(faces, loaded, align=align))]
        if name
        else (each for path in faces for each in read_people(path, loaded, align=align))
    )
    with open_gallery(gallery, loaded) as known:
        if chosen:
            known.threshold = chosen
        added = {person: enroll_person(known, loaded, person, images) for person, images in people}
        screen.enrolled(added, known, as_json)


@app.command()
def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="An image; with --gallery, somebody's name.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="An image.")],
    model: UsedModel,
    gallery: Annotated[Path | None, typer.Option("--gallery", metavar="FILE", help="Who is known.")] = None,
    align: Align = False,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    as_json: AsJson = False,
) -> None:
    """Are two images of one person, or B of the enrolled person A? Ends with 0 if so, and with 7 if not."""
    loaded = load_model(model, stage, client=client, mirror=mirror, raw=raw_pixels, progress=meter)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    with _opened(gallery) as known:
        used = Recogniser(loaded, _stated(chosen, known), known)
        face = read_face(second, loaded, align=align)
        match = used.verify(first, face) if known else used.compare(read_face(Path(first), loaded, align=align), face)
        screen.matches({str(second): match}, used.threshold, as_json, claimed=True)


@app.command()
def identify(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Faces of somebody.")],
    model: UsedModel,
    gallery: GalleryFile,
    align: Align = False,
    far: AtFar = None,
    evaluation: EvaluationFile = None,
    benchmark: BenchmarkName = None,
    threshold: ByHand = None,
    stage: StageName = None,
    client: ClientName = None,
    mirror: Mirror = True,
    raw_pixels: RawPixels = False,
    as_json: AsJson = False,
) -> None:
    """Who of the enrolled is it? Ends with 0 if every image is of somebody known, and with 7 if one is not."""
    loaded = load_model(model, stage, client=client, mirror=mirror, raw=raw_pixels, progress=meter)
    chosen = _threshold(loaded, model, far, evaluation, benchmark, threshold)
    with Gallery.open(gallery) as known:
        used = Recogniser(loaded, _stated(chosen, known), known)
        found = used.identify(torch.stack([read_face(path, loaded, align=align) for path in images]))
        screen.matches(dict(zip(map(str, images), found, strict=True)), used.threshold, as_json)


galleries = typer.Typer(help="Who is known: list people, or erase somebody.", no_args_is_help=True)
app.add_typer(galleries, name="gallery")


@galleries.command(name="list")
def list_people(gallery: Annotated[Path, typer.Argument(metavar="FILE")], as_json: AsJson = False) -> None:
    """Everybody who is enrolled, and the threshold."""
    with Gallery.open(gallery) as known:
        screen.people(known, as_json)


@galleries.command(name="remove")
def remove_person(
    gallery: Annotated[Path, typer.Argument(metavar="FILE")],
    name: Annotated[str, typer.Argument(help="Whom to erase.")],
) -> None:
    """Erase a person: the file is rewritten, so that nothing of them is left in it."""
    with Gallery.open(gallery) as known:
        notify(f"{name}: {known.remove(name)} faces erased from {gallery}; copies of the file still have them")


@app.command()
def cluster(
    model: Model,
    on: Annotated[Path, typer.Option("--on", help="Faces: a folder (labelled or not), a zip, or a list.")],
    out: Annotated[Path, typer.Option(help="Folder for labels.csv, clusters.json, clusters.png.")] = Path("clusters"),
    method: Annotated[Clusterer, typer.Option(help="How.")] = Clusterer.c_finch,
    distance: Annotated[float | None, typer.Option(help="c-finch: link first neighbours nearer than this.")] = None,
    metric: Annotated[str | None, typer.Option(help="c-finch, finch: euclidean or cosine.")] = None,
    level: Annotated[int | None, typer.Option(help="c-finch, finch: the partition; 0 finest, -1 coarsest.")] = None,
    clusters: Annotated[int | None, typer.Option(help="k-means: how many.")] = None,
    radius: Annotated[float | None, typer.Option(help="dbscan: how near neighbours are.")] = None,
    neighbours: Annotated[int | None, typer.Option(help="dbscan: how many make an image dense.")] = None,
    min_images: Annotated[int, typer.Option(min=1, help="Drop smaller clusters.")] = 2,
    seed: Annotated[int, typer.Option(help="k-means: where it begins.")] = 0,
    skip_unreadable: Annotated[bool, typer.Option(help="Leave out images that cannot be decoded.")] = False,
    stage: StageName = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    as_json: AsJson = False,
) -> None:
    """Divide faces by identity, without labels; write who is with whom, and a picture of the clusters."""
    options = {"distance": distance, "metric": metric, "level": level, "clusters": clusters}
    options |= {"radius": radius, "neighbours": neighbours}
    way = clustering_of(method.value, {name: value for name, value in options.items() if value is not None})
    loaded = load_model(model, stage, _network(backbone, embedding, size), size=size)
    found = cluster_faces(loaded, on, way, min_images, seed=seed, skip_unreadable=skip_unreadable, progress=meter)
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
    identities: Annotated[int, typer.Option(help="Synthetic: how many people.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed, another partition.")] = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
    table: Annotated[Path | None, typer.Option(help="Write client, identity, image, split as CSV.")] = None,
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
        faces = open_faces(Path(data), height=112, width=112, progress=meter)
    division = plan.apply(faces, seed)
    plot_partition(faces, division, plot)
    if table:
        division.write_table(faces, table)
    screen.holdings(division.summary(faces), plot, as_json)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms with their hyper-parameters."""
    screen.algorithms(as_json)


@app.command()
def disclose(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what each algorithm lets out of a client."""
    screen.disclosure(as_markdown, as_json)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at this machine: versions, cores, cache, speed."""
    screen.findings(examine(), as_json)


def main() -> None:
    """Errors that a user can act on are one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except PersonaeError as error:
        _fail(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(Interrupted(f"{error.filename or 'writing'}: the disk is full; free some space and resume"))
        _fail(ConfigError(f"{error.filename}: {error.strerror}"))


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - the signature of a signal handler
    raise KeyboardInterrupt


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
    for stage in experiment.recipe:
        if text := warning(stage.algorithm):
            notify(f"stage {stage.name}: {text}")
    try:
        page = run_experiment(
            experiment,
            out,
            resume=resume,
            workers=_workers(workers, device),
            device=device,
            acceleration=acceleration,
            progress=meter,
            notify=notify,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the completed rounds are in {out}; continue with: {hint}") from None
    screen.models(out, page, as_json)


def _protocols(
    on: Sequence[str], model: LoadedModel, far: Sequence[float] | None, resamples: int
) -> list[EvaluationProtocol]:
    setting = Setting(
        height=model.height, width=model.width, fars=tuple(far) if far else None, resamples=resamples, progress=meter
    )
    named = [(name or Path(path).stem, Path(path)) for name, _, path in (item.rpartition("=") for item in on)]
    return [open_protocol(name, path, setting) for name, path in named]  # all, before the first takes an hour


def _threshold(
    model: LoadedModel,
    path: Path,
    far: float | None,
    evaluation: Path | None,
    benchmark: str | None,
    score: float | None,
) -> Threshold | None:
    """What the options say; None where they say nothing."""
    if far is None:
        if evaluation is not None or benchmark is not None:
            raise ConfigError("--evaluation and --benchmark go with --far, the false accept rate to choose")
        return None if score is None else by_hand(score)
    if score is not None:
        raise ConfigError("--far and --threshold exclude each other")
    source = evaluation or card_paths(path)[1]
    if evaluation is None and not source.is_file():
        raise ConfigError(f"--far: there is no card beside {path}; give --evaluation, from `personae evaluate --save`")
    return threshold_at(far, source, model, benchmark)


def _stated(chosen: Threshold | None, gallery: Gallery | None) -> Threshold:
    found = chosen or (gallery.threshold if gallery else None)
    if found is None:
        raise ConfigError("no threshold: give --far with an --evaluation of the model, or --threshold")
    return found


def _opened(gallery: Path | None) -> AbstractContextManager[Gallery | None]:
    return nullcontext() if gallery is None else Gallery.open(gallery)


def _network(name: str | None, embedding: int, size: int) -> Network | None:
    return Network(name=name, embedding=embedding, height=size, width=size) if name else None


def _workers(asked: int | None, device: str) -> int:
    _check_device(device)
    return asked or (available_cores() if device == "cpu" else STREAMS)


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: there are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no usable GPU on this machine; use --device cpu")


def _free(wanted: Path) -> Path:
    """The folder itself, or with the first number behind it that makes it new."""
    number, path = 1, wanted
    while path.exists() and any(path.iterdir()):
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
