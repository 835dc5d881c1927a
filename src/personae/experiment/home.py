"""What a client keeps of runs over a network, on its own disk: `HOME/runs/<run>/`.

run.json                        the experiment as the server told it, and where this client's faces were
received-<stage>.safetensors    what the server sent last in that stage, and after which of its rounds
records.json                    the figures of this client's own faces, and what left it
<client>/<stage>/               its private state (`runtime/store.py`); no client's folder has a dot in its name
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from personae.core import wire
from personae.core.algorithm import ClientInfo
from personae.core.holdings import Holdings
from personae.core.layout import Layout
from personae.core.stage import Recipe, Stage
from personae.data.handling import Handling
from personae.errors import ConfigError, DataError
from personae.experiment.assembly import federation_of
from personae.experiment.config import Experiment, parse_experiment
from personae.files import read_json, write_bytes, write_text
from personae.progress import Notify, unheard
from personae.runtime.federation import Federation
from personae.runtime.public import SharedFaces
from personae.runtime.seal import sealed, unsealed
from personae.runtime.store import mark_run
from personae.runtime.transport import EVALUATE, TRAIN, Request

RUNS, RUN, RECORDS = "runs", "run.json", "records.json"


@dataclass(frozen=True)
class Records:
    """What this client answered in a run: the figures of its own faces, and what left it."""

    folder: Path

    def evaluated(self, stage: str, round_: int, figures: Mapping[str, float]) -> None:
        self._record("figures", stage, {str(round_): dict(figures)})

    def sent(self, stage: str, payloads: Mapping[str, int]) -> None:
        """An answer with so many bytes of each kind of payload is about to leave."""
        known, entries = self._all().get("sent", {}).get(stage, {}), {}
        for payload, size in payloads.items():
            before = known.get(payload, {"messages": 0, "bytes": 0})
            entries[payload] = {"messages": before["messages"] + 1, "bytes": before["bytes"] + size}
        self._record("sent", stage, entries)

    def figures(self, stage: str, round_: int) -> dict[str, float]:
        """Of the model after this round on this client's own test faces; empty if it was not asked then."""
        found: dict[str, float] = self._all().get("figures", {}).get(stage, {}).get(str(round_), {})
        return found

    def left(self, stages: Iterable[str]) -> list[dict[str, Any]]:
        """By stage and payload: how many messages and bytes went from this client to the server."""
        sent = self._all().get("sent", {})
        return [
            {"stage": stage, "payload": payload, **counts}
            for stage in stages
            for payload, counts in sorted(sent.get(stage, {}).items())
        ]

    def _all(self) -> dict[str, Any]:
        path = self.folder / RECORDS
        if not path.is_file():
            return {}
        return read_json(path, dict)

    def forget(self, stage: str, round_: int) -> None:
        """Take the figures of a round back."""
        if self.figures(stage, round_):
            records = self._all()
            del records["figures"][stage][str(round_)]
            self._write(records)

    def _record(self, book: str, stage: str, entries: Mapping[str, Any]) -> None:
        records = self._all()
        records.setdefault(book, {}).setdefault(stage, {}).update(entries)
        self._write(records)

    def _write(self, records: dict[str, Any]) -> None:
        write_text(self.folder / RECORDS, json.dumps(records, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class OwnRun:
    """A run as one of its clients keeps it."""

    folder: Path
    told: dict[str, Any]  # the experiment, as the server wrote it
    data: str  # where this client's faces were
    unlabelled: bool  # whether nobody says who is on them
    handling: Handling  # of images that are not aligned faces, or no images
    faces: str  # and their fingerprint
    public: str | None  # where its copy of the public faces was
    begun: str  # when it was first asked
    environment: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "OwnRun":
        return read_json(folder / RUN, lambda known: cls(folder=folder, **known))

    def write(self) -> None:
        """The first time is what counts as the beginning of the run."""
        known = self.read(self.folder).begun if (self.folder / RUN).is_file() else self.begun
        content = asdict(replace(self, begun=known))
        del content["folder"]
        mark_run(self.folder, self.folder.name)
        write_text(self.folder / RUN, json.dumps(content, indent=1) + "\n")

    @property
    def records(self) -> Records:
        return Records(self.folder)

    @cached_property
    def experiment(self) -> Experiment:
        return parse_experiment(self.told, str(self.folder / RUN))

    @cached_property
    def recipe(self) -> Recipe:
        """Made once: every request asks for its stage."""
        return self.experiment.recipe

    @property
    def name(self) -> str:
        """For people: two runs may have the same."""
        return str(self.told.get("name", "?"))

    @property
    def title(self) -> str:
        return f"run {self.name} ({self.folder.name[:8]})"

    def federation(self, holdings: Holdings, public: SharedFaces | None) -> Federation:
        """What this client knows of it, with its faces."""
        return federation_of(self.experiment, holdings, self.folder, public=public)

    # ------------------------------------------------------------------------------------------ what the server sent

    def receive(self, request: Request) -> None:
        """Keep what came with a request. What is sent to train in a round is the model after the round before it.

        Only the last model of a stage is waited for until it is on the disk. Another one comes soon, or again after the
        machine has failed: it is damaged then at worst, which shows.
        """
        if request.task not in (TRAIN, EVALUATE):
            return
        after = request.round - (request.task == TRAIN)
        if request.task == EVALUATE:  # a round that runs again may end in another model
            self.records.forget(request.stage, after)
        elif self._counts_already(request.stage, after):
            return
        of = {"run": self.folder.name, "stage": request.stage, "round": after, "client": asdict(request.client)}
        last = after == self.stage(request.stage).rounds
        content = sealed(wire.encode(request.down), of)
        write_bytes(self._received(request.stage), *content, durable=last, private=True)

    def _counts_already(self, stage: str, after: int) -> bool:
        """Whether the model that counts after this round is here: with a mean over rounds, it is not sent to train."""
        if self.stage(stage).server.average == "none" or not self._received(stage).is_file():
            return False
        try:
            return self.last_request(stage).round == after
        except DataError:  # it is damaged, and replaced
            return False

    def last_request(self, stage: str) -> Request:
        """To evaluate the model that came last, as it was or would have been asked for."""
        path, algorithm = self._received(stage), self.stage(stage).algorithm
        try:
            packet, of = unsealed(path.read_bytes())
            layout = Layout.of(self.experiment.network.layout())
            down = wire.decode(algorithm.types.down, packet, layout)
            if of["stage"] != stage:
                raise ValueError(f"it is of stage {of['stage']}")
            return Request(EVALUATE, stage, int(of["round"]), ClientInfo(**of["client"]), down)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: this model is damaged ({error}); restore it from a copy") from error

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.recipe if stage.name == name)

    def last_stage(self, wanted: str | None = None) -> str:
        """The last stage of which something came, or `wanted` itself if something came of that."""
        names = [stage.name for stage in self.recipe]
        known = [name for name in names if self._received(name).is_file()]
        if wanted is not None and wanted not in names:
            raise ConfigError(f"{self.title}: no stage is called {wanted!r}; there are {', '.join(names)}")
        if not known or (wanted is not None and wanted not in known):
            raise ConfigError(f"{self.title}: this client has received nothing of {wanted or 'any stage'} yet")
        return wanted or known[-1]

    def personal(self, stage: str, wanted: bool, notify: Notify = unheard) -> bool:
        """Whether a personal model is wanted and there is such a thing."""
        algorithm = self.stage(stage).algorithm
        if wanted and not algorithm.personalizes:
            notify(f"stage {stage} ({algorithm.name}) makes no personal models: this is the shared one")
        return wanted and algorithm.personalizes

    def _received(self, stage: str) -> Path:
        return self.folder / f"received-{stage}.safetensors"


def now() -> str:
    return datetime.now(UTC).isoformat()


def is_home(folder: Path) -> bool:
    """Whether a client keeps a run here."""
    return any((folder / RUNS).glob(f"*/{RUN}"))


def own_run(home: Path, wanted: str | None = None, notify: Notify = unheard) -> OwnRun:
    """The newest run of a home, or the one of this name, this number or a beginning of either."""
    runs = sorted((OwnRun.read(path.parent) for path in (home / RUNS).glob(f"*/{RUN}")), key=lambda run: run.begun)
    chosen = runs
    if wanted is not None:
        exact = [run for run in runs if wanted in (run.name, run.folder.name)]
        chosen = exact or [run for run in runs if run.name.startswith(wanted) or run.folder.name.startswith(wanted)]
        different = {run.name for run in chosen}
        if len(different) != 1 or (not exact and len(chosen) > 1 and not chosen[0].name.startswith(wanted)):
            known = ", ".join(f"{run.name} ({run.folder.name[:8]}, {run.begun[:10]})" for run in runs)
            raise ConfigError(f"--run {wanted}: {'several runs' if chosen else 'no run'} of {home}; there are {known}")
    if len(chosen) > 1:
        notify(f"{home}: {chosen[-1].title} is the newest of {len(chosen)}; --run chooses another")
    return chosen[-1]
