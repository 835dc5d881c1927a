"""What there is: algorithms, layers, what they let out, and this machine."""

import dataclasses
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich import box
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from personae.algorithms import ALGORITHMS, AVAILABLE
from personae.console import output
from personae.core.strong_start import STRONG_START, by_key
from personae.doctor import Finding
from personae.errors import ConfigError
from personae.experiment.explain import nearest
from personae.experiment.parameters import first_line, parameters
from personae.layers import EXAMPLES, LAYERS
from personae.privacy.disclosure import crossings, layer_changes, markdown, warning
from personae.screen.basics import print_json, say


def algorithms(as_json: bool) -> None:
    """Every algorithm in a sentence; as JSON, with its hyper-parameters and their defaults."""
    defaults: dict[str, dict[str, Any]] = {name: dataclasses.asdict(kind()) for name, kind in AVAILABLE.items()}  # type: ignore[call-overload]
    if as_json:
        print_json(defaults)
        return
    _list("algorithm", AVAILABLE)
    say("personae algorithms NAME explains one of them and its parameters")


def algorithm(name: str, as_json: bool) -> None:
    """One algorithm: what its file says of it, and each parameter with its type, its defaults and its meaning."""
    _explain("algorithm", name, AVAILABLE, as_json, by_key(STRONG_START))


def layers(as_json: bool) -> None:
    """Every layer in a sentence; as JSON, with its settings and their defaults."""
    settings = {name: parameters(kind) for name, kind in LAYERS.items()}
    if as_json:
        print_json({name: {each.key: each.default for each in found} for name, found in settings.items()})
        return
    _list("layer", LAYERS)
    say("personae layers NAME explains one of them and its settings")


def layer(name: str, as_json: bool) -> None:
    """One layer in the same way as an algorithm."""
    _explain("layer", name, LAYERS, as_json)


def _list(word: str, known: Mapping[str, type]) -> None:
    table = Table(Column(word, no_wrap=True), "", box=box.SIMPLE_HEAD)
    for name, kind in known.items():
        table.add_row(name, escape(first_line(kind)))
    output.print(table)


def _explain(
    word: str, name: str, known: Mapping[str, type], as_json: bool, from_weights: Mapping[str, Any] | None = None
) -> None:
    """What is known under this name. `from_weights` are the defaults, by key, where an experiment has weights."""
    from_weights = from_weights or {}
    if name not in known:
        raise ConfigError(f"there is no {word} {name!r}{nearest(name, known)}")
    kind = known[name]
    if as_json:
        print_json([dataclasses.asdict(each) for each in parameters(kind)])
        return
    say(inspect.cleandoc(sys.modules[kind.__module__].__doc__ or first_line(kind)))
    for each in parameters(kind):
        default = f"; default {json.dumps(each.default)}" if each.default is not None else ""
        default += f", with weights {json.dumps(from_weights[each.key])}" if each.key in from_weights else ""
        say(f"\n  {each.key}  {each.kind}{default}")
        output.print(Padding(Text(each.meaning), (0, 0, 0, 6)))


def disclosure(as_markdown: bool, as_json: bool) -> None:
    """What each algorithm lets across, and what each layer changes of it."""
    if as_markdown:
        typer.echo(markdown(ALGORITHMS.values(), EXAMPLES), nl=False)
        return
    crossing, changed = crossings(AVAILABLE.values()), layer_changes(EXAMPLES, AVAILABLE.values())
    if as_json:
        print_json(
            {
                "algorithms": [dataclasses.asdict(item) for item in crossing],
                "layers": [dataclasses.asdict(item) for item in changed],
            }
        )
        return
    table = Table("algorithm", "direction", "field", "payload")
    for item in crossing:
        table.add_row(item.algorithm, item.direction, item.field, item.payload)
    output.print(table)
    table = Table("layer", "direction", "field", Column("with it", no_wrap=True))
    for change in changed:
        table.add_row(change.layer, change.direction, change.field, change.after)
    output.print(table)
    for kind in AVAILABLE.values():
        if text := warning(kind):
            say(text)


def findings(found: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in found])
        return
    table = Table("what", "found")
    for finding in found:
        cells = (finding.subject, "\n".join(filter(None, (finding.state, finding.advice))))
        table.add_row(*map(Text, cells), style=None if finding.good else "yellow")
    output.print(table)
    problems = [finding.subject for finding in found if not finding.good]
    say(f"look at: {', '.join(problems)}" if problems else "this machine is ready; try personae demo --quick")
