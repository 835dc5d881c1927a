"""An experiment that tries several methods on your own faces, all from the same start."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.core.strong_start import STRONG_START
from personae.deferred import importing
from personae.errors import ConfigError
from personae.experiment.execution import Execution
from personae.experiment.held_out import with_people_held_out

if TYPE_CHECKING:
    from personae.experiment.config import Experiment
    from personae.models import Network

Table = dict[str, Any]
COSFACE = {"kind": "cosface", "scale": 24.0, "margin": 0.2}


@dataclass(frozen=True)
class Beginning:
    """What all methods start from, and the rate of learning that suits it."""

    lr: float
    rounds: int
    trained: bool


SCRATCH, PRETRAINED, GIVEN = (
    Beginning(0.1, 20, False),
    Beginning(0.03, 6, True),
    Beginning(STRONG_START["training"]["lr"], 6, True),
)


def methods_experiment(
    faces: Path,
    methods: Sequence[str],
    execution: Execution,
    *,
    public: Path | None = None,
    weights: Path | None = None,
    network: "Network | None" = None,
    clients: int = 5,
    rounds: int | None = None,
) -> "tuple[Experiment, list[str]]":
    """The experiment, and a line for each method that has to be left out.

    Every client also trains alone, which is what the methods are compared with. A fifth of the people are held out.
    """
    with importing():
        from personae.experiment.config import parse_experiment
        from personae.experiment.materials import Materials
        from personae.models import Network, load_weights

    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigError(f"--methods {','.join(unknown)}: there are {', '.join(METHODS)}")
    if weights and network is None:
        network = load_weights(weights)[0]  # they say by themselves which network they are of
    start = GIVEN if weights else PRETRAINED if public else SCRATCH
    left_out = []
    stages: list[Table] = _pretraining() if public else []
    after = stages[-1]["name"] if stages else ""
    for name in ("local", *methods):
        if name in NEED_PUBLIC and not public:
            left_out.append(f"{name} is left out: it trains with public faces; give a folder of them with --public")
        elif name in NEED_TRAINED and not start.trained:
            left_out.append(f"{name} is left out: it needs a trained model to begin with; give --public or --weights")
        elif name not in {stage["name"] for stage in stages}:
            first, *others = METHODS[name](start, rounds or start.rounds)
            stages += [{**first, "after": after}, *others]
    if len(left_out) == len(methods):
        raise ConfigError(" ".join(f"{line}." for line in left_out))
    raw: Table = {
        "name": f"methods on {faces.name}",
        "network": dataclasses.asdict(network or Network()),
        "data": {"private": {"source": str(faces), "min_images": 2}},
        "partition": {"by": "equal", "clients": clients},
        "evaluation": {"client_fars": [0.1], "personalized": {"fars": [0.01], "fpirs": [0.1]}},
        "stages": stages,
    }
    raw["partition"] |= {"train": 0.7, "val": 0.0, "test": 0.3}
    raw |= {"weights": str(weights)} if weights else {}
    raw["data"] |= {"public": {"source": str(public)}} if public else {}
    counts = Materials(parse_experiment(raw, str(faces)), execution).private.images_per_identity
    return parse_experiment(with_people_held_out(raw, counts), str(faces)), left_out


def _pretraining() -> list[Table]:
    training = {"lr": 0.2, "batch_size": 64, "epochs": 1, "schedule": "cosine", "warmup": 0.15}
    algorithm = {"name": "pretrain", "margin": COSFACE, "training": training}
    return [{"name": "start", "label": "pre-trained", "rounds": 16, "algorithm": algorithm}]


def _margin(name: str, label: str, **options: Any) -> Any:
    """A method whose clients train with a margin loss, the same for all, at a rate that falls over its rounds."""

    def stages(start: Beginning, rounds: int) -> list[Table]:
        training = {"lr": start.lr, "batch_size": 32, "epochs": 2, "schedule": "linear"}
        training |= {} if name == "central" else {"span": "stage"}
        head_init = "mean" if start.trained else "random"  # random features have no means worth beginning with
        algorithm = {"name": name, "margin": COSFACE, "head_init": head_init, "training": training, **options}
        return [{"name": name, "label": label, "rounds": rounds, "algorithm": algorithm}]

    return stages


def _fedfr(start: Beginning, rounds: int) -> list[Table]:
    training = {"lr": start.lr / 3, "batch_size": 32, "epochs": 3, "schedule": "linear"}
    algorithm = {
        "name": "fedfr",
        "margin": COSFACE,
        "one_vs_all": {"scale": 24.0, "margin": 0.2},
        "sampling": {"threshold": 0.7},
        "batch_norm": "eval",
        "training": training,
    }
    return [{"name": "fedfr", "label": "FedFR", "rounds": max(1, rounds // 2), "algorithm": algorithm}]


def _hf_maml(start: Beginning, rounds: int) -> list[Table]:
    meta = {"inner_lr": 0.01, "lr": start.lr, "momentum": 0.9, "delta": 0.001, "batch_size": 32, "iterations": 5}
    tuning = {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "iterations": 5}
    training = {"name": "hf_maml", "margin": COSFACE, "head_init": "mean", "meta": meta}
    tune = {"name": "tune", "margin": COSFACE, "batch_norm": "eval", "training": tuning}
    return [
        {"name": "hf_maml", "label": "HF-MAML", "rounds": rounds, "algorithm": training},
        {"name": "hf_maml-tuned", "label": "HF-MAML, tuned", "algorithm": tune},
    ]


def _unsupervised(start: Beginning, rounds: int) -> list[Table]:
    found = {"name": "cluster"}
    training = {"lr": start.lr / 2, "batch_size": 32, "iterations": 20}
    adapted = {"name": "unsupervised", "strength": 0.0, "margin": COSFACE, "training": training}
    return [
        {"name": "clusters", "label": "clusters found", "algorithm": found},
        {"name": "unsupervised", "label": "unsupervised FedFR", "rounds": rounds, "algorithm": adapted},
    ]


METHODS = {
    "local": _margin("local", "each client alone"),
    "fedpe": _margin("fedpe", "FedPE"),
    "fedgc": _margin("fedgc", "FedGC", strength=0.1),  # the paper's 20 is for 10,000 people
    "fedface": _margin("fedface", "FedFace", strength=0.25),  # the paper's 10 is for clients of one person
    "fedfr": _fedfr,
    "hf_maml": _hf_maml,
    "unsupervised": _unsupervised,
    "central": _margin("central", "all faces in one place"),
}
USUAL = ("fedpe", "fedgc", "fedface", "fedfr", "hf_maml", "unsupervised")
NEED_PUBLIC = {"fedfr"}
NEED_TRAINED = {"unsupervised"}
