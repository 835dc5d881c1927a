"""The pages of the documentation that are made from the code: `python docs/generate.py` writes them again.

A test fails while one of them is not what the code says, so that a change of what leaves a client, of a key or of a
command is seen in review.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import click
import typer
from pydantic import BaseModel

import personae
from personae.aggregation import AGGREGATIONS, PREPARATIONS
from personae.algorithms import ALGORITHMS
from personae.cli import app
from personae.data import PartitionPlan
from personae.experiment.config import AuditSection, Evaluation, Experiment, Tracking
from personae.experiment.parameters import Parameter, first_line, parameters
from personae.experiment.sources import Source
from personae.experiment.stages import StageSection
from personae.layers import EXAMPLES, LAYERS
from personae.models import Network
from personae.parts.local_sgd import LocalSGD
from personae.parts.local_step import LocalObjective
from personae.parts.margins import Margin
from personae.parts.terms import TERMS
from personae.privacy.accountant import Budget
from personae.privacy.disclosure import markdown
from personae.reproduce.results import pages as results
from personae.runtime.firewall import Firewall
from personae.selection import SELECTIONS

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py; edit the code instead. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated page by its path in docs/."""
    return {
        "reference/experiment.md": NOTE + experiment(),
        "reference/command-line.md": NOTE + command_line(),
        "reference/python.md": NOTE + python(),
        "reference/disclosure.md": markdown(ALGORITHMS.values(), EXAMPLES),
        **{f"results/{path}": content for path, content in results(DOCS / "results" / "claims").items()},
    }


# The experiment file

SECTIONS: Mapping[str, tuple[str, type, str]] = {  # heading: (table, class, words)
    "The whole file": ("", Experiment, "These keys are at the top of the file. The tables below follow."),
    "Faces": (
        "[data.public], [data.private], [data.heldout]",
        Source,
        "The server may have the public faces. The private ones are divided among the clients. Nobody trains on the "
        "held-out ones. [Face data](../howto/data.md) has the formats.",
    ),
    "Partition": ("[partition]", PartitionPlan, "How the private faces are divided among clients in a simulation."),
    "Network": ("[network]", Network, "[Networks](../howto/networks.md) has the architectures."),
    "Evaluation": ("[evaluation]", Evaluation, "[Evaluation](../concepts/evaluation.md) explains the figures."),
    "Firewall": ("[firewall]", Firewall, "Which updates the server refuses."),
    "Budget": (
        "[budget]",
        Budget,
        "What a run may spend of differential privacy ([Differential privacy](../howto/differential-privacy.md)).",
    ),
    "Tracking": ("[tracking]", Tracking, "[Track a run](../howto/tracking.md) has the trackers."),
    "Audit": (
        "[audit]",
        AuditSection,
        "What `personae run` measures of a run's privacy, and keeps for that in the folder `audit` of the run. "
        "[Privacy](../concepts/privacy.md) has the attacks.",
    ),
    "Stages": ("[[stages]]", StageSection, "A stage is an algorithm run for some rounds. There is one table for each."),
}
PARTS: Mapping[str, tuple[str, Mapping[str, type[Any]]]] = {
    "Algorithms": ("[stages.algorithm]", ALGORITHMS),
    "Terms of the loss": ("terms", TERMS),
    "Selection policies": ("selection", SELECTIONS),
    "Layers": ("layers", LAYERS),
    "Aggregation rules": ("aggregation", AGGREGATIONS),
    "Steps before a rule": ("aggregation.before", PREPARATIONS),
}

SHARED: Mapping[str, type] = {"margin": Margin, "training": LocalSGD}


def experiment() -> str:
    """Every key of an experiment file with its type, its default and its meaning."""
    text = [
        "# Experiment file\n\nAn experiment is a TOML file. `personae init quick --to mine.toml` writes one to start "
        'from. `extends = "quick"` at its top takes everything else from a recipe or from another file; tables are '
        "merged key by key, and stages are entered by name (`[stages.federate]`). `[variants]` holds named changes, "
        "which `--variant NAME` chooses. `--set stages.federate.rounds=3` changes one key for one run.\n"
    ]
    for heading, (table, kind, words) in SECTIONS.items():
        named = f"`{table}`. " if table else ""
        text.append(f"\n## {heading}\n\n{named}{words}\n\n{_keys(_own(kind))}")
    common = [each for name, kind in SHARED.items() for each in _below(name, kind)]
    common += [each for each in parameters(LocalObjective) if each.key.startswith("terms.")]
    text.append(
        "\n## What most algorithms share\n\nSome algorithms have other defaults, which are listed with them. A table "
        "changes only what it names: with `training = { lr = 0.01 }`, `unsupervised` still trains for its 100 "
        "iterations. There are two exceptions. A budget in epochs takes the place of one in iterations, and another "
        "`kind` of margin has its own defaults.\n"
    )
    for name, kind in SHARED.items():
        text.append(f"\n### {name}\n\n{first_line(kind)}\n\n{_keys(_below(name, kind))}")
    for heading, (place, registry) in PARTS.items():
        text.append(f"\n## {heading}\n\n`name` chooses one; the other keys of `{place}` are its settings.\n")
        for name, kind in registry.items():
            found = [each for each in parameters(kind) if each not in common]
            text.append(f"\n### {name}\n\n{first_line(kind)}\n" + (f"\n{_keys(found)}" if found else ""))
    return "".join(text)


