"""Trackers: each is read back with its library's own reader; names of clients do not leave; none can end a run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from killing import SETTINGS
from personae import ConfigError, StopRun, load_experiment, run_experiment
from personae.core.events import Event, GlobalEvaluation, PersonalEvaluation, RoundWarning, TrainingRound
from personae.report.records import read_events
from personae.tracking import Stream, Tracker, trackers, tracking
from personae.tracking.tracker import figures_of

EVENTS: list[Event] = [
    TrainingRound(
        stage="train",
        round=1,
        participants=("Ann", "Bob", "Eve"),
        rejected={"Bob": "it claims 0 samples"},
        failed={},
        scalars={"loss": 1.5},
    ),
    GlobalEvaluation(stage="train", round=1, metrics={"heldout/tar@1e-02": 0.25}),
    PersonalEvaluation(
        stage="train",
        round=1,
        clients={"Ann": {"global/rank1": 1.0}, "Bob": {"global/rank1": 0.5, "personal/rank1": 0.75}},
    ),
    RoundWarning(stage="train", round=1, text="the clusters of Ann look odd"),
    TrainingRound(stage="train", round=2, participants=("Ann",), rejected={}, failed={"Ann": "gone"}, scalars={}),
]
ROUNDS = {
    "train/loss": {1: 1.5},
    "train/participants": {1: 3.0, 2: 1.0},
    "train/rejected": {1: 1.0, 2: 0.0},
    "train/failed": {1: 0.0, 2: 1.0},
    "train/heldout/tar@1e-02": {1: 0.25},
    "train/clients/global/rank1": {1: 0.75},
    "train/clients/personal/rank1": {1: 0.75},
}


def tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    found = reader.EventAccumulator(str(folder / "tracking" / "tensorboard"))
    found.Reload()
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'tracking' / 'mlflow' / 'mlflow.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert "Ann" not in str(run)
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {
        name.replace(" at ", "@"): [(each.step, each.value) for each in history] for name, history in histories.items()
    }


def trackio(folder: Path) -> dict[str, list[tuple[int, float]]]:
    storage = pytest.importorskip("trackio.sqlite_storage", reason="trackio is not installed").SQLiteStorage
    run = (folder / "tracking" / "trackio" / "run").read_text().strip()
    project = run.rpartition("-")[0]
    assert "Ann" not in str(storage.get_run_records(project))
    found: dict[str, list[tuple[int, float]]] = {}
    for line in storage.get_logs(project, run):
        for name in line.keys() - {"step", "timestamp"}:
            found.setdefault(name, []).append((line["step"], line[name]))
    return found


@pytest.fixture(scope="module", autouse=True)
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """trackio keeps to one folder from its import on: not to that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield


each_tracker = pytest.mark.parametrize("read", [tensorboard, mlflow, trackio], ids=lambda read: read.__name__)
quiet = pytest.mark.filterwarnings("ignore")  # what libraries say about each other


@quiet
@each_tracker
def test_what_was_tracked_is_read_back_with_the_library_itself(tmp_path: Path, read: Any) -> None:
    pytest.importorskip(read.__name__, reason=f"{read.__name__} is not installed")
    told: list[str] = []
    for some in (EVENTS[:4], EVENTS[4:]):  # as a run that is resumed
        with tracking(trackers([read.__name__]), tmp_path, "faces", told.append) as tell:
            for event in some:
                tell(event)
    assert {name: dict(values) for name, values in read(tmp_path).items()} == ROUNDS
    assert told == []


@quiet
@each_tracker
def test_a_resumed_run_writes_no_round_twice(tmp_path: Path, faces_cache: Path, read: Any) -> None:
    pytest.importorskip(read.__name__, reason=f"{read.__name__} is not installed")

    def enough(event: Event) -> None:
        if (event.stage, event.round) == ("federate", 2):
            raise StopRun

    experiment = load_experiment("quick", [*SETTINGS, f'tracking.trackers=["{read.__name__}"]'])
    run_experiment(experiment, tmp_path / "run", cache=faces_cache, callbacks=[enough])
    run_experiment(experiment, tmp_path / "run", cache=faces_cache, resume=True)
    expected: dict[str, list[tuple[int, float]]] = {}
    for event in read_events(tmp_path / "run"):
        for name, value in figures_of(event).items():
            expected.setdefault(name, []).append((event.round, pytest.approx(value)))
    assert read(tmp_path / "run") == expected


def test_no_name_of_a_client_reaches_a_tracker() -> None:
    told = [figures_of(event) for event in EVENTS]
    assert not any(name in str(told) for name in ("Ann", "Bob", "Eve"))


class Broken(Tracker):
    name: ClassVar[str] = "broken"
    module: ClassVar[str] = "json"
    calls: ClassVar[list[str]] = []

    def __init__(self, folder: Path, experiment: str) -> None:
        self.calls.append(experiment)

    def log(self, figures: Mapping[str, float], round_: int) -> None:
        self.calls.append("log")
        raise ConnectionError("nobody is there\nat all")

    def close(self) -> None:
        self.calls.append("close")


class Closed(Broken):
    name: ClassVar[str] = "closed"

    def __init__(self, folder: Path, experiment: str) -> None:
        raise OSError("no room")


class Patient(Broken):
    name: ClassVar[str] = "patient"
    calls: ClassVar[list[str]] = []
    heard: ClassVar[list[Mapping[str, float]]] = []

    def log(self, figures: Mapping[str, float], round_: int) -> None:
        self.heard.append(figures)


def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    with tracking((Broken, Closed, Patient), tmp_path, "faces", told.append) as tell:
        for event in EVENTS:
            tell(event)
    assert len(Patient.heard) == 4  # all but the warning
    assert told == [
        "the tracker closed failed and gets nothing more: no room; the run and its records go on",
        "the tracker broken failed and gets nothing more: nobody is there; the run and its records go on",
    ]
    assert Broken.calls == ["faces", "log"]
    Stream((), tmp_path, "faces", told.append).close()


def test_a_tracker_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path, faces_cache: Path) -> None:
    experiment = load_experiment("quick", SETTINGS)
    with pytest.raises(ConfigError, match="there is no tracker 'abacus'; there are tensorboard, mlflow"):
        run_experiment(experiment, tmp_path / "run", cache=faces_cache, trackers=["abacus"])
    assert not (tmp_path / "run").exists()


def test_one_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"tracker mlflow: mlflow is not installed; pip install 'personae\[tracking\]'"
    ):
        trackers(["mlflow"])


def test_tracking_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    tracked = load_experiment("quick", ['tracking.trackers=["tensorboard"]'])
    assert tracked.tracking.trackers == ("tensorboard",)
    assert tracked.resolved() == load_experiment("quick").resolved()
