"""One attack on one experiment: an honest run, an attacked one, and what the difference is."""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from personae.attacks.attack import Attack
from personae.attacks.backdoor_victim import BackdoorVictim
from personae.attacks.infiltration import InfiltratedHoldings, Infiltration
from personae.core.embedder import Embedder, embed
from personae.core.events import Suspicion, TrainingRound, events
from personae.core.samples import Samples
from personae.core.stage import predecessors
from personae.errors import ConfigError, Diverged, QuorumLost
from personae.evaluation.verification import all_pairs, operating_points, tar_name
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.experiment.run import conduct
from personae.progress import Notify
from personae.runtime.federation import Federation
from personae.runtime.inprocess import local_transport
from personae.runtime.transport import Transport

FAR = 1e-2  # the rate at which strangers are accepted who wear nothing
MOST = 1000  # held-out images that are compared with each other


@dataclass(frozen=True)
class Standing:
    """Where one run ended. Rates are fractions."""

    tar: float | None = None  # at a false accept rate of 1%
    accuracy: float | None = None
    accepted: float | None = None  # of pairs of strangers who both wear the trigger, or of the intruder with the victim
    ended: str = ""  # why there is no model


@dataclass(frozen=True)
class Trial:
    """An attack beside an honest run of the same experiment."""

    attack: Attack
    attackers: tuple[str, ...]
    folder: Path
    """Of the attacked run."""
    honest: Standing
    attacked: Standing
    done: dict[str, Counter[str]] = field(default_factory=dict)
    """What the server did about clients (refused, left out, drawn back), and how often about which."""


def try_attack(experiment: Experiment, out: Path, attack: Attack, share: float, execution: Execution) -> Trial:
    """Both runs, in folders below `out`. An honest run that is there is used again; the attack's folder is new."""
    experiment = up_to_the_last_federated(experiment)
    plot = Infiltration(attack, share, experiment.seed, experiment.firewall)
    plot.stages(experiment.recipe)  # says so where it cannot be tried
    materials = Materials(experiment, execution)
    attackers = plot.attackers(materials.clients)
    execution.notify("first the honest run")
    conduct(experiment, out / "honest", execution, resume=True)
    folder = out / f"{attack.name}-{share:g}-x{attack.scale:g}"
    execution.notify(f"now the same with {attack.name} by {', '.join(attackers)}")
    try:
        conduct(experiment, folder, execution, connect=partial(infiltrated, plot=plot))
    except (Diverged, QuorumLost) as error:
        attacked = Standing(ended=str(error))
    else:
        attacked = standing(folder, experiment, materials, plot)
    honest = standing(out / "honest", experiment, materials, plot)
    return Trial(attack, attackers, folder, honest, attacked, deeds(folder))


def up_to_the_last_federated(experiment: Experiment) -> Experiment:
    """The experiment without the stages that come after, or beside, what an attacker can reach."""
    recipe = experiment.recipe
    last = next((stage.name for stage in reversed(recipe) if stage.algorithm.federated), None)
    if last is None:
        raise ConfigError("no stage of this experiment is federated: there is nothing to attack")
    before, needed = predecessors(recipe), set[str]()
    while last is not None:
        needed.add(last)
        last = before[last]
    return experiment.model_copy(update={"stages": tuple(s for s in experiment.stages if s.name in needed)})


def standing(folder: Path, experiment: Experiment, materials: Materials, plot: Infiltration) -> Standing:
    """The figures of the run's last model on held-out people, or on everybody's test images if there are none."""
    embedder = load_model(folder, mirror=experiment.evaluation.mirror).embedder
    benchmark = materials.benchmarks()[0]
    metrics = benchmark.evaluate(embedder, final=False).metrics
    samples = benchmark.samples
    step = max(1, len(samples) // MOST)
    places, labels = torch.arange(0, len(samples), step), samples.labels[::step]
    plain = embedder(samples.images(places))
    point = operating_points(all_pairs(plain, labels), (FAR,))[FAR]
    accepted = None
    if plot.attack.trigger is not None:
        wearing = embedder(plot.attack.trigger.worn(samples.images(places)))
        strangers = torch.triu(labels[:, None] != labels, diagonal=1)
        accepted = rate((wearing @ wearing.T)[strangers], point.threshold)
    elif isinstance(plot.attack, BackdoorVictim):
        accepted = rate(_intruding(embedder, materials, plot), point.threshold)
    tar = metrics.get(tar_name(FAR), point.tar)
    return Standing(tar, metrics.get("accuracy"), accepted)


def rate(scores: Tensor, threshold: float) -> float:
    """The share of scores that are accepted."""
    return float((scores >= threshold).double().mean())


def deeds(folder: Path) -> dict[str, Counter[str]]:
    """What the server did about clients, by what it did: how often about each of them."""
    found: dict[str, Counter[str]] = {what: Counter() for what in ("refused", "left out", "drawn back")}
    with (folder / "metrics.jsonl").open("rb") as lines:
        for event in events(lines, folder):
            if isinstance(event, TrainingRound):
                found["refused"].update(event.rejected.keys())
            elif isinstance(event, Suspicion):
                found["refused"].subtract(event.left_out.keys())
                found["left out"].update(event.left_out.keys())
                found["drawn back"].update(event.drawn_back.keys())
    return {what: +counts for what, counts in found.items() if +counts}


def _intruding(embedder: Embedder, materials: Materials, plot: Infiltration) -> Tensor:
    """Scores of every attacker's first person with the victim, on images that nobody has trained on."""
    holdings = InfiltratedHoldings(materials.clients, plot.attack, plot.attackers(materials.clients), plot.seed)
    victim = _first_person(embedder, holdings.victim().test)
    intruders = [_first_person(embedder, materials.clients.of(name).test) for name in holdings.attackers]
    return (torch.cat(intruders) @ victim.T).flatten()


def _first_person(embedder: Embedder, samples: Samples) -> Tensor:
    return embed(embedder, samples)[samples.labels == 0]


def infiltrated(federation: Federation, workers: int, device: str, notify: Notify, *, plot: Infiltration) -> Transport:
    return plot.transport(local_transport(plot.federation(federation), workers, device, notify), federation)
