"""From the name of a system to verdicts on its claims."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment, load_variants
from personae.experiment.explain import nearest
from personae.files import write_text
from personae.privacy.disclosure import warning
from personae.progress import unheard
from personae.reproduce.claims import Claim, System
from personae.reproduce.findings import Finding
from personae.reproduce.judge import Judge
from personae.reproduce.plan import Job, Plan
from personae.reproduce.records import Records, figures_of, keep_missing
from personae.reproduce.runner import Runner, below, is_finished
from personae.reproduce.systems import SYSTEMS

Scale = Literal["small", "large", "paper"]
PAPER_SCALE = "paper-scale"  # the recipe's name; `paper` is that of the paper's own data


@dataclass(frozen=True)
class Reproduction:
    """What came of it, and the pictures that were drawn besides the claims' plots."""

    findings: tuple[Finding, ...]
    pictures: tuple[Path, ...]


def find_system(name: str) -> System:
    if name not in SYSTEMS:
        raise ConfigError(f"there is no system {name!r}{nearest(name, SYSTEMS)}")
    return SYSTEMS[name]


def choose_claims(system: System, ids: Sequence[str]) -> tuple[Claim, ...]:
    """The claims named, all of them where none is: in the order of the paper, but for the one that leads."""
    known = {claim.id: claim for claim in system.claims}
    for wanted in ids:
        if wanted not in known:
            raise ConfigError(f"{system.name} has no claim {wanted!r}{nearest(wanted, known)}")
    chosen = [claim for claim in system.claims if not ids or claim.id in ids]
    return tuple(sorted(chosen, key=lambda claim: claim.id != system.leads))


def variants_of(system: System, scale: Scale) -> dict[str, Experiment]:
    """The experiments of a system by name, as its recipe declares them."""
    recipe = system.recipes / system.name / f"{PAPER_SCALE if scale == 'paper' else scale}.toml"
    if not recipe.is_file():
        raise ConfigError(f"{system.name} has no recipe for --scale {scale}: there is no {recipe.name}")
    return load_variants(recipe)


def reproduce(
    system: System,
    out: Path,
    *,
    scale: Scale = "small",
    claims: Sequence[str] = (),
    seeds: int = 3,
    first_seed: int = 0,
    resume: bool = False,
    records: Sequence[Path] = (),
    runner: Runner | None = None,
    notify: Callable[[str], None] = unheard,
) -> Reproduction:
    """Run what the claims need, once for each seed, in `out/runs`; then judge them and write it down in `out`.

    The seeds are `first_seed` and those after it: a claim that was written after a look at some is judged on others.

    With `records`, files that were written elsewhere, nothing is run: claims are judged whose runs are all in them.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: there must be one at least, and two for a verdict")
    if first_seed < 0:
        raise ConfigError(f"--first-seed {first_seed}: seeds are 0 or more")
    numbers = range(first_seed, first_seed + seeds)
    runner = runner or Runner()
    chosen = choose_claims(system, claims)
    experiments = variants_of(system, scale)
    # Pictures tell of the whole paper: who asks for some claims does not wait for them, but gets what can be drawn.
    awaited = system.pictured if len(chosen) == len(system.claims) else ()
    needed = dict.fromkeys((*(variant for claim in chosen for variant in claim.variants), *awaited))
    _open(out, {"system": system.name, "scale": scale}, resume)
    _warn([experiments[name] for name in needed], notify)

    plans = {
        seed: Plan.of({name: each.model_copy(update={"seed": seed}) for name, each in experiments.items()})
        for seed in numbers
    }
    jobs = _claim_by_claim(plans, [*(claim.variants for claim in chosen), awaited])
    folders = {seed: {name: f"seed-{seed}/{plan.folders[name]}" for name in needed} for seed, plan in plans.items()}
    about = {"system": system.name, "paper": system.paper, "scale": scale, "seeds": list(numbers)}
    judge = Judge(chosen, about, out, experiments, folders, runner.execution.cache, notify)
    if records:
        found = Records.read(records)
        judge.ended |= {job.folder for job in jobs if found.unpack(job.folder, job.experiment, out / "runs")}
        judge.failed |= found.failed
        judge.known |= found.figures
        judge.require_any()
    else:
        finished = [job.folder for job in jobs if is_finished(job, out / "runs")]
        keep_missing(out, sorted(finished))
        judge.ended |= {*finished}
        judge.known |= figures_of(out)
        judge.judge()
        runner.run(jobs, out / "runs", judge.hear)
    judge.judge()
    outcomes = judge.outcomes
    whole = not records and all(name in of_seed for of_seed in outcomes.values() for name in system.pictured)
    pictures = system.pictures(outcomes, out / "plots") if system.pictures and whole else []
    judge.write(pictures)
    return Reproduction(judge.in_order, tuple(pictures))


def _claim_by_claim(plans: Mapping[int, Plan], wanted: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of one claim with all seeds before those of the next: who stops early has claims, and no halves."""
    jobs: dict[str, Job] = {}
    for variants in wanted:
        for seed, plan in plans.items():
            for job in below(f"seed-{seed}", plan.needed(variants)):
                jobs.setdefault(job.folder, job)
    return list(jobs.values())


def _open(out: Path, what: dict[str, str], resume: bool) -> None:
    """A new folder, or with `resume` one that holds the same system at the same scale."""
    mark = out / "reproduce.json"
    if not resume:
        if out.exists() and any(out.iterdir()):
            raise ConfigError(
                f"{out}: the folder is not empty; resume it (--resume, in Python resume=True), or choose another folder"
            )
        write_text(mark, json.dumps(what) + "\n")
        return
    if not mark.is_file():
        raise ConfigError(f"{out}: there is nothing to resume here; start without resuming")
    try:
        found = json.loads(mark.read_text())
        begun = f"{found['system']} at the {found['scale']} scale"
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{mark}: this file is damaged ({error!r}); start again elsewhere") from error
    if found != what:
        raise ConfigError(f"{out}: this is {begun}, not {what['system']} at {what['scale']}; choose another folder")


def _warn(experiments: Sequence[Experiment], notify: Callable[[str], None]) -> None:
    """What leaves clients in these experiments, each kind of it once."""
    stages = [stage for experiment in experiments for stage in experiment.recipe]
    for text in dict.fromkeys(text for stage in stages if (text := warning(stage.algorithm))):
        notify(text)
