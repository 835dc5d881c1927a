"""Several variants of one experiment at the same time, each a run of its own; what they begin with in common, once."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from personae.errors import PersonaeError
from personae.experiment.auditing import attacks_called, audit_run
from personae.experiment.config import Experiment, Tracking
from personae.experiment.execution import Execution
from personae.experiment.taken import has_begun, require_free
from personae.report.comparison import Comparison, compare
from personae.report.html import write_comparison, write_report
from personae.reproduce.plan import Job
from personae.reproduce.runner import Runner

PAGE = "comparison.html"
COMMON = ".common"  # the folder of runs that several variants begin with, until these have taken them over


def run_several(
    variants: Mapping[str, Experiment], out: Path, execution: Execution, *, resume: bool = False
) -> tuple[Comparison, dict[str, PersonaeError]]:
    """Run each in the folder of its name below `out`, one for each worker at a time, and compare those that ended.

    Besides the comparison, it gives those that did not, with the reason.

    Every run has one worker and comes out as it would alone, with all records. Stages that variants begin with in
    common are run once. Faces are read or rendered once, and all processes map the same file. With `resume`, finished
    runs are not repeated, and others go on after their last completed round.
    """
    for name, experiment in variants.items():
        attacks_called(experiment.audit.attacks)  # that there is none of this name is said before the work
        require_free(out / name, resume=resume)
    ended = Runner(execution).run(planned(variants, out), out)
    failed = {name: ended[name] for name in variants if name in ended}
    if ended.keys() == failed.keys():
        shutil.rmtree(out / COMMON, ignore_errors=True)
    finished = [name for name in variants if name not in failed]
    for name in finished:
        if variants[name].audit.attacks:
            audit_run(out / name, variants[name].audit.attacks, execution=execution)
    for name in variants:
        if (out / name / "config.json").is_file():  # what it begins with may have diverged
            write_report(out / name)
    if len(finished) < 2:
        raise unfinished(failed, "nothing is left to compare")
    found = compare([out / name for name in finished])
    write_comparison(found, out / PAGE)
    return found, failed


def unfinished(failed: Mapping[str, PersonaeError], then: str) -> PersonaeError:
    """One error for all of them, of the kind of the first."""
    return type(next(iter(failed.values())))(f"{', '.join(failed)}: not finished; {then}")


def planned(variants: Mapping[str, Experiment], out: Path) -> list[Job]:
    """A job for each variant, and one for what several of them begin with; what a job begins with comes before it.

    A variant begins with another one, if that ends where this goes on. One that was begun earlier goes on by itself.
    """
    chains = {name: _chain(experiment) for name, experiment in variants.items()}
    new = [name for name in variants if not has_begun(out / name)]
    shared = Counter(end for name in new for end in chains[name])
    ends = {chain[-1]: name for name, chain in reversed(chains.items())}
    jobs: dict[str, Job] = {}

    def beginning(experiment: Experiment, chain: Sequence[str], users: int) -> tuple[str | None, int]:
        """The folder of a run of its first stages, as many as others have as well, and how many these are."""
        for stages in range(len(chain) - 1, 0, -1):
            end = chain[stages - 1]
            folder = ends.get(end) or f"{COMMON}/{experiment.stages[stages - 1].name}-{end[:8]}"
            if end not in ends and shared[end] <= users and not has_begun(out / folder):
                continue
            if folder not in chains and folder not in jobs:
                first = _first(experiment, stages)
                jobs[folder] = Job(folder, first, *beginning(first, chain[:stages], shared[end]), followed=False)
            return folder, stages
        return None, 0

    for name, experiment in variants.items():
        begin = beginning(experiment, chains[name], users=1) if name in new else (None, 0)
        jobs[name] = Job(name, experiment, *begin)
    return sorted(jobs.values(), key=lambda job: len(job.experiment.stages))


def _first(experiment: Experiment, stages: int) -> Experiment:
    """The experiment as far as these stages, for nobody to look at."""
    return experiment.model_copy(update={"stages": experiment.stages[:stages], "tracking": Tracking()})


def _chain(experiment: Experiment) -> list[str]:
    """A digest for the end of each stage: of all that a run up to there depends on, and keeps."""
    kept = [section.model_dump(mode="json") for section in (experiment.retention, experiment.audit)]
    found = []
    for count in range(1, len(experiment.stages) + 1):
        result = {**_first(experiment, count).resolved(), "name": ""}
        found.append(hashlib.sha256(json.dumps([result, kept], sort_keys=True).encode()).hexdigest())
    return found
