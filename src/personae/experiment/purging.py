"""Delete what a run, or a client's home, has kept for longer than it should."""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import ValidationError

from personae.errors import ConfigError, DataError
from personae.experiment.explain import explain, nearest
from personae.experiment.home import RUNS, is_home
from personae.experiment.retention import KINDS, SCHEDULE, Kind, Retention, duration
from personae.experiment.taken import LOCK
from personae.files import from_json, hold
from personae.privacy.audit.finding import FILE as AUDIT

BIOMETRIC: tuple[Kind, ...] = ("checkpoints", "private")  # what clients sent and kept: templates, at worst
_PLACES: dict[Kind, tuple[str, ...]] = {
    "checkpoints": ("checkpoints", "scratch", "post", "public"),
    "private": ("private",),
    "records": ("metrics.jsonl", "ledger.jsonl", "timing.jsonl"),
    "tracking": ("tracking",),
    "audit": ("audit", AUDIT),
    "models": ("models",),
}
_PURGED = ".purged."  # begins the name of what is being deleted


@dataclass(frozen=True)
class Due:
    """What is to be deleted, and why."""

    path: Path
    kind: Kind
    days: float
    """Since the run last wrote anything."""
    bytes: int


def due(
    folders: Sequence[Path], older_than: str | None = None, what: Sequence[str] = (), now: float | None = None
) -> list[Due]:
    """What has been kept for longer than it should, by each run's own schedule or by the time that is given."""
    if what and older_than is None:
        raise ConfigError("--what goes with --older-than; without these, the schedule of each run counts")
    for unknown in (kind for kind in what if kind not in KINDS):
        raise ConfigError(f"--what {unknown}: there is no such kind{nearest(unknown, KINDS)}")
    now = time.time() if now is None else now
    kinds = tuple(kind for kind in KINDS if kind in what)
    return [each for folder in folders for each in _due(folder, older_than, kinds, now)]


def purge(items: Sequence[Due]) -> None:
    """Delete it; what is interrupted is finished the next time."""
    for item in items:
        folder = item.path.parent
        lock = _lock_of(item)
        held = hold(lock, f"{lock.parent}: another process is working here; stop it, or wait for it")
        try:
            _sweep(folder)
            item.path.rename(folder / f"{_PURGED}{item.path.name}")
            _sweep(folder)
        finally:
            held.release()


def _due(folder: Path, older_than: str | None, what: Sequence[Kind], now: float) -> Iterator[Due]:
    if is_home(folder):
        yield from _due_at_home(folder, older_than, now)
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: this is neither a run nor a client's home")
    schedule = dict.fromkeys(what or BIOMETRIC, older_than) if older_than else _schedule(folder)
    if not schedule:
        raise ConfigError(
            f"{folder}: this run has no schedule ([retention] of its experiment); say --older-than, such as 90d"
        )
    age = now - max(path.stat().st_mtime for path in _dated(folder))
    for kind, limit in schedule.items():
        if limit is None or timedelta(seconds=age) < duration(limit):
            continue
        places = [folder] if kind == "all" else [folder / name for name in _PLACES[kind]]
        yield from (Due(path, kind, age / 86400, _size(path)) for path in places if path.exists())
        if kind == "all":
            return


def _due_at_home(home: Path, older_than: str | None, now: float) -> Iterator[Due]:
    """A client keeps a run as a whole, or not at all."""
    if older_than is None:
        raise ConfigError(f"{home}: a client's home has no schedule; say --older-than, such as 90d")
    for run in sorted(path for path in (home / RUNS).iterdir() if path.is_dir() and not path.name.startswith(".")):
        age = now - max(path.stat().st_mtime for path in (run, *run.rglob("*")))
        if timedelta(seconds=age) >= duration(older_than):
            yield Due(run, "private", age / 86400, _size(run))


def _schedule(folder: Path) -> dict[Kind, str | None]:
    path = folder / SCHEDULE
    if not path.is_file():
        return {}
    try:
        return dict(Retention(**from_json(path.read_text())).schedule())
    except (ValueError, TypeError) as error:
        what = explain(error, Retention) if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: this file is damaged ({what}); restore it, or say --older-than") from error


def _dated(folder: Path) -> list[Path]:
    """Files that a run writes to for as long as it goes on."""
    names = ("metrics.jsonl", "timing.jsonl", "config.json")
    return [folder / name for name in names if (folder / name).exists()]


def _lock_of(item: Due) -> Path:
    if item.path.parent.name == RUNS:
        return item.path.parent.parent / LOCK
    return (item.path if item.kind == "all" else item.path.parent) / LOCK


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _sweep(folder: Path) -> None:
    for leftover in folder.glob(f"{_PURGED}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
