"""Rules of how the vectors of a round become one, by name: one file each.

The mean is one pass in the memory of one model. The others look at all vectors at once, block by block, and take
every vector for the same, whatever its weight: a client may say any number of samples.
"""

from personae.aggregation.bucketing import Bucketing
from personae.aggregation.clip import Clip
from personae.aggregation.geometric_median import GeometricMedian
from personae.aggregation.grouped import Grouped
from personae.aggregation.median import Median
from personae.aggregation.multi_krum import MultiKrum
from personae.aggregation.prepared import Preparation, Prepared
from personae.aggregation.trimmed_mean import TrimmedMean
from personae.core.aggregation import Aggregation, Mean
from personae.core.registry import Registry

AGGREGATIONS: Registry[Aggregation] = Registry(
    "personae.aggregations", Aggregation, (Mean, Median, TrimmedMean, GeometricMedian, MultiKrum, Grouped)
)
PREPARATIONS: dict[str, type[Preparation]] = {kind.name: kind for kind in (Clip, Bucketing)}

__all__ = [
    "AGGREGATIONS",
    "PREPARATIONS",
    "Bucketing",
    "Clip",
    "GeometricMedian",
    "Grouped",
    "Mean",
    "Median",
    "MultiKrum",
    "Prepared",
    "TrimmedMean",
]
