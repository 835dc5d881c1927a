"""The algorithms by name: one file each, both halves on one page."""

from personae.algorithms.adapt import Adapt
from personae.algorithms.central import Central
from personae.algorithms.fedface import FedFace
from personae.algorithms.fedfr import FedFR
from personae.algorithms.fedgc import FedGC
from personae.algorithms.fedpe import FedPE
from personae.algorithms.pretrain import Pretrain
from personae.core.algorithm import AnyAlgorithm

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {
    kind.name: kind for kind in (Pretrain, FedPE, FedGC, FedFace, FedFR, Adapt, Central)
}

__all__ = ["ALGORITHMS", "Adapt", "Central", "FedFR", "FedFace", "FedGC", "FedPE", "Pretrain"]
