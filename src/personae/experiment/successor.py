"""A run that takes the place of another: made beside it, in `.NAME.forgetting`, and exchanged when it is whole."""

import shutil
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from personae.experiment.retention import SCHEDULE
from personae.experiment.taken import LOCK, OWN
from personae.files import hold
from personae.privacy.audit.finding import FILE as AUDIT
from personae.privacy.forgotten_log import LOG, ForgottenEntry, append
from personae.report.html import write_report

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

AUDITED = "audit", AUDIT
MADE = (  # what a run makes of its clients
    *("metrics.jsonl", "ledger.jsonl", "checkpoints", "models", "evaluation", "report.html", "tracking"),
    *AUDITED,
)


def log_and_swap(
    run: Path,
    entry: ForgottenEntry,
    key: "Ed25519PrivateKey",
    *,
    left_out: AbstractSet[str] = frozenset(),
    report: bool = True,
) -> None:
    """Write it down in the new run, and put that in the place of the old one.

    What others have put into the old one comes along, but for what is `left_out`.
    """
    out = folder_of_new(run)
    (out / LOG).unlink(missing_ok=True)  # of an attempt that was interrupted here
    for name in (LOG, SCHEDULE):
        if (run / name).is_file():
            shutil.copy(run / name, out / name)
    append(out / LOG, entry, key)
    if report:
        write_report(out)
    for other in others_in(run, left_out):
        if not (out / other.name).exists():
            shutil.copytree(other, out / other.name) if other.is_dir() else shutil.copy2(other, out / other.name)
    run.resolve().rename(_old(run))
    finish_swap(run)


def finish_swap(run: Path) -> None:
    """What is left to do of an exchange of two folders that was interrupted."""
    run = run.resolve()  # the folder itself, where this is a link to it
    if not run.exists() and _old(run).exists():
        (folder_of_new(run) if folder_of_new(run).exists() else _old(run)).rename(run)
    if run.exists() and _old(run).exists():
        shutil.rmtree(_old(run))


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    held = hold(run / LOCK, f"{run}: another process is working in this run; stop it, or wait for it")
    try:
        yield
    finally:
        held.release()


def folder_of_new(run: Path) -> Path:
    """Where the run is made that takes the place of this one."""
    return run.resolve().with_name(f".{run.resolve().name}.forgetting")


def _old(run: Path) -> Path:
    return run.resolve().with_name(f".{run.resolve().name}.forgotten")


def others_in(run: Path, also: AbstractSet[str] = frozenset()) -> list[Path]:
    """What is in a run's folder and was not put there by the run; `also` is what else such a run has there."""
    own = OWN | {"report.html", LOG, AUDIT} | also
    return sorted(path for path in run.iterdir() if path.name not in own and not path.name.startswith("."))
