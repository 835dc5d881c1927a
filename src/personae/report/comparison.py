"""Several runs side by side: the best model of each, paired where they were tested on the same faces."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from personae.errors import ConfigError, DataError
from personae.report.content import Note, Section, Table
from personae.report.records import Record, Run, StageRecord, read_run
from personae.report.verdict import Model, Verdict, verdict
from personae.words import counted

MISSING = "–"


@dataclass(frozen=True)
class Comparison:
    """Runs as if each were a stage of one run: `run` has what their best models did, and `notes` what is amiss."""

    run: Run
    verdict: Verdict
    notes: Sequence[Note]
    differences: Table
    """What differs in their configurations."""


def compare(folders: Sequence[Path]) -> Comparison:
    notes, runs, chosen = [], {}, {}
    for name, folder in _names(folders).items():
        try:
            found = read_run(folder)
        except (ConfigError, DataError) as error:
            notes.append(Note(f"Left out: {error}.", "warning"))
            continue
        judged = verdict(found)
        best = judged.best or next(iter(judged.models[::-1]), None)  # of nothing but pooled training, the last
        if best is None:
            notes.append(Note(f"{name} is left out: nothing has been evaluated in it yet.", "warning"))
            continue
        runs[name], chosen[name] = found, best
        if found.unfinished:
            stages = ", ".join(stage.label for stage in found.unfinished)
            notes.append(Note(f"{name} is not finished ({stages}); its figures are provisional."))
    if len(runs) < 2:
        reasons = " ".join(note.text for note in notes)
        raise ConfigError(f"a comparison needs two runs that can be read, not {len(runs)}. {reasons}".strip())
    first = next(iter(runs))
    records = {name: runs[name].records[model.stage.name] for name, model in chosen.items()}
    for name in list(runs)[1:]:
        if _faces(records[name]) != _faces(records[first]):
            notes.append(Note(f"{name} was tested on other faces than {first}: differences have no intervals."))
            records[name] = _unpaired(records[name])
        if _clients(runs[name]) != _clients(runs[first]):
            notes.append(Note(f"{name} has other clients than {first}: they are not compared one by one."))
            records[name] = _renamed(records[name], name)
    merged = Run(
        config={"name": "comparison of " + counted(len(runs), "run")},
        environment={},
        stages=tuple(_stage(name, model) for name, model in chosen.items()),
        records=records,
        missing=(),
    )
    judged = verdict(merged, baseline=first)
    # What left and how long it took are of one stage of each run here, and say nothing together.
    return Comparison(merged, replace(judged, sentences=judged.sentences[:1]), notes, _differences(runs))


def differences_section(comparison: Comparison) -> Section:
    lead = "What differs in their configurations."
    return Section("differences", "Differences", lead, tables=[comparison.differences])


def _names(folders: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders, or by all of their paths where these are not unique."""
    short = [folder.resolve().name for folder in folders]
    return {str(folder) if short.count(name) > 1 else name: folder for name, folder in zip(short, folders, strict=True)}


def _stage(name: str, model: Model) -> StageRecord:
    """The stage of a run's best model; which one that is belongs to its label."""
    return replace(model.stage, name=name, label=f"{name}: {model.stage.label}", after=None)


def _faces(record: Record) -> dict[str, str]:
    """The fingerprints of the held-out faces."""
    return {
        name: str(result.get("faces", ""))
        for name, result in (record.evaluation or {}).items()
        if name.startswith("heldout")
    }


def _unpaired(record: Record) -> Record:
    evaluation = {name: {**result, "resampled": {}} for name, result in (record.evaluation or {}).items()}
    return replace(record, evaluation=evaluation if record.evaluation is not None else None)


def _clients(run: Run) -> Any:
    """What makes clients the same: their faces, and how these were divided."""
    config = run.config
    data = config.get("data")
    private = data.get("private") if isinstance(data, dict) else data
    return private, config.get("partition"), config.get("seed")


def _renamed(record: Record, run: str) -> Record:
    """Clients of the same name that are others."""
    clients = {f"{client} ({run})": figures for client, figures in record.last_clients.items()}
    return replace(
        record, last_clients=clients, new_clients=frozenset(f"{each} ({run})" for each in record.new_clients)
    )


def _differences(runs: Mapping[str, Run]) -> Table:
    flat = {name: _flat(run.config) for name, run in runs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    rows = [
        [key, *(values.get(key, MISSING) for values in flat.values())]
        for key in keys
        if key != "name" and len({values.get(key, MISSING) for values in flat.values()}) > 1
    ]
    caption = "Settings that are not the same in all runs." if rows else "All settings are the same."
    return Table(["setting", *runs], rows, caption, texts=1 + len(runs))


def _flat(value: Any, place: str = "") -> dict[str, str]:
    """`stages.federate.rounds` -> its value; the items of a list go by their names."""
    items: dict[str, Any] = {}
    if isinstance(value, dict):
        items = {str(key): each for key, each in value.items()}
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        items = {str(each.get("name", at)): each for at, each in enumerate(value)}
    if not items:
        return {place: value if isinstance(value, str) else json.dumps(value)}
    found: dict[str, str] = {}
    for key, each in items.items():
        found |= _flat(each, f"{place}.{key}".lstrip("."))
    return found
