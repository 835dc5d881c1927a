# ruff: noqa: F401 - `personae/__init__.py` lists the names and hands them out
"""Where everything comes from that `import personae` offers."""

from personae.algorithms import (
    ALGORITHMS,
    DAN,
    DANN,
    HFMAML,
    Adapt,
    Central,
    Cluster,
    FedAvg,
    FedFace,
    FedFR,
    FedGC,
    FedPE,
    HFMAMLGlobal,
    Local,
    Pretrain,
    QFedAvg,
    Tune,
    Unsupervised,
)
from personae.core.aggregation import Aggregation, Workbench
from personae.core.algorithm import Algorithm, Client, ClientInfo, Reply, Server
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.layer import Layer, layered
from personae.core.message import Broadcast, LocalState, Message, Nothing, ServerState
from personae.core.payload import (
    Aliases,
    ClassEmbeddings,
    Count,
    Gradient,
    ModelState,
    ModelWithoutBatchNorm,
    ModelWithoutStatistics,
    PublicEmbeddings,
    Scalars,
)
from personae.core.samples import Samples
from personae.core.selection import Occasion, Selection
from personae.core.stage import Recipe, Stage
from personae.data import FaceSet, Partition, PartitionPlan, open_faces, synthetic_faces
from personae.errors import ConfigError, DataError, Diverged, Interrupted, PersonaeError, QuorumLost
from personae.evaluation.protocols import Benchmark, BenchmarkResult
from personae.evaluation.suite import Evaluation, evaluate
from personae.experiment.benchmarks import BenchmarkReader
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.model import load_model
from personae.experiment.result import RunResult, StopRun
from personae.experiment.run import run_experiment
from personae.layers import Carry, Clip
from personae.models import Network, load_weights
from personae.parts.clustering import DBSCAN, HDBSCAN, CFinch, Finch, KMeans
from personae.parts.images import Augmentation
from personae.parts.local_sgd import LocalSGD
from personae.parts.local_step import LocalStep
from personae.parts.margins import Margin
from personae.parts.meta import MetaSGD
from personae.parts.terms import EmbeddingRegularisation, Proximal, Term
from personae.recognition.export import export_model
from personae.recognition.faces import read_face, read_person
from personae.recognition.gallery import Gallery
from personae.recognition.recogniser import Match, Recogniser, enroll, open_gallery
from personae.recognition.threshold import Threshold, threshold_at
from personae.runtime.engine import Engine
from personae.runtime.federation import Federation
from personae.runtime.firewall import Firewall
from personae.runtime.host import ClientHost
from personae.runtime.inprocess import local_transport
from personae.runtime.store import PrivateStore
from personae.runtime.transport import Transport
