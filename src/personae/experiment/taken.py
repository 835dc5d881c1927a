"""Whether a folder is free for a run: said before anything large is imported."""

from collections.abc import Set as AbstractSet
from pathlib import Path

from personae.errors import ConfigError
from personae.experiment.retention import SCHEDULE
from personae.runtime.excluded import EXCLUDED
from personae.written import word

AUDIT = word("personae.runtime.recording", "FOLDER")
LATEST = word("personae.runtime.checkpoint", "LATEST")
LOCK = ".lock"
OWN = {  # what a run puts into its folder before it has completed a round
    *(
        "config.json",
        "environment.json",
        "summary.json",
        "metrics.jsonl",
        "ledger.jsonl",
        "timing.jsonl",
        EXCLUDED,
        SCHEDULE,
        LOCK,
    ),
    *("checkpoints", "private", "models", "evaluation", "public", "scratch", "tracking", AUDIT),
}


def require_free(path: Path, *, resume: bool) -> None:
    """That a run can begin here, or with `resume` go on."""
    if not (resume and has_begun(path)):
        refuse_taken(path)


def refuse_taken(path: Path, also: AbstractSet[str] = frozenset()) -> None:
    """Raise a ConfigError where a new run would remove what is here, besides what is called as one of `also`."""
    if is_taken(path, also):
        raise ConfigError(
            f"{path}: the folder is not empty; resume that run (--resume, in Python resume=True), or "
            "choose another folder"
        )


def has_begun(path: Path) -> bool:
    """Whether a run here has completed a round, or has a report though somebody has removed its checkpoints."""
    return (path / "checkpoints" / LATEST).exists() or (path / "report.html").exists()


def is_taken(path: Path, also: AbstractSet[str] = frozenset()) -> bool:
    """Whether there is anything in this folder that a new run must not remove."""
    own = OWN | also
    return has_begun(path) or (path.exists() and not all(_is_own(entry.name, own) for entry in path.iterdir()))


def _is_own(name: str, own: AbstractSet[str]) -> bool:
    return name in own or (name.startswith(".") and name.endswith(".tmp"))  # the latter as in files.py
