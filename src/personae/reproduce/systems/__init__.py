"""The systems whose claims can be put to the test: one file each, and a recipe for each scale."""

from personae.reproduce.claims import System
from personae.reproduce.systems.fedface import FEDFACE
from personae.reproduce.systems.fedfr import FEDFR
from personae.reproduce.systems.fedgc import FEDGC
from personae.reproduce.systems.hf_maml import HF_MAML
from personae.reproduce.systems.unsupervised import UNSUPERVISED

SYSTEMS: dict[str, System] = {system.name: system for system in (FEDGC, FEDFACE, FEDFR, HF_MAML, UNSUPERVISED)}
