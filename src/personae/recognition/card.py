"""The card of a model: what it is, where it comes from, what left the clients for it, how good it is, its limits."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from personae.core.stage import predecessors
from personae.data import PartitionPlan
from personae.experiment.config import Experiment
from personae.experiment.section import SYNTHETIC
from personae.files import write_text
from personae.privacy.disclosure import descriptions, warning
from personae.report.records import Run
from personae.report.table import DEVIATION, figure_cell
from personae.words import counted, number_of_images

FORMAT = 1

INTENDED = (
    "To compare faces of people who know of it and have agreed to it: is this the person who enrolled (1:1), or which "
    "of the enrolled (1:N), and for research on that.",
    "Not for watching people who have not agreed, nor for conclusions about anything but identity.",
)
LIMITS = (
    "The rates above are those of the benchmarks' people and photographs. On others they differ: measure on yours, and "
    "choose the threshold there.",
    "Errors are seldom spread evenly over groups of people. Where no figures of groups are given, none were measured.",
    "A false accept rate is that of one comparison. A search among N enrolled faces makes N of them: about N times as "
    "many strangers are taken for somebody.",
    "It takes aligned faces. It does not find faces, and it does not tell a living face from a picture of one.",
    "Vectors of faces are biometric data: they identify people, and a likeness can be reconstructed from them.",
)
MADE_UP = "It was trained on synthetic faces alone: it shows how training works, and is of no use on photographs."


def training(experiment: Experiment, stage: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """How a run comes to the model of a stage; files are called by their names, without where they were."""
    recipe = {each.name: each for each in experiment.recipe}
    return {
        "experiment": experiment.name,
        "seed": experiment.seed,
        "weights": Path(experiment.weights).name if experiment.weights else None,
        "stages": [
            {
                "name": name,
                "algorithm": recipe[name].algorithm.name,
                "rounds": recipe[name].rounds,
                "pools_faces": recipe[name].algorithm.pools_faces,
                "warning": warning(recipe[name].algorithm),
            }
            for name in lineage(experiment, stage)
        ],
        "versions": {name: environment.get(name) for name in ("personae", "torch")},
    }


def left_the_clients(run: Run, experiment: Experiment, stage: str) -> list[dict[str, Any]]:
    """By stage and payload, from the ledger: how many messages and bytes went from all clients to the server."""
    sent = [
        {"stage": name, "payload": payload, "messages": record.messages["up", payload], "bytes": size}
        for name in lineage(experiment, stage)
        for record in [run.records[name]]
        for (direction, payload), size in sorted(record.payloads.items())
        if direction == "up"
    ]
    return with_meanings(sent, experiment)


def with_meanings(sent: Iterable[Mapping[str, Any]], experiment: Experiment) -> list[dict[str, Any]]:
    """What left, each kind with what it is."""
    known = descriptions(stage.algorithm for stage in experiment.recipe)
    return [{**each, "meaning": known[each["payload"]].meaning} for each in sent]


def lineage(experiment: Experiment, stage: str) -> Iterator[str]:
    """The stages that this one goes back to, the first of them first."""
    before = predecessors(experiment.recipe)[stage]
    if before is not None:
        yield from lineage(experiment, before)
    yield stage


def described(source: Mapping[str, Any]) -> str:
    if source.get("parts"):
        return " and ".join(f"{name}: {described(part)}" for name, part in source["parts"].items())
    count = f"{counted(source['identities'], 'person', 'people')} of " if source["identities"] else ""
    if source["source"] == SYNTHETIC:
        return f"{count}synthetic faces ({source['domain']}), {counted(source['images'], 'image')} each"
    having = number_of_images(source["min_images"], source["max_images"])
    return f"{count}{Path(source['source']).name}{f', those with {having}' if having else ''}"


def divided(plan: PartitionPlan) -> dict[str, Any]:
    """How faces were dealt: the options that are not as they are by default."""
    usual = {option.name: option.default for option in dataclasses.fields(plan)}
    changed = {name: value for name, value in dataclasses.asdict(plan).items() if value != usual[name]}
    return {"by": plan.by, **changed}


def write_card(page: Path, plain: Path, card: Mapping[str, Any]) -> None:
    """For people, and for programs."""
    write_text(plain, json.dumps(card, indent=1) + "\n")
    write_text(page, markdown(card))


def card_paths(model: Path) -> tuple[Path, Path]:
    """Beside the model: `model.onnx` has `model.card.md` and `model.card.json`."""
    return model.with_suffix(".card.md"), model.with_suffix(".card.json")


def markdown(card: Mapping[str, Any]) -> str:
    return "\n".join([*_head(card), *_origin(card), *_privacy(card), *_figures(card), *_closing(card), ""])


def _head(card: Mapping[str, Any]) -> Iterator[str]:
    model = card["model"]
    network, takes = model["network"], model["input"]
    whose = f", the personal model of `{model['client']}`" if model["client"] else ""
    length = "of length one" if model["unit"] else "not normalised: scale it to length one"
    mirror = "of an image plus that of its mirror image" if model["mirror"] else "of the image alone"
    yield f"# `{model['file']}`"
    yield ""
    yield f"{network['name']}, {model['parameters']:,} parameters{whose}: from an aligned face to a vector."
    yield ""
    yield (
        f"- **Input** `{takes['name']}`, float32 [N, 3, {takes['height']}, {takes['width']}], RGB, pixels from"
        f" {takes['pixels']}, faces aligned to the field's five-point template."
    )
    yield (
        f"- **Output** `{model['output']}`, float32 [N, {network['embedding']}], {length}. The score of two faces is"
        f" the cosine. Figures below are with the vector {mirror}."
    )
    if model["parity"] is not None:
        yield f"- In ONNX Runtime it differs from PyTorch by at most {model['parity']:.1e} of a vector's length."
    yield f"- SHA-256 `{model['sha256']}`, vectors known by `{model['digest'][:16]}`."


def _origin(card: Mapping[str, Any]) -> Iterator[str]:
    origin = card["training"]
    yield from ("", "## Training", "")
    if origin is None:
        yield "Not known here: the weights came as a file."
        return
    clients = f", {counted(origin['clients'], 'client')}" if "clients" in origin else ""
    yield f"Experiment `{origin['experiment']}`, seed {origin['seed']}{clients}."
    yield f"It began with {'`' + origin['weights'] + '`' if origin['weights'] else 'random weights'}."
    if home := card["home"]:
        made = "It was made from what" if card["model"]["client"] else "It is what"
        yield (
            f"{made} `{home['client']}` received after round {home['round']} of {home['rounds']} of the stage"
            f" `{home['stage']}`."
        )
    yield ""
    for role, source in origin["data"].items():
        yield f"- {role} faces: {source}"
    if "partition" in origin:
        yield f"- divided among clients: {', '.join(f'{name} {value}' for name, value in origin['partition'].items())}"
    yield from _table(
        ["stage", "algorithm", "rounds"],
        [[each["name"], each["algorithm"], each["rounds"]] for each in origin["stages"]],
    )
    yield from ("", "## What left this client" if home else "## What left the clients")
    left = card["left_the_clients"]
    if not left:
        yield from ("", "Nothing." if home else "Nothing: no client was asked.")
    else:
        yield from _table(
            ["stage", "payload", "messages", "bytes", "which is"],
            [
                [
                    each["stage"],
                    each["payload"],
                    f"{each['messages']:,}",
                    f"{each['bytes']:,}",
                    each["meaning"],
                ]
                for each in left
            ],
        )
        yield "\nWeights and vectors can say something about the faces they were computed from."
    if not any(each["pools_faces"] for each in origin["stages"]):
        yield f"\nNo image left {'it' if home else 'a client'}."
    yield from (f"\n**{each['name']}**: {each['warning']}." for each in origin["stages"] if each["warning"])


def _privacy(card: Mapping[str, Any]) -> Iterator[str]:
    found = card["privacy"]
    if found is None:
        return
    yield from ("", "## Privacy", "", f"- Differential privacy: {found['differential_privacy']}")
    yield f"- Attacks: {'as below.' if found['attacks'] else 'not measured; personae audit measures them on a run.'}"
    if not found["forgotten"]:
        yield "- Forgotten: nothing."
    for rows in (found["attacks"], found["forgotten"]):
        if rows:
            yield from _table(list(rows[0]), [list(row.values()) for row in rows])


def _figures(card: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Figures")
    if not card["benchmarks"] and not card["at_the_client"]:
        yield from ("", "None were measured.")
    for name, result in card["benchmarks"].items():
        pairs = f"{counted(result['genuine_pairs'], 'pair')} of one person and {result['impostor_pairs']:,} of two"
        yield from ("", f"**{name}**, {pairs}; in %, with 95% intervals over identities where there are any:")
        yield from _table(
            ["", "%", "95%", "accept from"],
            [
                [
                    metric,
                    _figure(result["metrics"], metric),
                    _interval(result["intervals"].get(metric)),
                    _score(result, metric),
                ]
                for metric in result["metrics"]
                if not metric.endswith(DEVIATION)
            ],
        )
        yield from _groups(result)
    if card["at_the_client"]:
        client = card["home"]["client"] if card["home"] else card["model"]["client"]
        yield from (
            "",
            f"At `{client}`, on its own test faces, as the run measured them; rank-1 is against its training images:",
        )
        yield from _table(
            ["", "%"], [[metric, f"{100 * value:.2f}"] for metric, value in card["at_the_client"].items()]
        )


def _groups(result: Mapping[str, Any]) -> Iterator[str]:
    if result["groups"]:
        metrics = list(next(iter(result["groups"].values())))
        yield from _table(
            ["group", *metrics],
            [[group, *(f"{100 * each[metric]:.2f}" for metric in metrics)] for group, each in result["groups"].items()],
        )


def _closing(card: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Intended use", "")
    yield from (f"- {line}" for line in card["intended_use"])
    yield from ("", "## Limits", "")
    yield from (f"- {line}" for line in card["limits"])


def _figure(metrics: Mapping[str, float], metric: str) -> str:
    deviation = metrics.get(metric + DEVIATION)
    return figure_cell(metric, metrics[metric]) + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def _interval(interval: Mapping[str, float] | None) -> str:
    return "" if interval is None else f"{100 * interval['low']:.2f} to {100 * interval['high']:.2f}"


def _score(result: Mapping[str, Any], metric: str) -> str:
    return f"{result['thresholds'][metric]:.4f}" if metric in result["thresholds"] else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield ""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from ("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
