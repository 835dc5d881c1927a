"""Runs an experiment in a process of its own, and ends that process without a warning at a chosen place."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from personae import files
from personae.core.stage import Stage
from personae.experiment import materials, run, rundir
from personae.experiment.config import load_experiment
from personae.experiment.recipes import RECIPES
from personae.experiment.run import run_experiment
from personae.parts import sgd_step
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.exchange import Exchange
from personae.runtime.store import PrivateStore

RECIPE = RECIPES / "quick.toml"
TINY = [
    "network.embedding=8",
    "data.public.identities=8",
    "data.public.images=4",
    "data.private.identities=8",
    "data.private.images=8",
    "data.heldout.identities=12",
    "data.heldout.images=3",
    "partition.clients=4",
    "evaluation.folds=2",
    "evaluation.pairs_per_fold=8",
]
SETTINGS = [
    *TINY,
    "stages.pretrain.rounds=2",
    "stages.pretrain.algorithm.training.batch_size=8",
    "stages.federate.rounds=3",
    "stages.federate.evaluate_every=2",
    "stages.federate.selection.share=0.75",
    "stages.federate.algorithm.training.batch_size=8",
    "stages.federate.algorithm.training.lr=0.02",
    "stages.federate.algorithm.training.epochs=1",
    "stages.central.rounds=1",
]


def go(out: Path, cache: Path, *, workers: int = 1, resume: bool = False, place: str | None = None) -> int | None:
    """Run in a process of its own; gives how that process ended. A fork server has imported everything beforehand."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["personae.experiment.run"])
    process = context.Process(target=_execute, args=(out, cache, workers, resume, place))
    process.start()
    process.join(120)
    return process.exitcode


def results(out: Path) -> dict[str, bytes]:
    """Everything that must not depend on the clock, the machine or the number of attempts."""
    parts = [path for part in ("private", "models", "evaluation") for path in (out / part).rglob("*")]
    parts += [out / name for name in ("metrics.jsonl", "ledger.jsonl", "config.json", "summary.json")]
    found = {str(path.relative_to(out)): path.read_bytes() for path in parts if path.is_file()}
    for path in (out / "checkpoints" / "finished").glob("*.safetensors"):
        content = path.read_bytes()  # the head says how long the records were, and one of them is about the clock
        found[path.name] = content[8 + int.from_bytes(content[:8], "little") :]
    return {name: content for name, content in found.items() if not Path(name).name.startswith(".")}


def _execute(out: Path, cache: Path, workers: int, resume: bool, place: str | None) -> None:
    torch.set_num_threads(1)
    run.write_report = lambda path: path  # it is made from the results, and takes longer than they do
    if place is not None:
        (PLACES | BEFORE_THE_FIRST_CHECKPOINT)[place]()
    run_experiment(load_experiment(RECIPE, SETTINGS), out, resume=resume, workers=workers, cache=cache)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after_answer(task: str, stage: str, round_: int, number: int) -> Callable[[], None]:
    """When so many clients have answered."""

    def install() -> None:
        ask = Exchange.ask

        def asking(self: Exchange, *arguments: Any) -> Any:
            for count, answer in enumerate(ask(self, *arguments), 1):
                yield answer
                if (self._task, self._stage.name, self._round, count) == (task, stage, round_, number):
                    die()

        Exchange.ask = asking  # type: ignore[method-assign]

    return install


def _before_checkpoint(stage_name: str, number: int) -> Callable[[], None]:
    """When the round is done and its records are on disk."""

    def install() -> None:
        save = Checkpoints.save

        def saving(self: Checkpoints, stage: Stage, round_: int, *arguments: Any) -> None:
            if (stage.name, round_) == (stage_name, number):
                die()
            save(self, stage, round_, *arguments)

        Checkpoints.save = saving  # type: ignore[method-assign]

    return install


