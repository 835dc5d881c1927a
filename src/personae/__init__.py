"""Federated face recognition: train one model together, keep a personal one each, share no faces."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from personae.api import *  # noqa: F403

__all__ = [  # noqa: F405 - see `__getattr__`
    "ALGORITHMS",
    "DAN",
    "DANN",
    "DBSCAN",
    "HFMAML",
    "Adapt",
    "Aggregation",
    "Algorithm",
    "Aliases",
    "Augmentation",
    "Backbone",
    "Benchmark",
    "Broadcast",
    "CFinch",
    "Carry",
    "Central",
    "ClassEmbeddings",
    "Client",
    "ClientHost",
    "ClientInfo",
    "Cluster",
    "ConfigError",
    "Count",
    "DataError",
    "Diverged",
    "Embedder",
    "Engine",
    "Evaluation",
    "Experiment",
    "FaceSet",
    "FedAvg",
    "FedFR",
    "FedFace",
    "FedGC",
    "FedPE",
    "Federation",
    "Finch",
    "Firewall",
    "Gallery",
    "Gradient",
    "HFMAMLGlobal",
    "Interrupted",
    "KMeans",
    "LocalSGD",
    "LocalState",
    "Margin",
    "Match",
    "Message",
    "MetaSGD",
    "ModelState",
    "ModelWithoutBatchNorm",
    "ModelWithoutStatistics",
    "Network",
    "Nothing",
    "Occasion",
    "Partition",
    "PartitionPlan",
    "PersonaeError",
    "Pretrain",
    "PrivateStore",
    "PublicEmbeddings",
    "QFedAvg",
    "QuorumLost",
    "Recipe",
    "Recogniser",
    "Reply",
    "RunResult",
    "Samples",
    "Scalars",
    "Selection",
    "Server",
    "ServerState",
    "Stage",
    "StopRun",
    "Threshold",
    "Transport",
    "Tune",
    "Unsupervised",
    "Workbench",
    "embed",
    "enroll",
    "evaluate",
    "export_model",
    "load_experiment",
    "load_model",
    "load_weights",
    "local_transport",
    "open_faces",
    "open_gallery",
    "read_face",
    "read_person",
    "run_experiment",
    "synthetic_faces",
    "threshold_at",
]


def __getattr__(name: str) -> Any:
    """What is public is imported when it is first asked for: it takes seconds, and the command has to listen before."""
    if name in __all__:
        from personae import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For whoever completes names."""
    return sorted(__all__)
