"""Federated face recognition: train one model together, keep a personal one each, share no faces."""

from personae.algorithms import ALGORITHMS, Central, FedFace, FedGC, FedPE, Pretrain
from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.message import Broadcast, LocalState, Message, Nothing, ServerState
from personae.core.payload import Aliases, ClassEmbeddings, Count, ModelState, PublicEmbeddings, Scalars
from personae.core.samples import Samples
from personae.core.stage import Recipe, Stage
from personae.data import FaceSet, Partition, PartitionPlan, open_faces, synthetic_faces
from personae.errors import ConfigError, DataError, Diverged, Interrupted, PersonaeError, QuorumLost
from personae.evaluation.protocols import Benchmark
from personae.evaluation.suite import Evaluation, evaluate
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.run import run_experiment
from personae.models import Network, load_weights
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.margins import Margin
from personae.runtime.engine import Engine
from personae.runtime.federation import Federation
from personae.runtime.firewall import Firewall
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import local_transport
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Transport

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Aliases",
    "Augmentation",
    "Backbone",
    "Benchmark",
    "Broadcast",
    "Central",
    "ClassEmbeddings",
    "Client",
    "ClientHost",
    "ClientInfo",
    "ConfigError",
    "Count",
    "DataError",
    "Diverged",
    "Embedder",
    "Engine",
    "Evaluation",
    "Experiment",
    "FaceSet",
    "FedFace",
    "FedGC",
    "FedPE",
    "Federation",
    "Firewall",
    "Interrupted",
    "LocalSGD",
    "LocalState",
    "Margin",
    "Message",
    "ModelState",
    "Network",
    "Nothing",
    "Partition",
    "PartitionPlan",
    "PersonaeError",
    "Pretrain",
    "PrivateStore",
    "PublicEmbeddings",
    "QuorumLost",
    "Recipe",
    "Reply",
    "Samples",
    "Scalars",
    "Server",
    "ServerState",
    "Stage",
    "Transport",
    "embed",
    "evaluate",
    "load_experiment",
    "load_weights",
    "local_transport",
    "open_faces",
    "run_experiment",
    "synthetic_faces",
]
