"""Faces on disk or rendered, the index of faces, and their division among clients."""

from typing import TYPE_CHECKING

from personae.deferred import deferred

if TYPE_CHECKING:
    from personae.data.decoded import open_faces, pack_faces
    from personae.data.faces import FaceSet
    from personae.data.joined import join_faces
    from personae.data.pairsets import PairSet, read_group_pairs, read_pairs
    from personae.data.partition import Partition, PartitionPlan, Split
    from personae.data.pixels import default_cache
    from personae.data.rendered import synthetic_faces
    from personae.data.samples import FaceSamples

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

__getattr__ = deferred(
    __name__,
    decoded="open_faces pack_faces",
    faces="FaceSet",
    joined="join_faces",
    pairsets="PairSet read_group_pairs read_pairs",
    partition="Partition PartitionPlan Split",
    pixels="default_cache",
    rendered="synthetic_faces",
    samples="FaceSamples",
)
