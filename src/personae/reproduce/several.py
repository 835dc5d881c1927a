"""Several variants of one experiment at the same time, each a run of its own."""

from collections.abc import Mapping
from pathlib import Path

from personae.errors import ConfigError, Diverged
from personae.experiment.auditing import attacks_called, audit_run
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.rundir import is_taken
from personae.report.comparison import Comparison, compare
from personae.report.html import write_comparison, write_report
from personae.reproduce.plan import Job
from personae.reproduce.runner import Runner

PAGE = "comparison.html"


def run_several(
    variants: Mapping[str, Experiment], out: Path, execution: Execution, *, resume: bool = False
) -> tuple[Comparison, dict[str, str]]:
    """Run each in the folder of its name below `out`, one for each worker at a time, and compare those that ended.

    Besides the comparison, it gives those that did not, with the reason.

    Every run has one worker and comes out as it would alone. Faces are read or rendered once, and all processes map the
    same file. With `resume`, finished runs are not repeated, and others go on after their last completed round.
    """
    for name, experiment in variants.items():
        attacks_called(experiment.audit.attacks)  # that there is none of this name is said before the work
        if not resume and is_taken(out / name):
            raise ConfigError(
                f"{out / name}: the folder is not empty; resume these runs (--resume), or choose another folder"
            )
    ordered = [Job(name, experiment) for name, experiment in variants.items()]
    failed = Runner(execution).run(ordered, out)
    finished = [name for name in variants if name not in failed]
    for name in finished:
        if variants[name].audit.attacks:
            audit_run(out / name, variants[name].audit.attacks, execution=execution)
    for name in variants:
        write_report(out / name)
    if len(finished) < 2:
        raise Diverged(f"{', '.join(failed)} did not come to an end, and nothing is left to compare")
    found = compare([out / name for name in finished])
    write_comparison(found, out / PAGE)
    return found, failed
