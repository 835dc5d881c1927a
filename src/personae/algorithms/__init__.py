"""The algorithms by name: one file each, both halves on one page."""

from personae.algorithms.adapt import Adapt, Tune
from personae.algorithms.central import Central
from personae.algorithms.cluster import Cluster
from personae.algorithms.domain_adaptation import DAN, DANN
from personae.algorithms.fedavg import FedAvg
from personae.algorithms.fedface import FedFace
from personae.algorithms.fedfr import FedFR
from personae.algorithms.fedgc import FedGC
from personae.algorithms.fedpe import FedPE
from personae.algorithms.hf_maml import HFMAML, HFMAMLGlobal
from personae.algorithms.local import Local
from personae.algorithms.oracle import Oracle
from personae.algorithms.pretrain import Pretrain
from personae.algorithms.q_fedavg import QFedAvg
from personae.algorithms.unsupervised import Unsupervised
from personae.core.algorithm import Algorithm, AnyAlgorithm
from personae.core.registry import Registry

AVAILABLE: Registry[AnyAlgorithm] = Registry(
    "personae.algorithms",
    Algorithm,
    (
        Pretrain,
        FedPE,
        FedAvg,
        QFedAvg,
        FedGC,
        Oracle,
        FedFace,
        FedFR,
        HFMAML,
        HFMAMLGlobal,
        Tune,
        Adapt,
        Cluster,
        Unsupervised,
        Local,
        Central,
        DAN,
        DANN,
    ),
)
ALGORITHMS: dict[str, type[AnyAlgorithm]] = AVAILABLE.own

__all__ = [
    "ALGORITHMS",
    "AVAILABLE",
    "DAN",
    "DANN",
    "HFMAML",
    "Adapt",
    "Central",
    "Cluster",
    "FedAvg",
    "FedFR",
    "FedFace",
    "FedGC",
    "FedPE",
    "HFMAMLGlobal",
    "Local",
    "Oracle",
    "Pretrain",
    "QFedAvg",
    "Tune",
    "Unsupervised",
]
