"""Faces on disk or rendered, the index of faces, and their division among clients."""

from personae.data.decoded import open_faces, pack_faces
from personae.data.faces import FaceSamples, FaceSet
from personae.data.joined import join_faces
from personae.data.pairsets import PairSet, read_group_pairs, read_pairs
from personae.data.partition import Partition, PartitionPlan, Split
from personae.data.pixels import default_cache
from personae.data.rendered import synthetic_faces

__all__ = [
    "FaceSamples",
    "FaceSet",
    "PairSet",
    "Partition",
    "PartitionPlan",
    "Split",
    "default_cache",
    "join_faces",
    "open_faces",
    "pack_faces",
    "read_group_pairs",
    "read_pairs",
    "synthetic_faces",
]
