"""The algorithms by name: one file each, both halves on one page."""

from personae.algorithms.adapt import DAN, DANN
from personae.algorithms.central import Central
from personae.algorithms.cluster import Cluster
from personae.algorithms.fedface import FedFace
from personae.algorithms.fedgc import FedGC
from personae.algorithms.fedpe import FedPE
from personae.algorithms.pretrain import Pretrain
from personae.algorithms.unsupervised import Unsupervised
from personae.core.algorithm import AnyAlgorithm

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {
    kind.name: kind for kind in (Pretrain, FedPE, FedGC, FedFace, Cluster, Unsupervised, Central, DAN, DANN)
}

__all__ = [
    "ALGORITHMS",
    "DAN",
    "DANN",
    "Central",
    "Cluster",
    "FedFace",
    "FedGC",
    "FedPE",
    "Pretrain",
    "Unsupervised",
]
