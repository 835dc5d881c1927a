"""Options that several commands have, and what is made of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from personae.console import meter, notify
from personae.core.acceleration import OPTIMISATIONS, Acceleration
from personae.data.handling import Handling
from personae.data.handling import Missed as MissedFaces
from personae.data.levels import Level
from personae.deferred import importing
from personae.errors import ConfigError
from personae.experiment.execution import DeviceName, Execution
from personae.experiment.kinds import refuse_wrong_kinds
from personae.experiment.reading import read_experiment
from personae.experiment.recipes import recipes
from personae.progress import once

if TYPE_CHECKING:  # what takes seconds to import is imported by those who need it
    from personae.evaluation.protocols import EvaluationProtocol
    from personae.experiment.config import Experiment
    from personae.experiment.model import Model as LoadedModel
    from personae.models import Network


def recipe_names(incomplete: str) -> list[str]:
    """For the completion of a shell."""
    return [name for name in recipes() if name.startswith(incomplete)]


RUNS = 8  # at the same time on a GPU

ExperimentFile = Annotated[
    Path,
    typer.Argument(metavar="EXP", help="An experiment file, or the name of a recipe.", autocompletion=recipe_names),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Clients that train at the same time: one process per core, or 16 on a GPU."),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also send figures to tensorboard, mlflow or trackio; repeatable."),
]
Device = Annotated[DeviceName, typer.Option("--device", help="Where models compute.")]


def _optimisations(names: list[str] | None) -> list[str] | None:
    """That there is none of a name is said before anything large is imported."""
    Acceleration().without(names or ())
    return names


Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        callback=_optimisations,
        metavar="NAME",
        help=f"Switch an optimisation off ({', '.join(OPTIMISATIONS)}); repeat for more.",
    ),
]
Unlabelled = Annotated[bool, typer.Option("--unlabelled", help="The faces have no labels; folder names are ignored.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[Path, typer.Argument(help="A run, a client's home, a weights file (.safetensors, .pth), or .onnx.")]
StageName = Annotated[str | None, typer.Option(help="With a run or a home: use the model of this stage.")]
BackboneName = Annotated[
    str | None, typer.Option(help="The network of a weights file, if it is not recognised (docs/howto/networks.md).")
]
EmbeddingSize = Annotated[int, typer.Option(help="With --backbone: the size of its vectors.")]
ImageSize = Annotated[int, typer.Option(help="With --backbone or ONNX: the size of its images.")]
ClientName = Annotated[str | None, typer.Option("--client", help="With a run: use the personal model of this client.")]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="With a home: use this run; the newest by default.")
]
Personal = Annotated[bool, typer.Option("--personal", help="With a home: use the personal model, not the shared one.")]
OwnData = Annotated[
    Path | None, typer.Option("--data", metavar="FACES", help="With a home: where the client's faces are now.")
]
Mirror = Annotated[bool, typer.Option(help="Add the vector of the mirrored image.")]
RawPixels = Annotated[
    bool, typer.Option("--raw-pixels", help="The ONNX model takes pixels from 0 to 255, not -1 to 1.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a value, such as seed=1; repeat for more.")
]
IdentityLevel = Annotated[
    Level | None, typer.Option("--identity-level", help="Which level of nested folders names the people.")
]
Variant = Annotated[str | None, typer.Option(help="Use this variant of the experiment.")]


def _with_detector(asked: bool) -> bool:
    """That it is not installed is said before a model is loaded or a gallery begun."""
    if asked:
        from personae.data import detection

        detection.require()
    return asked


SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be used; say how many, and list them.")
]
Align = Annotated[
    bool, typer.Option("--align", callback=_with_detector, help="Find and align the main face of each photograph.")
]
Missed = Annotated[
    MissedFaces | None,
    typer.Option("--missed", help="With --align: skip photographs without a face, or crop them around the centre."),
]
AsTheyAre = Annotated[
    bool, typer.Option("--as-they-are", help="Accept images that are probably not aligned, by their size.")
]


Text = tuple[dict[str, Any], str]  # an experiment as it is written, and where


def texts_of(
    path: str | Path, settings: Sequence[str] | None = None, variants: Sequence[str | None] = (None,)
) -> list[Text]:
    """The experiment of a file, or its variants. What their text tells is said before anything large is imported."""
    texts = [read_experiment(path, settings or [], variant) for variant in variants]
    for text in texts:
        refuse_wrong_kinds(*text)
    return texts


def name_in(texts: Sequence[Text]) -> str:
    """That of the experiment."""
    return str(texts[0][0]["name"])


def experiments_of(texts: Iterable[Text]) -> "list[Experiment]":
    with importing():
        from personae.experiment.config import parse_experiment

    return [parse_experiment(*text) for text in texts]


def handling_of(
    skip_unreadable: bool = False,
    align: bool = False,
    missed: MissedFaces | None = None,
    as_they_are: bool = False,
    identity_level: Level | None = None,
) -> Handling:
    if missed and not align:
        raise ConfigError("--missed goes with --align, which looks for faces")
    return Handling(
        skip_unreadable=skip_unreadable,
        crop="align" if align else None,
        missed=missed,
        as_they_are=as_they_are,
        identity_level=identity_level,
    )


def options_of(handling: Handling) -> str:
    """As they are written on the command line."""
    given = {
        "--skip-unreadable": handling["skip_unreadable"],
        "--align": handling["crop"],
        f"--missed {handling['missed']}": handling["missed"],
        "--as-they-are": handling["as_they_are"],
        f"--identity-level {handling['identity_level']}": handling["identity_level"],
    }
    return "".join(f" {option}" for option, value in given.items() if value)


def announce(experiment: "Experiment") -> None:
    """Before anything is done: what leaves the clients, and which settings can spoil the given weights."""
    from personae.core.strong_start import departures
    from personae.privacy.disclosure import warning

    for stage, section in zip(experiment.recipe, experiment.resolved()["stages"], strict=True):
        if text := warning(stage.algorithm):
            notify(f"stage {stage.name}: {text}")
        if experiment.weights and (others := departures(section["algorithm"])):
            notify(
                f"stage {stage.name}: {', '.join(others)} can make the given weights worse; leave out what you do not "
                "need, and the stage has what suits a strong start (docs/results/strong-start.md)"
            )


def protocols_of(
    on: Sequence[str], model: "LoadedModel", far: Sequence[float] | None, resamples: int, handling: Handling
) -> "list[EvaluationProtocol]":
    from personae.experiment.benchmarks import Setting, open_protocol

    setting = Setting(
        height=model.height,
        width=model.width,
        fars=tuple(far) if far else None,
        resamples=resamples,
        progress=meter,
        notify=notify,
        handling=handling,
    )
    return [open_protocol(*_named(item), setting) for item in on]  # all, before the first takes an hour


def _named(item: str) -> tuple[str, Path]:
    """NAME=PATH, or a path that gives its own name."""
    from personae.data.readers.naming import split_name

    name, path = split_name(item)
    return name or path.stem, path


def layout_at(item: str) -> tuple[Path, str | None]:
    """NAME=PATH, where the name may be that of a benchmark whose layout is meant."""
    from personae.data.readers.naming import canonical, named_layout, split_name

    name, path = split_name(item)
    if name:
        from personae.experiment.benchmarks import BENCHMARKS

        if name in BENCHMARKS or canonical(name) in BENCHMARKS:
            raise ConfigError(f"{item}: {name} is read by `personae evaluate` alone; give the folder of its images")
    return path, named_layout(name)


def network_of(name: str | None, embedding: int, size: int) -> "Network | None":
    from personae.models import Network

    return Network(name=name, embedding=embedding, height=size, width=size) if name else None


def _enough(resamples: int) -> int:
    """The bounds of a 95% interval are the outermost fortieth of the resamples on either side."""
    if 0 < resamples < 40:
        raise ConfigError(f"--resamples {resamples}: 95% intervals take at least 40; 0 is for none")
    return resamples


Resamples = Annotated[
    int, typer.Option(min=0, callback=_enough, help="Resamples for confidence intervals, at least 40; 0 for none.")
]


def execution_of(
    device: DeviceName = "cpu",
    workers: int | None = None,
    without: Sequence[str] | None = None,
    trackers: Sequence[str] | None = None,
) -> Execution:
    """What this machine gives, with everything told on screen."""
    from personae.core.threads import available_cores
    from personae.runtime.inprocess import STREAMS

    check_device(device)
    return Execution(
        workers=workers or (available_cores() if device == "cpu" else STREAMS),
        device=device,
        acceleration=Acceleration().without(without or []),
        progress=meter,
        notify=once(notify),  # a set of faces may be opened several times
        trackers=tuple(trackers or ()),
    )


def runs_at_once(device: DeviceName, wanted: int | None) -> int:
    """Each of which has one client at a time."""
    from personae.core.threads import available_cores

    return wanted or (available_cores() if device == "cpu" else RUNS)


def check_device(device: DeviceName) -> None:
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no usable GPU on this machine; use --device cpu")
