"""Source and targets: who takes part in a stage, who pools what, and what becomes of pseudo-labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from personae import PartitionPlan, synthetic_faces
from personae.algorithms import DAN, Central, Cluster, FedPE, Unsupervised
from personae.algorithms.cluster import Private as Pseudo
from personae.algorithms.unsupervised import Private
from personae.core.algorithm import Server
from personae.core.problem import Problem
from personae.core.stage import Stage, predecessors
from personae.data import Split
from personae.data.clients import PartitionedFaces
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.forecast import forecast
from personae.experiment.materials import Materials
from personae.experiment.run import run_experiment
from personae.parts.clustering import NOBODY, CFinch, Finch, KMeans, agreement, large_enough
from personae.parts.local_sgd import LocalSGD
from personae.parts.terms import Proximal
from personae.report.table import comparison, heading
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from personae.selection import Share
from toys import NAMES, Crowd, Rehearsal, Relay, quickly, random_faces, stage_of

LOOSE = CFinch(distance=1.4)


def kept(run: Rehearsal, client: str, stage: str, kind: type):
    return PrivateStore.of(run.folder / "private", client).load(stage, kind, run.federation.backbone().layout)


# ------------------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize(("side", "expected"), [("all", NAMES), ("source", NAMES[:1]), ("targets", NAMES[1:])])
def test_a_stage_asks_its_side_alone(tmp_path: Path, side: str, expected: tuple[str, ...]):
    run = Rehearsal(tmp_path, (stage_of(quickly(FedPE()), clients=side),), source="ann").run()
    assert [event["participants"] for event in run.notebook.rounds()] == [list(expected)] * 2
    assert set(run.notebook.books["metrics"][-1]["clients"]) == set(NAMES)  # everybody is evaluated all the same


def test_a_share_is_of_the_side(tmp_path: Path):
    stage = stage_of(quickly(FedPE()), clients="targets", selection=Share(share=0.67))
    run = Rehearsal(tmp_path, (stage,), source="zoe").run()
    for event in run.notebook.rounds():
        assert len(event["participants"]) == 2
        assert "zoe" not in event["participants"]


@pytest.mark.parametrize("side", ["source", "targets"])
def test_a_side_without_clients_is_refused_before_anything_runs(tmp_path: Path, side: str):
    first = stage_of(quickly(FedPE()))
    crowd = Crowd(clients=("ann",)) if side == "targets" else Crowd()
    run = Rehearsal(
        tmp_path,
        (first, stage_of(quickly(FedPE()), name="later", clients=side)),
        holdings=crowd,
        source="ann" if side == "targets" else None,
    )
    with pytest.raises(ConfigError, match=rf"stage later: clients = '{side}'.*by = \"domain\""):
        run.run()
    assert run.notebook.rounds() == []


def test_a_side_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"clients is 'sauce'; there are all, source, targets"):
        stage_of(FedPE(), clients="sauce")


def test_a_stage_may_begin_from_nothing(tmp_path: Path):
    one = stage_of(quickly(FedPE()), name="one", rounds=1)
    fresh = Stage(name="fresh", algorithm=one.algorithm, rounds=1, after="")
    assert predecessors((one, fresh)) == {"one": None, "fresh": None}
    run = Rehearsal(tmp_path, (one, fresh))
    transport = Relay(SameProcess(run.federation))
    run.run(transport)
    begun = [request.down.model.flat for request in transport.requests if request.task == "train"]
    assert torch.equal(begun[0], begun[-1])  # both from the initial weights


# ------------------------------------------------------------------------------------------------------------ pooling


class Watching(DAN):
    seen: list[Server] = []  # noqa: RUF012

    def start(self, previous, server):
        self.seen.append(server)
        return super().start(previous, server)


def test_faces_are_pooled_by_side_and_only_where_the_algorithm_says_so(tmp_path: Path):
    asked: list[tuple[str, ...]] = []
    run = Rehearsal(tmp_path, (stage_of(quickly(Central()), clients="targets", rounds=1),), source="eve")
    engine = run.engine()
    pool = engine.pooled
    object.__setattr__(engine, "pooled", lambda names: (asked.append(tuple(names)), pool(names))[1])
    engine.run()
    assert set(asked) == {("ann", "bob", "zoe")}

    Watching.seen.clear()
    run = Rehearsal(tmp_path / "dan", (stage_of(quickly(Watching()), rounds=1),), source="eve").run()
    server = Watching.seen[0]
    assert [client.name for client in server.clients if client.source] == ["eve"]
    assert server.domains is not None
    for side, clients in ((server.domains.source, 1), (server.domains.targets, 3)):
        assert torch.equal(side.pixels, random_faces(clients, 4, 4).pixels)  # what toys pool of so many clients
    with pytest.raises(ConfigError, match=r'with all clients, and with \[partition\] by = "domain"'):
        Rehearsal(tmp_path / "none", (stage_of(quickly(DAN()), rounds=1),)).run()
    with pytest.raises(ConfigError, match="with all clients"):
        Rehearsal(tmp_path / "side", (stage_of(quickly(DAN()), clients="targets"),), source="ann").run()


@pytest.fixture(scope="module")
def two_domains(faces_cache: Path):
    return synthetic_faces(identities=8, images=6, domain=("studio", "webcam"), size=32, cache=faces_cache)


def test_the_partition_knows_its_source(two_domains):
    partition = PartitionPlan(by="domain", source="studio", clients=2).apply(two_domains, seed=0)
    assert partition.source == "studio"
    assert partition.clients == ("studio", "webcam-000", "webcam-001")
    faces = PartitionedFaces(two_domains, partition)
    sides = [faces.pooled(Split.TRAIN, names) for names in (["studio"], ["webcam-000", "webcam-001"])]
    assert len(sides[0]) == len(faces.of("studio").train)
    assert len(sides[1]) == len(faces.pooled(Split.TRAIN)) - len(sides[0])
    assert {name.split("/")[0] for name in sides[1].identities} == {"webcam"}
    assert PartitionPlan(clients=2).apply(two_domains, seed=0).source is None


# ------------------------------------------------------------------------------------------------------- pseudo-labels


def test_targets_find_labels_and_the_source_keeps_its_own(tmp_path: Path):
    cluster = stage_of(Cluster(clustering=LOOSE, evaluated=True), rounds=1)
    run = Rehearsal(tmp_path, (cluster,), source="ann").run()
    assert kept(run, "ann", "cluster", Pseudo).labels.tolist() == []
    means = run.notebook.rounds()[0]["scalars"]
    found = {}
    for name in NAMES[1:]:
        labels, train = kept(run, name, "cluster", Pseudo).labels, Crowd().of(name).train
        assert len(labels) == len(train)
        found[name] = agreement(labels, train.labels)
    for figure in ("f_score", "precision", "recall", "nmi", "clustered"):
        expected = np.mean([getattr(each, figure) for each in found.values()])
        assert means[f"pseudo-labels/{figure}"] == pytest.approx(expected)
    assert means["clusters/count"] == pytest.approx(np.mean([each.clusters for each in found.values()]))
    assert means["people"] == pytest.approx(np.mean([3, 4, 5]))
    quiet = Rehearsal(tmp_path / "quiet", (stage_of(Cluster(clustering=LOOSE), rounds=1),), source="ann").run()
    figures = {
        f"clusters/{name}" for name in ("count", "smallest", "median", "largest", "outside", "in_largest", "silhouette")
    }
    (event,) = quiet.notebook.rounds()
    assert set(event["scalars"]) == figures | {"pseudo-labels/clustered"}
    assert set(event["clients"]["bob"]) == figures | {"pseudo-labels/clustered"}
    assert event["clients"]["ann"] == {}  # the source finds nothing


def test_the_federated_stage_goes_on_with_the_labels_of_the_cluster_stage(tmp_path: Path):
    """Clusters of one image each: nothing that the stage would find by itself."""
    cluster = stage_of(Cluster(clustering=CFinch(distance=1e-6), min_images=1), rounds=1)
    federate = stage_of(quickly(Unsupervised()), rounds=2)
    run = Rehearsal(tmp_path, (cluster, federate), source="ann").run()
    for name in NAMES[1:]:
        labels = kept(run, name, "cluster", Pseudo).labels
        assert labels.tolist() == list(range(len(labels)))
        assert torch.equal(kept(run, name, "unsupervised", Private).labels, labels)
        assert len(kept(run, name, "unsupervised", Private).class_embeddings) == len(labels)
    assert len(kept(run, "ann", "unsupervised", Private).class_embeddings) == 2


@pytest.mark.parametrize("kind", [Cluster, Unsupervised])
def test_clusters_of_fewer_images_than_told_are_dropped(tmp_path: Path, kind):
    """By the stage that clusters, and by one that trains and has to find clusters itself."""
    private = {Cluster: Pseudo, Unsupervised: Private}[kind]

    def labels(least: int) -> list[torch.Tensor]:
        algorithm = quickly(kind(clustering=KMeans(clusters=4), min_images=least))
        run = Rehearsal(tmp_path / str(least), (stage_of(algorithm, rounds=1),), source="ann").run()
        return [kept(run, name, kind.name, private).labels for name in NAMES[1:]]

    every, large = labels(1), labels(4)
    assert any((found == NOBODY).any() for found in large)
    assert not any((found == NOBODY).any() for found in every)
    assert all(torch.equal(few, large_enough(all_, 4)) for few, all_ in zip(large, every, strict=True))


def test_clustering_anew_sets_the_labels_of_the_cluster_stage_aside_and_the_source_keeps_its_rows(tmp_path: Path):
    cluster = stage_of(Cluster(clustering=CFinch(distance=1e-6), min_images=1), rounds=1)
    moved: list[float] = []  # how far the rows of the source go in the second round

    class Noting(Unsupervised):
        def local(self, down, private, client):
            up, after = super().local(down, private, client)
            if private and client.info.source:
                moved.append(float((after.class_embeddings - private.class_embeddings).abs().max()))
            return up, after

    still = LocalSGD(lr=1e-9, batch_size=4, iterations=1)
    anew = Noting(recluster_every=1, clustering=KMeans(clusters=2), head_init="random", training=still)
    federate = stage_of(anew, name="federate", rounds=2)
    run = Rehearsal(tmp_path, (cluster, federate), source="ann").run()
    for name in NAMES[1:]:
        before, after = (kept(run, name, *each) for each in (("cluster", Pseudo), ("federate", Private)))
        assert len(before.labels.unique()) == len(before.labels)  # each alone
        assert after.labels.max() == 1
        assert len(after.class_embeddings) == 2
    assert len(moved) == 1
    assert moved[0] < 1e-6


@pytest.mark.parametrize("keep", [True, False])
def test_the_source_may_go_on_with_the_rows_of_its_training(tmp_path: Path, keep: bool):
    still = LocalSGD(lr=1e-9, batch_size=4, iterations=1)
    before = stage_of(quickly(FedPE(head_init="random")), name="before", clients="source", rounds=1)
    federate = stage_of(Unsupervised(clustering=LOOSE, keep_head=keep, training=still), name="federate", rounds=1)
    run = Rehearsal(tmp_path, (before, federate), source="ann").run()
    trained, began = (
        kept(run, "ann", *each).class_embeddings for each in (("before", FedPE().types.private), ("federate", Private))
    )
    assert torch.allclose(trained, began, atol=1e-6) == keep


def test_with_true_labels_targets_cluster_nothing_and_have_a_row_for_each_person(tmp_path: Path):
    alike = CFinch(distance=1e-6)  # nobody would be found
    run = Rehearsal(
        tmp_path, (stage_of(quickly(Unsupervised(clustering=alike, true_labels=True)), rounds=1),), source="ann"
    ).run()
    for name in NAMES[1:]:
        found = kept(run, name, "unsupervised", Private)
        assert len(found.class_embeddings) == run.federation.holdings.of(name).train.classes
        assert found.labels.numel() == 0
    assert Unsupervised(true_labels=True).needs_labels_of == "all"
    assert Unsupervised().needs_labels_of == "source"


@pytest.mark.parametrize(("every", "rounds", "clusterings"), [(0, 5, 1), (2, 5, 3), (1, 3, 3), (9, 5, 1)])
def test_targets_cluster_anew_as_often_as_they_are_told(
    tmp_path: Path, every: int, rounds: int, clusterings: int, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    cluster = CFinch.divide
    monkeypatch.setattr(CFinch, "divide", lambda self, *given: (calls.append(1), cluster(self, *given))[1])
    algorithm = quickly(Unsupervised(recluster_every=every, clustering=LOOSE))
    Rehearsal(tmp_path, (stage_of(algorithm, rounds=rounds),), source="ann").run()
    assert len(calls) == 3 * clusterings  # three targets


def test_a_target_in_which_nobody_is_found_fails_alone(tmp_path: Path):
    stage = stage_of(quickly(Unsupervised(clustering=CFinch(distance=1e-6))), rounds=1, quorum=0.25)
    run = Rehearsal(tmp_path, (stage,), source="ann").run()
    failed = run.notebook.rounds()[0]["failed"]
    assert set(failed) == set(NAMES[1:])
    assert failed["bob"] == Problem.DATA.words
    assert "large enough; let clusters be looser" in run.problems


def test_a_constraint_on_a_source_that_is_not_there_is_refused(tmp_path: Path):
    alone = quickly(Unsupervised(clustering=LOOSE))
    with pytest.raises(ConfigError, match=r"there is none in this stage.*strength = 0"):
        Rehearsal(tmp_path, (stage_of(alone),)).run()
    with pytest.raises(ConfigError, match="there is none in this stage"):
        Rehearsal(tmp_path, (stage_of(alone, clients="targets"),), source="ann").run()
    free = quickly(Unsupervised(clustering=LOOSE, strength=0.0))
    Rehearsal(tmp_path / "free", (stage_of(free, clients="targets"),), source="ann").run()
    with pytest.raises(ValueError, match="strength is -1, it must be finite and not negative"):
        Unsupervised(strength=-1)
    with pytest.raises(ValueError, match=r"proximal holds everybody"):
        Unsupervised(terms=(Proximal(weight=0.1),))
    with pytest.raises(ValueError, match="min_images is 0, it must be"):
        Cluster(min_images=0)


def test_neither_class_embeddings_nor_counts_of_faces_leave():
    assert set(Unsupervised.types.up.payloads().values()) == {"ModelState", "Scalars"}
    assert set(Cluster.types.up.payloads().values()) == {"Scalars"}


# -------------------------------------------------------------------------------------------------------- experiments

DOOR = {"domain": "entrance"}
EXPERIMENT = {
    "name": "domains",
    "network": {"height": 32, "width": 32, "embedding": 16},
    "data": {
        "private": {
            "parts": {"studio": {"identities": 6, "images": 5}, "door": {"identities": 4, "images": 5, **DOOR}}
        },
        "heldout": {
            "parts": {
                "studio": {"first": 20, "identities": 6, "images": 4},
                "door": {"first": 20, "identities": 6, "images": 4, **DOOR},
            }
        },
    },
    "partition": {"by": "domain", "source": "studio", "clients": 2, "train": 0.6, "val": 0.0, "test": 0.4},
    "evaluation": {"folds": 2, "pairs_per_fold": 10},
    "stages": [
        {"name": "pretrain", "clients": "source", "algorithm": {"name": "fedpe"}},
        {
            "name": "cluster",
            "clients": "targets",
            "algorithm": {"name": "cluster", "clustering": {"name": "finch", "level": 0}},
        },
        {"name": "scratch", "clients": "targets", "after": "", "algorithm": {"name": "central"}},
    ],
}


def test_people_are_evaluated_domain_by_domain(faces_cache: Path):
    materials = Materials(parse_experiment(EXPERIMENT, "test"), Execution(cache=faces_cache))
    benchmarks = {benchmark.name: benchmark for benchmark in materials.benchmarks()}
    assert list(benchmarks) == ["heldout/door", "heldout/studio", "private", "private/door", "private/studio"]
    parts = [len(benchmarks[f"private/{name}"].samples) for name in ("door", "studio")]
    assert min(parts) > 0
    assert sum(parts) == len(benchmarks["private"].samples)
    assert [len(benchmarks[f"heldout/{name}"].samples) for name in ("door", "studio")] == [24, 24]
    assert materials.partition.source == "studio"
    assert benchmarks["heldout/door"].pairs is not None
    names = {name.split("/")[0] for name in benchmarks["heldout/door"].samples.identities}
    assert names == {"door"}


def test_a_forecast_counts_the_clients_of_a_stage(faces_cache: Path):
    materials = Materials(parse_experiment(EXPERIMENT, "test"), Execution(cache=faces_cache))
    stages = {stage.name: stage for stage in forecast(materials).stages}
    assert (stages["pretrain"].clients_per_round, stages["cluster"].clients_per_round) == (1, 2)
    train = {holding.client: holding.train for holding in materials.partition.summary(materials.private)}
    targets = train["door-000"] + train["door-001"]
    assert stages["pretrain"].images_per_round == train["studio"]
    assert stages["cluster"].images_per_round == stages["scratch"].images_per_round == targets
    assert stages["cluster"].leaves == ["Scalars"]
    assert stages["scratch"].leaves == ["the faces themselves, to one place"]
    lost = {**EXPERIMENT, "partition": {"by": "equal", "clients": 2}}
    with pytest.raises(ConfigError, match="stage pretrain: clients = 'source'"):
        forecast(Materials(parse_experiment(lost, "test"), Execution(cache=faces_cache)))


def test_a_forecast_counts_the_images_that_the_server_itself_trains_on(faces_cache: Path):
    data = {**EXPERIMENT["data"], "public": {"first": 40, "identities": 3, "images": 4}}
    stages = [
        {"name": "start", "algorithm": {"name": "pretrain"}},
        {"name": "tune", "algorithm": {"name": "tune"}},
    ]
    materials = Materials(
        parse_experiment({**EXPERIMENT, "data": data, "stages": stages}, "test"), Execution(cache=faces_cache)
    )
    start, tune = forecast(materials).stages
    assert (start.images_per_round, tune.images_per_round) == (12, 0)
    assert start.leaves == tune.leaves == []


def test_a_method_of_clustering_is_read_by_its_name():
    recipe = parse_experiment(EXPERIMENT, "test").recipe
    assert recipe[1].algorithm == Cluster(clustering=Finch(level=0))
    assert recipe[2].after == ""
    plain = parse_experiment(EXPERIMENT, "test").resolved()["stages"][1]["algorithm"]["clustering"]
    assert parse_experiment({**EXPERIMENT, "stages": [cluster_stage(plain)]}, "again").recipe[0] == recipe[1]


def cluster_stage(clustering: dict) -> dict:
    return {"name": "cluster", "clients": "targets", "algorithm": {"name": "cluster", "clustering": clustering}}


@pytest.mark.parametrize(
    ("clustering", "complaint"),
    [
        (
            {"name": "c-finch", "distanc": 1},
            "clustering.c-finch.distanc: there is no such key; did you mean distance",
        ),
        ({"name": "finch", "distance": 1}, "clustering.finch.distance: there is no such key"),
        ({"name": "kmeans"}, "does not match any of the expected tags: 'c-finch', 'finch', 'k-means', 'dbscan'"),
        ({"distance": 1}, "clustering: Unable to extract tag using discriminator 'name'"),
        ({"name": "c-finch", "distance": -1}, "distance is -1.0, it must be positive"),
        ({"name": "dbscan", "radius": "far"}, "clustering.dbscan.radius"),
    ],
)
def test_a_wrong_clustering_is_one_clear_line(clustering: dict, complaint: str):
    with pytest.raises(ConfigError) as raised:
        parse_experiment({**EXPERIMENT, "stages": [cluster_stage(clustering)]}, "test")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_run_from_end_to_end_shows_both_domains_and_the_pseudo_labels(tmp_path: Path, faces_cache: Path):
    adapt = {"name": "unsupervised", "training": {"iterations": 2, "batch_size": 4}}
    loose = {"name": "cluster", "evaluated": True, "clustering": {"name": "c-finch", "distance": 1.4}}
    stages = [
        {"name": "pretrain", "clients": "source", "algorithm": {"name": "fedpe", "training": {"iterations": 2}}},
        {"name": "cluster", "clients": "targets", "algorithm": loose},
        {"name": "adapt", "rounds": 2, "algorithm": adapt},
        {"name": "dan", "after": "pretrain", "algorithm": {"name": "dan", "training": {"iterations": 2}}},
    ]
    experiment = parse_experiment({**EXPERIMENT, "stages": stages}, "test")
    run_experiment(experiment, tmp_path / "run", cache=faces_cache)
    rows = {row.label: row.metrics for row in comparison(tmp_path / "run")}
    for domain in ("door", "studio"):
        for metric in ("accuracy", "tar@1e-01", "tar@1e-02", "tar@1e-03", "rank1"):
            assert 0 <= rows["adapt"][f"heldout/{domain}/{metric}"] <= 1
    assert 0 < rows["cluster"]["pseudo-labels/f_score"] <= 1
    assert heading("pseudo-labels/nmi") == ("pseudo-labels", "NMI")
    assert "pseudo-labels/f_score" not in rows["adapt"]
    assert rows["cluster"]["heldout/door/accuracy"] == rows["pretrain"]["heldout/door/accuracy"]  # no step was taken
    ledger = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    models = [line for line in ledger if (line["payload"], line["direction"]) == ("ModelState", "up")]
    trained = {(line["stage"], line["client"]) for line in models}
    assert trained == {("pretrain", "studio"), *(("adapt", name) for name in ("studio", "door-000", "door-001"))}
