"""What to do with a set of faces, as commands that run as they are written."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENOUGH = 10  # identities: five for each of two clients, as training from scratch takes


@dataclass(frozen=True)
class Advice:
    """Commands, and why these."""

    commands: tuple[str, ...]
    because: str


def to_evaluate(path: Path, benchmarks: Sequence[str]) -> Advice:
    """With whichever model; on all the benchmarks that are there."""
    on = [word for name in benchmarks for word in ("--on", f"{name}={path}")]
    command = shlex.join(["personae", "evaluate", "MODEL", *on])
    lists = "its list of pairs" if len(benchmarks) == 1 else "lists of pairs"
    return Advice((command,), f"it is {' and '.join(benchmarks)}, with {lists}; MODEL is a run or a weights file")


def to_cluster(path: Path) -> Advice:
    """Where nobody says who is on the images."""
    command = shlex.join(["personae", "cluster", "MODEL", "--on", str(path)])
    because = "clusters may be people (or train on them with unlabelled = true); MODEL is a run or a weights file"
    return Advice((command,), because)


def to_train(
    path: Path,
    usable: int,
    domains: Mapping[str, int],
    *,
    aligned: bool,
    options: Mapping[str, str],
    size: tuple[int, int] | None = None,
) -> Advice | None:
    """How to train on them, after alignment where that is needed; None where nobody could train.

    `usable`: how many identities have two images or more; `domains`: how many of these are in each. `options` belong to
    the source. `size`: of faces that cannot be brought to another one.
    """
    if usable < 2:
        return None
    source = path if aligned else path.with_name(f"{path.stem}-aligned")
    align = ["personae", "data", "align", str(path), str(source), *_handling(options, "identity_level")]
    options = options if aligned else {}
    if len(domains) > 1 and all(domains.values()):
        run, because = _across_domains(source, domains, options, size)
    else:
        run, because = _proposed(source, usable, options)
    commands = [run] if aligned else [align, run]
    return Advice(tuple(map(shlex.join, commands)), because)


def _across_domains(
    source: Path, domains: Mapping[str, int], options: Mapping[str, str], size: tuple[int, int] | None
) -> tuple[list[str], str]:
    largest = max(domains, key=lambda name: domains[name])
    settings = {"data.private.source": str(source), **{f"data.private.{name}": each for name, each in options.items()}}
    settings |= {"partition.source": json.dumps(largest, ensure_ascii=False), "partition.drop_small": "true"}
    settings |= {} if size is None else {"network.height": str(size[0]), "network.width": str(size[1])}
    because = (
        f"there are {len(domains)} domains: this uses the labels of the largest alone, and `personae run` on the faces "
        "themselves uses all"
    )
    chosen = (word for item in settings.items() for word in ("--set", "=".join(item)))
    return ["personae", "run", "unsupervised/small", *chosen], because


def _proposed(source: Path, usable: int, options: Mapping[str, str]) -> tuple[list[str], str]:
    """What looks at the faces itself."""
    run = ["personae", "run", str(source), *_handling(options, "identity_level", "skip_unreadable")]
    because = f"{usable} identities with two images or more; this proposes a method for them, and says why"
    if usable >= ENOUGH:
        return run, because
    return [*run, "--weights", "MODEL"], f"{because}. So few need a model to begin with: MODEL is a weights file"


def _handling(options: Mapping[str, str], *names: str) -> list[str]:
    """Options of a source, as commands take them."""
    given = [(f"--{name.replace('_', '-')}", options[name]) for name in names if name in options]
    return [word for option, value in given for word in ((option,) if value == "true" else (option, value))]
