"""The algorithms by name: one file each, both halves on one page."""

from personae.algorithms.adapt import Adapt
from personae.algorithms.central import Central
from personae.algorithms.fedavg import FedAvg
from personae.algorithms.fedface import FedFace
from personae.algorithms.fedfr import FedFR
from personae.algorithms.fedgc import FedGC
from personae.algorithms.fedpe import FedPE
from personae.algorithms.hf_maml import HFMAML, HFMAMLGlobal
from personae.algorithms.pretrain import Pretrain
from personae.algorithms.q_fedavg import QFedAvg
from personae.algorithms.tune import Tune
from personae.core.algorithm import AnyAlgorithm

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {
    kind.name: kind
    for kind in (Pretrain, FedPE, FedAvg, QFedAvg, FedGC, FedFace, FedFR, HFMAML, HFMAMLGlobal, Tune, Adapt, Central)
}

__all__ = [
    "ALGORITHMS",
    "HFMAML",
    "Adapt",
    "Central",
    "FedAvg",
    "FedFR",
    "FedFace",
    "FedGC",
    "FedPE",
    "HFMAMLGlobal",
    "Pretrain",
    "QFedAvg",
    "Tune",
]
