"""Faces of which nobody says who is on them: how they are read, dealt, and kept from stages that need labels."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from facefiles import picture
from personae.data import FaceSet, PartitionPlan, join_faces, open_faces, pack_faces
from personae.data.clients import PartitionedFaces
from personae.data.faces import UNLABELLED
from personae.errors import ConfigError, DataError
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import deal, own_faces
from personae.experiment.materials import Materials

COUNT, SIDE = 24, 32


@pytest.fixture
def heap(tmp_path: Path) -> Path:
    """A flat folder of images."""
    folder = tmp_path / "heap"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"photo {number}.png").write_bytes(picture(number))
    (folder / "readme.txt").write_text("holidays")
    return folder


def opened(path: Path, tmp_path: Path, *, unlabelled: bool = True) -> FaceSet:
    return open_faces(path, height=SIDE, width=SIDE, cache=tmp_path / "cache", unlabelled=unlabelled)


def in_folders(heap: Path, tmp_path: Path, name: str) -> Path:
    """The same images, in a folder a person, somewhere deep."""
    root = tmp_path / name
    for number, image in enumerate(sorted(heap.glob("*.png"))):
        place = root / f"{name} {(number * 7) % 5}" / "deeper"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, place / f"{name}-{COUNT - number}.png")
    return root


def zipped(heap: Path, tmp_path: Path) -> Path:
    file = tmp_path / "heap.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for image in sorted(heap.glob("*.png"), reverse=True):
            archive.write(image, f"some/folder/{image.name}")
            archive.writestr(f"__MACOSX/some/folder/._{image.name}", b"no image")
    return file


def listed(heap: Path, tmp_path: Path) -> Path:
    """Lines with and without a label, and with tabs."""
    lines = [f"heap/{image.name}" for image in heap.glob("*.png")]
    lines[1] += " Ann"
    lines[2] = f"3\tAnn\t{lines[2]}"
    file = tmp_path / "heap.txt"
    file.write_text("\n".join([*lines, ""]))
    return file


def packed(heap: Path, tmp_path: Path) -> Path:
    file = tmp_path / "heap.faces"
    pack_faces(heap, file, height=SIDE, width=SIDE, unlabelled=True)
    return file


def packed_with_labels(heap: Path, tmp_path: Path) -> Path:
    file, root = tmp_path / "people.faces", tmp_path / "people"
    for number, image in enumerate(heap.glob("*.png")):
        (root / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        shutil.copy(image, root / f"{number % 3}")
    pack_faces(root, file, height=SIDE, width=SIDE)
    return file


def test_every_layout_gives_the_same_images_in_the_same_order_without_a_label(heap: Path, tmp_path: Path) -> None:
    known = opened(heap, tmp_path)
    assert len(known) == COUNT
    wanted = {picture(number) for number in range(COUNT)}
    assert {(heap / path).read_bytes() for path in known.columns["path"]} == wanted
    others = [in_folders(heap, tmp_path, "ann"), zipped(heap, tmp_path), listed(heap, tmp_path)]
    others += [packed(heap, tmp_path), packed_with_labels(heap, tmp_path)]
    for path in others:
        faces = opened(path, tmp_path)
        assert faces.identities == ()
        assert set(faces.identity.tolist()) == {UNLABELLED}
        assert set(faces.columns) == {"path"}
        assert (faces.images(np.arange(COUNT)) == known.images(np.arange(COUNT))).all(), path


def test_a_table_in_a_zip_may_say_what_images_are_for_but_not_who_is_on_them(heap: Path, tmp_path: Path) -> None:
    images = {image.name: image.read_bytes() for image in heap.glob("*.png")}

    def write(header: str, lines: list[str]) -> Path:
        file = tmp_path / "marked.zip"
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in images.items():
                archive.writestr(f"images/{name}", content)
            archive.writestr("labels.csv", "\n".join([header, *lines, ""]))
        return file

    file = write("path,identity,Male,split", [f"{name},Ann,1,{'test' if '1' in name else 'train'}" for name in images])
    faces = opened(file, tmp_path)
    assert set(faces.columns) == {"path", "split"}
    assert [("1" in path) == (split == "test") for path, split in zip(*faces.columns.values(), strict=True)]
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert opened(tmp_path / "unpacked", tmp_path).columns["split"].tolist() == faces.columns["split"].tolist()
    file = write("path,split", [f"{name},train" for name in list(images)[1:]])
    with pytest.raises(DataError, match=r"does not say what images/photo .* is for"):
        opened(file, tmp_path)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda heap, _: heap, "outside of any identity's folder"),
        (zipped, "no labels.csv in the zip"),
        (listed, "has no label"),
        (packed, "its faces have no labels"),
    ],
)
def test_where_labels_are_needed_it_is_said_how_to_do_without(make, complaint: str, heap: Path, tmp_path: Path) -> None:
    path = make(heap, tmp_path)
    with pytest.raises(DataError, match=complaint) as error:
        opened(path, tmp_path, unlabelled=False)
    assert "unlabelled = true (on the command line: --unlabelled)" in str(error.value)


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty" / "nested").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no images .* at or below it"):
        opened(tmp_path / "empty", tmp_path)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "nothing")
    with pytest.raises(DataError, match=r"no images .* in the zip"):
        opened(tmp_path / "empty.zip", tmp_path)
    (tmp_path / "list.txt").write_text("what is this\n")
    with pytest.raises(DataError, match="line 1: 'what is this' does not name one image"):
        opened(tmp_path / "list.txt", tmp_path)
    (tmp_path / "outside.png").write_bytes(picture(0))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "away.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(DataError, match="a link that leaves"):
        opened(tmp_path / "links", tmp_path)


def test_images_are_dealt_one_by_one_and_no_name_decides_anything(heap: Path, tmp_path: Path) -> None:
    plan = PartitionPlan(by="equal", clients=5, train=0.6, val=0.2, test=0.2)
    one, other = (opened(path, tmp_path) for path in (heap, in_folders(heap, tmp_path, "zoe")))
    divisions = [plan.apply(faces, seed=3) for faces in (one, other)]
    assert (divisions[0].client == divisions[1].client).all()
    assert (divisions[0].split == divisions[1].split).all()
    summary = divisions[0].summary(one)
    assert sorted(holding.train + holding.val + holding.test for holding in summary) == [4, 5, 5, 5, 5]
    assert {holding.identities for holding in summary} == {0}
    assert all(holding.train and holding.test for holding in summary)
    assert (plan.apply(one, seed=4).client != divisions[0].client).any()


def test_lognormal_shares_and_a_largest_number_of_images(heap: Path, tmp_path: Path) -> None:
    faces = opened(heap, tmp_path)
    shares = PartitionPlan(by="lognormal-images", clients=4, sigma=1.0).apply(faces, 0)
    counts = np.bincount(shares.client)
    assert counts.sum() == COUNT
    assert counts.min() >= 2
    assert len(set(counts.tolist())) > 1
    capped = PartitionPlan(by="equal", clients=2, max_images=7).apply(faces, 0)
    assert np.bincount(capped.client[capped.client >= 0]).tolist() == [7, 7]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"by": "one-identity"}, "by 'one-identity' needs to know who is on the images"),
        ({"by": "lognormal-identities", "clients": 2}, "by 'lognormal-identities' needs to know"),
        ({"by": "equal", "clients": 4, "shared": 0.5}, "`shared` needs to know"),
        ({"by": "equal", "clients": 13}, "24 images are too few for 13 clients with 2 each"),
    ],
)
def test_what_needs_people_cannot_be_dealt(options, complaint: str, heap: Path, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=complaint):
        PartitionPlan(**options).apply(opened(heap, tmp_path), 0)


def test_a_labelled_source_and_unlabelled_targets(heap: Path, tmp_path: Path) -> None:
    source = opened(packed_with_labels(heap, tmp_path), tmp_path, unlabelled=False)
    both = join_faces("both", {"office": source, "street": opened(heap, tmp_path)})
    with pytest.raises(ConfigError, match="both labelled and unlabelled"):
        PartitionPlan(by="equal", clients=2).apply(both, 0)
    partition = PartitionPlan(by="domain", source="office", clients=2).apply(both, 0)
    held = PartitionedFaces(both, partition)
    assert partition.clients == ("office", "street-000", "street-001")
    assert held.of("office").train.classes == 3
    target = held.of("street-000")
    assert target.train.classes == target.test.classes == 0
    assert target.train.identities == ()
    assert set(target.train.labels.tolist()) == {UNLABELLED}
    strangers = held.of("office").strangers()  # type: ignore[misc]
    assert len(strangers) == 0  # nobody says who the others' are
    mixed = both.samples(np.array([0, 30, 1, 40]))
    assert mixed.labels.tolist()[1::2] == [UNLABELLED, UNLABELLED]
    assert mixed.labels.tolist()[0::2] == [source.identity[0], source.identity[1]]
    partition.write_table(both, tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert sum(line.startswith("street-000,,") for line in lines) == 12


def experiment(private: object, *stages: object, **others: object) -> Experiment:
    content = {
        "name": "tiny",
        "network": {"height": SIDE, "width": SIDE, "embedding": 8},
        "partition": {"clients": 2},
        "data": {"private": private},
        "stages": [{"name": f"stage-{at}", "algorithm": options} for at, options in enumerate(stages)],
    }
    return parse_experiment({**content, **others}, "tiny.toml")


@pytest.mark.parametrize("name", ["fedpe", "fedfr", "fedgc", "hf_maml", "central", "tune", "adapt"])
def test_a_stage_that_needs_labels_is_refused_by_name(name: str, heap: Path) -> None:
    with pytest.raises(ConfigError) as error:
        experiment({"source": str(heap), "unlabelled": True}, {"name": "cluster"}, {"name": name})
    line = str(error.value)
    assert line.startswith(f"tiny.toml: stage stage-1: {name} has to know who is on the faces of its clients")
    assert "data.private is unlabelled" in line
    assert line.endswith("these need no labels there: pretrain, cluster, unsupervised, dan, dann")


def test_a_evaluated_clustering_needs_labels_and_a_plain_one_does_not(heap: Path) -> None:
    source = {"source": str(heap), "unlabelled": True}
    experiment(source, {"name": "cluster"}, {"name": "unsupervised", "strength": 0.0})
    with pytest.raises(ConfigError, match="cluster with these options has to know"):
        experiment(source, {"name": "cluster", "evaluated": True})


def test_the_source_of_domains_has_to_be_labelled_and_the_targets_do_not(heap: Path) -> None:
    synthetic, bare = {"identities": 4}, {"source": str(heap), "unlabelled": True}
    plan = {"by": "domain", "source": "office"}
    whole = ({"name": "cluster"}, {"name": "unsupervised"})
    experiment({"parts": {"office": synthetic, "street": bare}}, *whole, partition=plan)
    with pytest.raises(ConfigError, match=r"stage-1: unsupervised .* data.private.parts.office is unlabelled"):
        experiment({"parts": {"office": bare, "street": bare}}, *whole, partition=plan)
    with pytest.raises(ConfigError, match=r"stage-0: fedpe .* data.private.parts.street is unlabelled"):
        experiment({"parts": {"office": synthetic, "street": bare}}, {"name": "fedpe"}, partition=plan)
    source_alone = [{"name": "pretrain", "clients": "source", "algorithm": {"name": "fedpe"}}]
    experiment({"parts": {"office": synthetic, "street": bare}}, partition=plan, stages=source_alone)
    with pytest.raises(ConfigError, match=r"no client may have both; divide them with .partition. by = 'domain'"):
        experiment({"parts": {"office": synthetic, "street": bare}}, *whole)


def test_what_goes_with_people_alone_does_not_go_with_unlabelled_files(heap: Path) -> None:
    with pytest.raises(ConfigError, match="identities does not go with unlabelled faces from files"):
        experiment({"source": str(heap), "unlabelled": True, "identities": 3}, {"name": "cluster"})
    bare = {"source": str(heap), "unlabelled": True}
    with pytest.raises(ConfigError, match="heldout faces must be labelled"):
        experiment(bare, {"name": "cluster"}, data={"private": bare, "heldout": bare})


UNSUPERVISED = ({"name": "cluster"}, {"name": "unsupervised", "strength": 0.0})


@pytest.mark.parametrize("make", [lambda heap, _: heap, zipped, listed, packed, packed_with_labels])
def test_a_client_of_a_network_has_unlabelled_faces_of_its_own(make, heap: Path, tmp_path: Path) -> None:
    network = {"height": SIDE, "width": SIDE, "embedding": 8}
    planned = experiment({"identities": 4}, *UNSUPERVISED, network=network)
    own = own_faces(make(heap, tmp_path), planned, Execution(cache=tmp_path / "cache"), unlabelled=True).of("berlin")
    assert own.train.classes == 0
    assert len(own.train) + len(own.val) + len(own.test) == COUNT
    assert len(own.test) == 5


def test_a_client_that_cannot_tell_refuses_what_needs_labels_and_to_be_the_source(heap: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"stage-0: fedpe .* {heap} is unlabelled"):
        own_faces(
            heap, experiment({"identities": 4}, {"name": "fedpe"}), Execution(cache=tmp_path / "cache"), unlabelled=True
        )
    parts = {"parts": {"berlin": {"identities": 4}, "rome": {"identities": 4, "first": 4}}}
    planned = experiment(parts, *UNSUPERVISED, partition={"by": "domain", "source": "berlin"})
    own = own_faces(heap, planned, Execution(cache=tmp_path / "cache"), unlabelled=True)
    assert len(own.of("rome").train)
    with pytest.raises(ConfigError, match="berlin is the source, whose faces have to be labelled"):
        own.of("berlin")


def test_dealt_files_of_unlabelled_clients_name_nobody(heap: Path, tmp_path: Path) -> None:
    planned = experiment({"source": str(in_folders(heap, tmp_path, "Zoe")), "unlabelled": True}, *UNSUPERVISED)
    materials = Materials(planned, Execution(cache=tmp_path / "cache"))
    paths = deal(materials, tmp_path / "dealt")
    for path in paths:
        content = path.read_bytes() + zipfile.ZipFile(path).read("labels.csv")
        assert b"Zoe" not in content
    own = own_faces(paths[0], planned, Execution(cache=tmp_path / "cache"), unlabelled=True).of("whoever")
    held = materials.clients.of("client-000")
    for mine, theirs in ((own.train, held.train), (own.test, held.test)):
        assert torch.equal(mine.images(torch.arange(len(mine))), theirs.images(torch.arange(len(theirs))))


def test_a_pack_without_labels_comes_back_as_it_was(heap: Path, tmp_path: Path) -> None:
    faces = pack_faces(heap, tmp_path / "one.faces", height=SIDE, width=SIDE, unlabelled=True)
    assert not faces.labelled.any()
    rows = opened(tmp_path / "one.faces", tmp_path).samples(np.arange(3))
    assert rows.classes == 0
    assert len(rows.images(torch.arange(3))) == 3
