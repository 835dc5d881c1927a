"""What `import personae` promises; a change here is a change for users."""

import personae

NAMES = """
ALGORITHMS Algorithm Aliases Augmentation Backbone Benchmark Broadcast Central ClassEmbeddings Client ClientHost
ClientInfo ConfigError Count DataError Diverged Embedder Engine Evaluation Experiment FaceSet FedFace FedGC FedPE
Federation Firewall Interrupted LocalSGD LocalState Margin Message ModelState Network Nothing Partition PartitionPlan
PersonaeError Pretrain PrivateStore PublicEmbeddings QuorumLost Recipe Reply Samples Scalars Server ServerState Stage
Transport embed evaluate load_experiment load_weights local_transport open_faces run_experiment synthetic_faces
"""


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(personae.__all__) == sorted(NAMES.split())
    assert all(getattr(personae, name) is not None for name in personae.__all__)


def test_exit_codes_are_fixed() -> None:
    kinds = (personae.ConfigError, personae.DataError, personae.Diverged, personae.Interrupted, personae.QuorumLost)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4, 5, 6]
