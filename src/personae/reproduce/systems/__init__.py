"""The systems whose claims can be put to the test: one file each, and a recipe for each scale."""

from personae.reproduce.claims import System
from personae.reproduce.systems.fedface import FEDFACE
from personae.reproduce.systems.fedgc import FEDGC

SYSTEMS: dict[str, System] = {system.name: system for system in (FEDGC, FEDFACE)}
