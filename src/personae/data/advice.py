"""What to do with a set of faces, as commands that run as they are written."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FEW, _MANY = 40, 1000  # identities


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
    """The recipe that these faces are most like, after alignment where that is needed; None where nobody could train.

    `usable`: how many identities have two images or more; `domains`: how many of these are in each. `options` belong to
    the source. `size`: of faces that cannot be brought to another one.
    """
    if usable < 2:
        return None
    source = path if aligned else path.with_name(f"{path.stem}-aligned")
    recipe, partition, because = _recipe(usable, domains)
    settings = {"data.private.source": str(source)}
    settings |= {f"data.private.{name}": value for name, value in options.items()} if aligned else {}
    settings |= {f"partition.{name}": value for name, value in partition.items()} | {"partition.drop_small": "true"}
    settings |= {} if size is None else {"network.height": str(size[0]), "network.width": str(size[1])}
    run = ["personae", "run", recipe, *(word for item in settings.items() for word in ("--set", "=".join(item)))]
    align = ["personae", "data", "align", str(path), str(source), *_alignment(options)]
    commands = [run] if aligned else [align, run]
    return Advice(tuple(map(shlex.join, commands)), because)


def _recipe(usable: int, domains: Mapping[str, int]) -> tuple[str, dict[str, str], str]:
    """Its name, the partition it would have on these faces, and why this one."""
    if len(domains) > 1 and all(domains.values()):
        largest = max(domains, key=lambda name: domains[name])
        because = f"there are {len(domains)} domains: the largest as the labelled source, the others as targets"
        return "unsupervised/small", {"source": json.dumps(largest, ensure_ascii=False)}, because
    if usable < _FEW:
        return "fedface/small", {"clients": str(usable)}, f"{usable} identities with two images or more, one a client"
    clients = min(max(usable // 10, 2), 40)
    because = f"{usable} identities with two images or more are enough for {clients} clients with several each"
    return "fedgc/small" if usable >= _MANY else "quick", {"clients": str(clients)}, because


def _alignment(options: Mapping[str, str]) -> Collection[str]:
    """Of the options of a source, what `data align` takes too; it leaves out what cannot be read by itself."""
    return ["--identity-level", options["identity_level"]] if "identity_level" in options else []
