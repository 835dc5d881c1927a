"""From the name of a system to verdicts on its claims."""

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
from personae.reproduce.findings import Finding, find
from personae.reproduce.pages import write_findings
from personae.reproduce.plan import Plan
from personae.reproduce.quantities import Outcome, Outcomes
from personae.reproduce.records import Records, keep_figures, keep_missing, keep_run
from personae.reproduce.runner import Runner, below
from personae.reproduce.systems import SYSTEMS
from personae.words import counted

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
    """The claims named, in the order of the paper; all of them where none is."""
    known = {claim.id: claim for claim in system.claims}
    for wanted in ids:
        if wanted not in known:
            raise ConfigError(f"{system.name} has no claim {wanted!r}{nearest(wanted, known)}")
    return tuple(claim for claim in system.claims if not ids or claim.id in ids)


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
    resume: bool = False,
    records: Sequence[Path] = (),
    runner: Runner | None = None,
    notify: Callable[[str], None] = unheard,
) -> Reproduction:
    """Run what the claims need, once for each seed, in `out/runs`; then judge them and write it down in `out`.

    With `records`, files that were written elsewhere, nothing is run: claims are judged whose runs are all in them.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: there must be one at least, and two for a verdict")
    runner = runner or Runner()
    chosen = choose_claims(system, claims)
    experiments = variants_of(system, scale)
    # Pictures tell of the whole paper: who asks for some claims does not wait for them, but gets what can be drawn.
    awaited = system.pictured if chosen == system.claims else ()
    needed = dict.fromkeys((*(variant for claim in chosen for variant in claim.variants), *awaited))
    _open(out, {"system": system.name, "scale": scale}, resume)
    _warn([experiments[name] for name in needed], notify)

    jobs, folders = [], {}
    for seed in range(seeds):
        plan = Plan.of({name: each.model_copy(update={"seed": seed}) for name, each in experiments.items()})
        jobs += below(f"seed-{seed}", plan.needed(needed))
        folders[seed] = {name: f"seed-{seed}/{plan.folders[name]}" for name in needed}
    known: dict[tuple[int, str], float] = {}
    if records:
        found = Records.read(records)
        here = {job.folder for job in jobs if found.unpack(job.folder, job.experiment, out / "runs")}
        failed, known = found.failed, found.figures
        chosen = _judgeable(chosen, folders, here | {*failed}, notify)
    else:
        failed = runner.run(jobs, out / "runs", lambda folder, problem: keep_run(out, folder, problem))
        here = {job.folder for job in jobs}
        keep_missing(out, sorted(here - {*failed}))

    outcomes: dict[int, Outcomes] = {
        seed: {
            name: Outcome(
                experiments[name].model_copy(update={"seed": seed}), out / "runs" / folder, runner.execution.cache
            )
            for name, folder in of_seed.items()
            if folder in here and folder not in failed
        }
        for seed, of_seed in folders.items()
    }
    findings = tuple(find(claim, outcomes, known) for claim in chosen)
    about = {"system": system.name, "paper": system.paper, "scale": scale, "seeds": list(range(seeds))}
    whole = not records and all(name in of_seed for of_seed in outcomes.values() for name in system.pictured)
    pictures = system.pictures(outcomes, out / "plots") if system.pictures and whole else []
    if not records:
        keep_figures(out, known)
    write_findings(findings, about, out, pictures)
    return Reproduction(findings, tuple(pictures))


def _judgeable(
    claims: Sequence[Claim],
    folders: Mapping[int, Mapping[str, str]],
    ended: AbstractSet[str],
    notify: Callable[[str], None],
) -> tuple[Claim, ...]:
    """The claims whose runs have all ended, with every seed."""
    found = []
    for claim in claims:
        missing = sorted({of_seed[name] for of_seed in folders.values() for name in claim.variants} - ended)
        if missing:
            notify(f"{claim.id} is left out: {counted(len(missing), 'run')} not in the records, such as {missing[0]}")
        else:
            found.append(claim)
    if not found:
        raise ConfigError("the records have not all runs of any claim with these seeds; ask for fewer --seeds")
    return tuple(found)


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
        raise DataError(f"{mark}: this file is damaged ({error!r}); start anew elsewhere") from error
    if found != what:
        raise ConfigError(f"{out}: this is {begun}, not {what['system']} at {what['scale']}; choose another folder")


def _warn(experiments: Sequence[Experiment], notify: Callable[[str], None]) -> None:
    """What leaves clients in these experiments, each kind of it once."""
    stages = [stage for experiment in experiments for stage in experiment.recipe]
    for text in dict.fromkeys(text for stage in stages if (text := warning(stage.algorithm))):
        notify(text)
