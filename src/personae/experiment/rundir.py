"""A run on disk: what was asked for, what happened, and what came of it."""

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from io import BufferedWriter
from pathlib import Path
from typing import Any, get_args

import numpy
import safetensors.torch
import torch

from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.core.events import Entry, RecordName
from personae.core.layer import described
from personae.core.stage import Recipe, Stage, predecessors
from personae.errors import ConfigError, DataError, PersonaeError
from personae.experiment.explain import called
from personae.experiment.taken import AUDIT, LOCK, has_begun, refuse_taken
from personae.files import hold, private_folder, read_json, replacing, resumable, sweep, write_text
from personae.privacy.disclosure import descriptions, leaves
from personae.progress import Notify, unheard
from personae.runtime.engine import Result
from personae.runtime.problems import PROBLEMS
from personae.runtime.store import mark_run
from personae.version import version

RECORDS = get_args(RecordName)
VERSIONS = ("personae", "python", "torch", "numpy")  # of the environment: what figures may depend on


class RunDirectory:
    """The folder of one run, held by one process at a time; it is the journal that the engine writes.

    `config.json` and `environment.json` say what ran where; `metrics.jsonl`, `ledger.jsonl` and `timing.jsonl` grow by
    one line per event; `models/` and `evaluation/` get one file per finished stage. A run continues from
    `checkpoints/` and `private/`. `metrics.jsonl` and `ledger.jsonl` do not depend on the machine or the clock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        taken = f"{path}: another process is working in this run; wait for it or choose another folder"
        self._lock = hold(path / LOCK, taken)
        self._records: dict[str, BufferedWriter] = {}
        self._checksums: dict[str, int] = {}  # of what is in each of them

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any],
        recipe: Recipe,
        environment: Mapping[str, Any],
        *,
        resume: bool,
        notify: Notify = unheard,
    ) -> "RunDirectory":
        """A new run, or with `resume` the one that was begun here, if there is any."""
        if not (resume and has_begun(path)):
            return cls.create(path, config, recipe, environment)
        run = cls.reopen(path, config)
        run.compare_versions(environment, notify)
        return run

    @classmethod
    def create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        recipe: Recipe,
        environment: Mapping[str, Any],
        *,
        also: AbstractSet[str] = frozenset(),
    ) -> "RunDirectory":
        """A new run. What one has left that ended before it completed a round makes room for it.

        `also`: what such a run leaves here besides.
        """
        refuse_taken(path, also)  # and leave no lock in a folder that is none of ours
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        try:
            refuse_taken(path, also)  # another process may have been faster, and be done
        except ConfigError:
            run.close()
            raise
        for leftover in (entry for entry in path.iterdir() if not entry.name.endswith(LOCK)):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        private_folder(path / "private")  # what never leaves a client, were they elsewhere
        mark_run(path / "private", hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest())
        before = predecessors(recipe)
        described = [{**_describe(stage), "after": before[stage.name]} for stage in recipe]
        kinds = {name: dataclasses.asdict(each) for name, each in descriptions(s.algorithm for s in recipe).items()}
        _write_json(path / "summary.json", {"stages": described, "payloads": kinds})
        _write_json(path / "environment.json", environment)
        _write_json(path / "config.json", config)  # the last, because it makes the folder a run
        return run._opened()

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, Any]) -> "RunDirectory":
        """A run that was begun earlier, by the same experiment."""
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path}: there is no run to resume here; start it without resuming")
        run = cls(path)
        try:
            run._require(config)
        except PersonaeError:
            run.close()
            raise
        sweep(path)
        return run._opened()

    def _require(self, config: Mapping[str, Any]) -> None:
        """That this run is of this experiment."""
        known = self.path / "config.json"
        begun = read_json(known, dict, "restore it, or start again elsewhere")
        if begun != json.loads(json.dumps(config)):
            different = _first_difference(begun, json.loads(json.dumps(config)))
            raise ConfigError(f"{self.path}: this run is of another experiment ({different}); choose another folder")

    def compare_versions(self, environment: Mapping[str, Any], notify: Notify) -> None:
        """A run may go on with other versions of what computes it; its figures then may not be those of either."""
        known = self.path / "environment.json"
        begun = read_json(known, dict) if known.exists() else {}
        changed = [name for name in VERSIONS if name in begun and begun[name] != environment[name]]
        if changed:
            then, now = (", ".join(f"{name} {each[name]}" for name in changed) for each in (begun, environment))
            notify(f"{self.path}: this run was begun with {then} and goes on with {now}; its figures may differ")

    def _opened(self) -> "RunDirectory":
        for name in RECORDS:
            self._records[name] = (self.path / f"{name}.jsonl").open("ab")
            self._checksums[name] = 0
        return self

    def close(self) -> None:
        try:
            with resumable(self.path):
                for file in self._records.values():
                    file.close()
        finally:
            self._lock.release()

    def write(self, entry: Entry) -> None:
        with resumable(self.path):
            self._append(entry.record, entry.line())

    def finished(self, stage: Stage, round_: int, backbone: Backbone, results: Mapping[str, Result]) -> None:
        entries = {name: entry.cpu().contiguous() for name, entry in backbone.module.state_dict().items()}
        with resumable(self.path):
            with replacing(self.path / "models" / f"{stage.name}.safetensors") as temporary:
                safetensors.torch.save_file(entries, temporary)
            self._evaluated(self.path / "evaluation", stage, round_, results)

    def begun(self, stage: Stage, results: Mapping[str, Result]) -> None:
        with resumable(self.path):
            self._evaluated(self.path / "evaluation" / "given", stage, 0, results)

    def _evaluated(self, folder: Path, stage: Stage, round_: int, results: Mapping[str, Result]) -> None:
        benchmarks = {name: dataclasses.asdict(result) for name, result in results.items()}  # type: ignore[call-overload]
        content = {"stage": stage.name, "round": round_, "benchmarks": benchmarks}
        _write_json(folder / f"{stage.name}.json", content)

    def take_over(self, other: Path) -> None:
        """What another run has written down, as if it had happened here."""
        for name in self._records:
            self._append(name, (other / f"{name}.jsonl").read_bytes())
        for name in ("models", "evaluation", AUDIT):
            if (other / name).is_dir():
                shutil.copytree(other / name, self.path / name)
        if (problems := other / "private" / PROBLEMS).is_file():
            shutil.copy(problems, self.path / "private")

    def position(self) -> dict[str, int]:
        """The lengths of the records, now safely on disk, and their checksums."""
        with resumable(self.path):
            for file in self._records.values():
                file.flush()
                os.fsync(file.fileno())
        lengths = {name: file.tell() for name, file in self._records.items()}
        return lengths | {_checksum(name): found for name, found in self._checksums.items()}

    def rewind(self, position: Mapping[str, int]) -> None:
        for name, file in self._records.items():
            length = position.get(name, 0)
            content = (self.path / f"{name}.jsonl").read_bytes()[:length]
            if len(content) < length:
                raise DataError(
                    f"{file.name}: lines are missing that were there at the last checkpoint; restore it from a copy"
                )
            found = self._checksums[name] = zlib.crc32(content)
            if position.get(_checksum(name), found) != found:
                raise DataError(
                    f"{file.name}: it is not what was written until the last checkpoint; restore it from a copy"
                )
            file.truncate(length)
            file.seek(length)

    def _append(self, record: str, content: bytes) -> None:
        self._records[record].write(content)
        self._checksums[record] = zlib.crc32(content, self._checksums[record])


def _checksum(record: str) -> str:
    """What a position calls the checksum of a record."""
    return f"{record}/crc32"


def environment(device: str, workers: int, acceleration: Acceleration) -> dict[str, Any]:
    """What the figures may depend on besides the experiment."""
    return {
        "personae": version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine(),
        "device": device,
        "workers": workers,
        "acceleration": dataclasses.asdict(acceleration),
    }


def _describe(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "algorithm": described(stage.algorithm),
        "label": stage.title,
        "rounds": stage.rounds,
        "federated": stage.algorithm.federated,
        "discloses": leaves(stage.algorithm),
        "pools_faces": stage.algorithm.pools_faces,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def _first_difference(begun: Any, now: Any, place: str = "") -> str:
    if isinstance(begun, dict) and isinstance(now, dict):
        for key in [*begun, *(key for key in now if key not in begun)]:
            if begun.get(key) != now.get(key):
                return _first_difference(begun.get(key), now.get(key), f"{place}.{key}".lstrip("."))
    if isinstance(begun, list) and isinstance(now, list) and len(begun) == len(now):
        index = next(index for index, pair in enumerate(zip(begun, now, strict=True)) if pair[0] != pair[1])
        return _first_difference(begun[index], now[index], f"{place}.{called(index, begun[index])}")
    return f"{place} was {json.dumps(begun)[:60]} and is {json.dumps(now)[:60]}"