def _before_move(name: str, count: int) -> Callable[[], None]:
    """At the count-th time that a file of this name is moved to its place."""

    def install() -> None:
        replace, seen = Path.replace, 0

        def replacing(self: Path, target: Path) -> Path:
            nonlocal seen
            seen += target.name == name
            if seen == count:
                die()
            return replace(self, target)

        Path.replace = replacing  # type: ignore[method-assign, assignment]

    return install


def _half_written(name: str, count: int) -> Callable[[], None]:
    """In the middle of the count-th time that a file of this name is written."""

    def install() -> None:
        fill, seen = files._fill, 0

        def filling(path: Path, content: Iterable[bytes]) -> None:
            nonlocal seen
            seen += name in path.name  # it has another one until it is whole
            if seen == count:
                whole = b"".join(content)
                fill(path, [whole[: len(whole) // 2]])
                die()
            fill(path, content)

        files._fill = filling

    return install


def _at_step(number: int) -> Callable[[], None]:
    """Within a training, after so many steps of this process."""

    def install() -> None:
        step, seen = sgd_step.SGDStep.__call__, 0

        def stepping(self: Any, *arguments: Any) -> None:
            nonlocal seen
            step(self, *arguments)
            seen += 1
            if seen == number:
                die()

        sgd_step.SGDStep.__call__ = stepping  # type: ignore[method-assign]

    return install


def _between_private_files(stage: str, number: int) -> Callable[[], None]:
    """When a client has kept its new state and not yet let go of the oldest one."""

    def install() -> None:
        unlink = Path.unlink

        def unlinking(self: Path, missing_ok: bool = False) -> None:
            if self.parent.name == stage and self.name == f"{number:06d}.safetensors":
                die()
            unlink(self, missing_ok=missing_ok)

        Path.unlink = unlinking  # type: ignore[method-assign]

    return install


def _at_function(module: Any, name: str) -> Callable[[], None]:
    def install() -> None:
        setattr(module, name, lambda *_, **__: die())

    return install


def _before_keeping(stage_name: str, number: int) -> Callable[[], None]:
    """When a client has trained and not yet kept anything."""

    def install() -> None:
        save = PrivateStore.save

        def saving(self: PrivateStore, stage: str, round_: int, state: Any, **options: Any) -> None:
            if (stage, round_) == (stage_name, number):
                die()
            save(self, stage, round_, state, **options)

        PrivateStore.save = saving  # type: ignore[method-assign]

    return install


BEFORE_THE_FIRST_CHECKPOINT: dict[str, Callable[[], None]] = {
    "start, the folder made and empty": _at_function(rundir, "hold"),
    "start, some of the files that describe the run written": _before_move("config.json", 1),
    "start, while faces are read": _at_function(materials, "synthetic_faces"),
    "start, in the evaluation": _after_answer("evaluate", "pretrain", 0, 2),
    "first round, before the first checkpoint": _before_checkpoint("pretrain", 1),
    "first round, half of the checkpoint written": _half_written("latest.safetensors", 1),
}
PLACES: dict[str, Callable[[], None]] = {
    "pre-training, between two steps": _at_step(5),
    "pre-training, last round, its checkpoint half in place": _before_move("latest.safetensors", 2),
    "federation, start, in the evaluation": _after_answer("evaluate", "federate", 0, 2),
    "federation, first round, before a client keeps anything": _before_keeping("federate", 1),
    "federation, second round, two of three clients done": _after_answer("train", "federate", 2, 2),
    "federation, second round, in the evaluation": _after_answer("evaluate", "federate", 2, 1),
    "federation, second round, before the checkpoint": _before_checkpoint("federate", 2),
    "federation, second round, half of the checkpoint written": _half_written("latest.safetensors", 4),
    "federation, third round, between two private files": _between_private_files("federate", 1),
    "federation, third round, model written, figures not": _before_move("federate.json", 1),
    "all done, before the report": _at_function(run, "write_report"),
}
