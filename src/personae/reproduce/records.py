"""Finished runs as lines of one file: what it takes to judge them elsewhere, without models or what clients keep.

A line is a run (its experiment, its environment and the events of `metrics.jsonl`, or why it diverged), or a figure
that was computed from models, which the file has not.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment, parse_experiment
from personae.files import write_text

NAME = "records.jsonl"
CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"


@dataclass
class Records:
    """What several such files hold: folders of runs, why others diverged, and figures by seed and label."""

    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    figures: dict[tuple[int, str], float] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "Records":
        """Of a run that is there twice, the last one; so the file that was written last comes last."""
        found = cls()
        for path in paths:
            if not path.is_file():
                raise ConfigError(f"{path}: there is no such file of records")
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                try:
                    found._add(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(f"{path}: line {number} is not a record of a run ({error!r})") from error
        return found

    def _add(self, line: Mapping[str, Any]) -> None:
        if "figure" in line:
            self.figures[int(line["seed"]), str(line["figure"])] = float(line["value"])
        elif "problem" in line:
            self.failed[str(line["run"])] = str(line["problem"])
        else:
            _ = line["config"], line["environment"], line["metrics"]
            self.runs[str(line["run"])] = line

    def unpack(self, folder: str, experiment: Experiment, out: Path) -> bool:
        """Write a run's records where its own folder would be, if it is of this experiment; says whether it is here."""
        line = self.runs.get(folder)
        if line is None:
            return False
        recorded = parse_experiment(line["config"], f"the record of {folder}", trusted=False)
        if recorded.resolved() != experiment.resolved():
            raise ConfigError(f"{folder}: the record is of another experiment than the recipe's; run it again")
        place = out / folder
        place.mkdir(parents=True, exist_ok=True)
        write_text(place / ENVIRONMENT, json.dumps(line["environment"]) + "\n")
        write_text(place / METRICS, _lines(line["metrics"]))
        write_text(place / CONFIG, json.dumps(line["config"]) + "\n")
        return True


def keep_run(out: Path, folder: str, problem: str | None = None) -> None:
    """Add a run below `out/runs` that has just ended."""
    place = out / "runs" / folder
    if problem is not None:
        _append(out, {"run": folder, "problem": problem})
        return
    config, environment = (json.loads((place / name).read_bytes()) for name in (CONFIG, ENVIRONMENT))
    metrics = [json.loads(line) for line in (place / METRICS).read_bytes().splitlines()]
    _append(out, {"run": folder, "config": config, "environment": environment, "metrics": metrics})


def keep_missing(out: Path, folders: Sequence[str]) -> None:
    """Add those that are not in the file: they ended when nobody was there to write it down."""
    written = Records.read([out / NAME]) if (out / NAME).is_file() else Records()
    for folder in folders:
        if folder not in written.runs:
            keep_run(out, folder)


def figures_of(out: Path) -> dict[tuple[int, str], float]:
    """What was computed from models here before."""
    return Records.read([out / NAME]).figures if (out / NAME).is_file() else {}


def keep_figures(out: Path, figures: Mapping[tuple[int, str], float]) -> None:
    for (seed, label), value in figures.items():
        _append(out, {"seed": seed, "figure": label, "value": value})


def _append(out: Path, line: Mapping[str, Any]) -> None:
    with (out / NAME).open("a") as file:
        file.write(_lines([line]))


def _lines(content: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in content)
