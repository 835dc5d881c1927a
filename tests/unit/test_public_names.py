"""What `import personae` promises; a change here is a change for users."""

import personae

NAMES = """
ALGORITHMS Adapt Aggregation Algorithm Aliases Augmentation Backbone Benchmark BenchmarkReader BenchmarkResult Broadcast
CFinch Carry Central ClassEmbeddings Client ClientHost ClientInfo Clip Cluster ConfigError Count DAN DANN DBSCAN
DataError Diverged Embedder EmbeddingRegularisation Engine Evaluation Experiment FaceSet FedAvg FedFR FedFace FedGC
FedPE Federation Finch Firewall Gallery Gradient HDBSCAN HFMAML HFMAMLGlobal Interrupted KMeans Layer Local LocalSGD
LocalState LocalStep Margin Match Message MetaSGD ModelState ModelWithoutBatchNorm ModelWithoutStatistics Network
Nothing Occasion Partition PartitionPlan PersonaeError Pretrain PrivateStore Proximal PublicEmbeddings QFedAvg
QuorumLost Recipe Recogniser Reply RunResult Samples Scalars Selection Server ServerState Stage StopRun Term Threshold
Transport Tune Unsupervised Workbench embed enroll evaluate export_model layered load_experiment load_model load_weights
local_transport open_faces open_gallery read_face read_person run_experiment synthetic_faces threshold_at
"""


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(personae.__all__) == sorted(NAMES.split())
    assert all(getattr(personae, name) is not None for name in personae.__all__)


def test_exit_codes_are_fixed() -> None:
    kinds = (personae.ConfigError, personae.DataError, personae.Diverged, personae.Interrupted, personae.QuorumLost)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4, 5, 6]
