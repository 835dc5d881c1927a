"""Runs side by side, methods side by side on your own faces, and a run that is not finished."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personae import screen
from personae.commands.options import (
    AsJson,
    BackboneName,
    Device,
    EmbeddingSize,
    ImageSize,
    Workers,
    announce,
    execution_of,
    network_of,
)
from personae.console import notify
from personae.deferred import importing
from personae.errors import ConfigError
from personae.experiment.methods import USUAL, methods_experiment
from personae.interrupts import interruptible

if TYPE_CHECKING:
    from personae.report.records import Run

app = typer.Typer()
REFRESH = 5  # seconds after which a browser loads a page again


@app.command()
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN ... | FACES", help="Runs, the first as baseline; or a folder of faces."),
    ],
    methods: Annotated[
        str, typer.Option(metavar="NAME,NAME", help=f"With FACES: the methods to try; {','.join(USUAL)} by default.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="The page; comparison.html by default. With FACES: folder of the run.")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(metavar="FACES", help="With FACES: public faces to pre-train on.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="With FACES: a model to start from.")] = None,
    backbone: BackboneName = None,
    embedding: EmbeddingSize = 512,
    size: ImageSize = 112,
    clients: Annotated[int, typer.Option(min=2, help="With FACES: how many clients share them.")] = 5,
    rounds: Annotated[int | None, typer.Option(min=1, help="With FACES: rounds of each method.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With FACES: continue after the last completed round.")
    ] = False,
    workers: Workers = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare runs, or several methods on your own faces: which is better, and is the difference noise?"""
    if len(paths) > 1:
        if methods:
            raise ConfigError("--methods goes with one folder of faces, not with runs")
        from personae.report.comparison import compare as compared
        from personae.report.html import write_comparison

        page = out or Path("comparison.html")
        found = compared(paths)
        write_comparison(found, page)
        screen.comparison(found, page, as_json)
        return
    (faces,) = paths
    if (faces / "config.json").is_file():
        raise ConfigError(
            f"{faces} is one run: a comparison takes two or more; its own page is that of personae report"
        )
    execution = execution_of(device, workers)
    network = network_of(backbone, embedding, size)
    experiment, left_out = methods_experiment(
        faces,
        [name.strip() for name in methods.split(",")] if methods else USUAL,
        execution,
        public=public,
        weights=weights,
        network=network,
        clients=clients,
        rounds=rounds,
    )
    for line in left_out:
        notify(line)
    announce(experiment)
    folder = out or Path("runs") / f"compare-{faces.stem}"
    with importing():
        from personae.experiment.run import run_with_report

    with interruptible(f"stopped; the completed rounds are in {folder}; give the same command with --resume to go on"):
        result = run_with_report(experiment, folder, execution, resume=resume)
        screen.models(folder, result.report, as_json)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, here or at the server.")],
    page: Annotated[bool, typer.Option("--page", help="Also write watch.html there, which reloads itself.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and stop.")] = False,
) -> None:
    """Follow a run until it is finished."""
    from personae.report.records import read_run
    from personae.report.watching import PAGE, write_watch_page

    read_run(run)  # says so if it is none

    def seen(now: "Run") -> None:
        if page:
            write_watch_page(now, run, max(REFRESH, round(every)))

    if page:
        screen.paths([run / PAGE], as_json=False)
    screen.watch(run, every, seen, once=once)
