"""What is said of clusters without labels: figures by their definition, and what is odd about them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import silhouette_score

from personae.algorithms.cluster import Cluster, Up
from personae.core.algorithm import ClientInfo, Reply
from personae.core.payload import Scalars
from personae.core.warnings import Figures
from personae.errors import DataError
from personae.parts.clustering import NOBODY, CFinch, Shape, large_enough
from personae.parts.clustering import shape as shape_file
from personae.parts.clustering.shape import silhouette
from personae.report.clusters import cluster_section, lines_of
from personae.report.records import CLUSTERS, Record, Run, StageRecord


def people(count: int, images: int, noise: float, cone: float = 0.0, width: int = 32) -> torch.Tensor:
    """Features of `count` people, the more alike the narrower the cone around one direction is."""
    source = torch.Generator().manual_seed(count)
    centres = F.normalize(torch.randn(count, width, generator=source), dim=1)
    centres = F.normalize((1 - cone) * centres + cone * torch.eye(width)[0], dim=1)
    noisy = centres.repeat_interleave(images, 0) + noise * torch.randn(count * images, width, generator=source)
    return F.normalize(noisy, dim=1)


def found(features: torch.Tensor, distance: float = 0.9, min_images: int = 2) -> Shape:
    labels = large_enough(CFinch(distance=distance)(features, torch.Generator()), min_images)
    return Shape.of(features, labels)


@pytest.mark.parametrize("block", [7, 8192])
def test_the_silhouette_is_the_one_of_scikit_learn(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_file, "_BLOCK", block)
    features = F.normalize(people(9, 6, 0.3).double(), dim=1)
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 7, len(features)))
    labels[labels == 6] = 20  # numbers without an image
    labels = torch.unique(labels, return_inverse=True)[1]
    labels[0] = labels.max() + 1  # one image alone, which counts as 0
    expected = silhouette_score(features.numpy(), labels.numpy(), metric="cosine")
    assert silhouette(features, labels) == pytest.approx(expected, abs=1e-12)
    outside = labels.clone()
    outside[5:15] = NOBODY
    kept = outside != NOBODY
    again = torch.unique(outside[kept], return_inverse=True)[1]
    expected = silhouette_score(features[kept].numpy(), again.numpy(), metric="cosine")
    assert silhouette(features[kept], again) == pytest.approx(expected, abs=1e-12)
    outside[kept] = again
    assert silhouette(features, outside) == pytest.approx(expected, abs=1e-12)


def test_figures_by_hand() -> None:
    features = torch.eye(3)[[0, 0, 0, 1, 1, 2]]
    shape = Shape.of(features, torch.tensor([0, 0, 0, 1, 1, NOBODY]))
    wanted = {
        "count": 2,
        "smallest": 2,
        "median": 2.5,
        "largest": 3,
        "outside": 1 / 6,
        "in_largest": 0.5,
        "silhouette": 1,
    }
    assert shape.figures() == pytest.approx({f"{CLUSTERS}{name}": value for name, value in wanted.items()})
    assert Shape.read({**shape.figures(), "loss": 2.0}) == shape
    assert Shape.read({"loss": 2.0}) is None
    assert Shape.of(features, torch.full((6,), NOBODY)) == Shape(count=0, outside=1.0)


def test_people_who_can_be_told_apart_are_not_odd() -> None:
    for count, images in ((31, 12), (60, 3), (6, 40)):
        shape = found(people(count, images, 0.07))
        assert shape.count == count
        assert shape.silhouette > 0.6
        assert shape.oddity is None


def test_a_collapsed_embedding_is_odd() -> None:
    """31 people whom the model hardly tells apart: in few clusters, or nearly all in one."""
    narrow = found(people(31, 12, 0.07, cone=0.8))
    assert narrow.count < 5
    assert narrow.oddity
    assert narrow.oddity.startswith("look collapsed: ")
    one = found(people(31, 12, 0.01, cone=0.95))
    assert one.oddity == "look collapsed: there is one, of 372 images"
    few = Shape(count=3, smallest=57, median=140, largest=175, outside=0, in_largest=0.47, silhouette=0.4)
    assert few.oddity == "look collapsed: 3 clusters of 57 to 175 images, the largest with 47% of all"
    assert replace(few, count=30, in_largest=0.34).oddity
    assert replace(few, count=30, in_largest=0.33).oddity is None


def test_a_bound_that_links_nothing_is_odd() -> None:
    features = people(31, 12, 0.2)
    assert found(features, distance=0.2).oddity == "look shattered: 100% of the images are in no cluster"
    alone = found(features, distance=0.2, min_images=1)
    assert alone.oddity
    assert alone.oddity.endswith("most of one image alone")


def test_a_handful_of_images_is_never_collapsed() -> None:
    assert found(people(2, 4, 0.05)).oddity is None


def test_figures_that_make_no_sense_break_nothing() -> None:
    """They come from clients, who may send any numbers."""
    for count, largest, share, outside in ((0, 0, 0, 0), (1, 1e308, 1e-308, 0), (-3, -1, -1, -1), (9, 9, 0, 0.2)):
        odd = Shape(count=count, largest=largest, in_largest=share, outside=outside)
        list(Cluster().warnings(Figures({}, clients={"eve": odd.figures()})))
    assert list(Cluster().warnings(Figures({}, clients={"eve": {"clusters/count": 1.0}}))) == []


def test_incomplete_figures_of_a_client_are_left_out_of_tables() -> None:
    whole = {name.removeprefix(CLUSTERS): value for name, value in found(people(31, 12, 0.07)).figures().items()}
    record = Record(clusters={"training": {"ann": whole, "eve": {"count": 3.0}}})
    run = Run({}, {}, (StageRecord("cluster", "cluster"),), {"cluster": record}, ())
    assert [line.client for line in lines_of(run)] == ["ann"]
    assert [row[2] for row in cluster_section(run).tables[0].rows] == ["ann"]


def replies(*shapes: Shape) -> list[Reply[Up]]:
    return [
        Reply(ClientInfo(f"client-{at}", at), Up(figures=Scalars(shape.figures()))) for at, shape in enumerate(shapes)
    ]


def test_odd_clusters_are_said_by_client_and_stop_a_run_that_asks_for_it() -> None:
    good, bad = found(people(31, 12, 0.07)), found(people(31, 12, 0.01, cone=0.95))
    told = {f"client-{at}": shape.figures() for at, shape in enumerate((good, bad))}
    (line,) = Cluster().warnings(Figures({}, clients=told))
    assert line.startswith("the clusters of client-1 look collapsed: there is one, of 372 images; change how far apart")
    state = object()
    assert Cluster().merge(state, replies(good, bad), None) is state  # type: ignore[arg-type, comparison-overlap]
    strict = Cluster(if_odd="stop")
    assert strict.merge(state, replies(good, good), None) is state  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(DataError, match=r"cluster: the clusters of client-1 look collapsed.*\(and 1 more like it\)"):
        strict.merge(state, replies(good, bad, bad), None)  # type: ignore[arg-type]
