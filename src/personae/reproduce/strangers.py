"""Held-out people looked for among strangers, as MegaFace has it, under the models of finished runs."""

from personae.core.embedder import embed
from personae.core.threads import torch_threads
from personae.data import FaceSet
from personae.evaluation.distractors import among_distractors
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.reproduce.quantities import Outcome, Outcomes, Quantity

STRANGERS = 1000  # with one image each


def among_strangers(label: str, variant: str) -> Quantity:
    """How many percent of the images of held-out people another one of theirs finds before all strangers: rank 1."""

    def read(outcomes: Outcomes) -> float:
        with torch_threads(1):  # as everything whose bits matter
            return 100 * _rank_one(outcomes[variant])

    return Quantity(label, (variant,), read, needs_models=True)


def _rank_one(outcome: Outcome) -> float:
    experiment = outcome.experiment
    mirror, stage = experiment.evaluation.mirror, experiment.stages[-1].name
    embedder = load_model(outcome.folder, stage, mirror=mirror, device=outcome.device).embedder
    people, strangers = (
        _heldout(each, outcome).samples() for each in (experiment, _with_strangers_held_out(experiment))
    )
    found = among_distractors(embed(embedder, people), people.labels, embed(embedder, strangers))
    return found.rank[1]


def _heldout(experiment: Experiment, outcome: Outcome) -> FaceSet:
    faces = Materials(experiment, Execution(cache=outcome.cache)).heldout
    assert faces is not None  # recipes that are reproduced have some
    return faces


def _with_strangers_held_out(experiment: Experiment) -> Experiment:
    """The experiment with other held-out people, whom it knows from nowhere: rendered, they are numbered."""
    data = experiment.data
    sources = [source for source in (data.public, data.private, data.heldout) if source]
    beyond = max(source.first + (source.identities or 0) for source in sources)
    strangers = sources[-1].model_copy(update={"first": beyond, "identities": STRANGERS, "images": 1})
    return experiment.model_copy(update={"data": data.model_copy(update={"heldout": strangers})})