def _below(section: str, kind: type) -> list[Parameter]:
    return [dataclasses.replace(each, key=f"{section}.{each.key}") for each in parameters(kind)]


def _own(kind: type) -> Iterator[Parameter]:
    """Keys of this table; tables that have a section of their own on the page are left out."""
    elsewhere = ("data", "partition", "network", "evaluation", "firewall", "audit", "stages")
    for each in parameters(kind):
        if kind is Experiment and each.key.partition(".")[0] in elsewhere:
            continue
        yield each


def _keys(found: Iterable[Parameter]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for each in found:
        default = "" if each.default is None or each.kind == "section" else f"`{_toml(each.default)}`"
        rows.append(f"| `{each.key}` | {_cell(each.kind)} | {default} | {_cell(each.meaning)} |")
    return "\n".join(rows) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


# The command line


def command_line() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    head = (
        "# Command line\n\n`personae COMMAND --help` prints the same. `personae --install-completion` makes your shell "
        "complete commands, options, recipes and algorithms.\n\nExit codes: 0 done, 2 usage or configuration, 3 data, "
        "4 training diverged, 5 interrupted and resumable, 6 quorum lost, 7 nobody recognised (`verify`, "
        "`identify`).\n"
    )
    return head + "".join(_command(f"personae {name}", command) for name, command in _commands(group))


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        elif not command.hidden:
            yield f"{prefix}{name}", command


def _command(name: str, command: Any) -> str:
    context = click.Context(command, info_name=name)
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join([name, *(each.make_metavar(context) for each in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [f"| `{_cell(each.make_metavar(context))}` | {_cell(_help(each))} |" for each in arguments]
    rows += [f"| {_flags(each, context)} | {_cell(_help(each))} |" for each in options]
    table = "\n| | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    return f"\n## {name}\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{usage}\n```\n{table}"


def _flags(option: Any, context: click.Context) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    return flags if option.is_flag else f"{flags} `{_cell(option.make_metavar(context))}`"


def _help(parameter: Any) -> str:
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    words = (getattr(parameter, "help", None) or "").strip()
    return f"{words} Default: `{getattr(default, 'value', default)}`." if plain else words


# The Python interface


def python() -> str:
    """Every public name with its signature and the first paragraph that its source says of it."""
    text = [
        "# Python\n\nThese names are public: `from personae import ...`. Everything else may change between versions. "
        "[Extend it from outside](../extending.md) shows how to subclass them.\n"
    ]
    things = {name: getattr(personae, name) for name in sorted(personae.__all__, key=str.lower)}
    groups = {
        "Functions": {name: thing for name, thing in things.items() if inspect.isfunction(thing)},
        "Classes": {name: thing for name, thing in things.items() if inspect.isclass(thing)},
    }
    for heading, members in groups.items():
        text.append(f"\n## {heading}\n")
        for name, thing in members.items():
            text.append(f"\n### {name}\n\n{_signature(name, thing)}{_paragraph(thing)}\n")
            if inspect.isclass(thing):
                text.extend(_methods(thing))
    return "".join(text)


def _methods(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield f"- `{name}`: {_paragraph(function)}\n"


def _signature(name: str, thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=_without_bounds(each.annotation)) for each in found.parameters.values()]
    signature = str(found.replace(parameters=plain))
    if re.search(r"<|0x", signature):  # a default that is no plain value
        return ""
    signature = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", signature)  # names without their modules
    return f"```python\n{name}{signature}\n```\n\n"


def _without_bounds(hint: Any) -> Any:
    """The type alone of what is `Annotated`, also in one of its alternatives."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0]
    if get_origin(hint) is Union:
        return reduce(or_, map(_without_bounds, get_args(hint)))
    return hint


def _paragraph(thing: Any) -> str:
    text = inspect.cleandoc(vars(thing).get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split()) if not text.startswith(f"{thing.__name__}(") else ""


if __name__ == "__main__":
    for path, content in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(content, encoding="utf-8")
