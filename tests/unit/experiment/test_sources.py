"""Every layout of faces as the source of an experiment file."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facefiles import insightface, picture, pixels_of, write_records
from personae.data import pack_faces
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials

PEOPLE = {
    name: [picture(10 * number + image, size=32) for image in range(4)] for number, name in enumerate(("3", "5", "8"))
}

EXPERIMENT = """
name = "sources"
data.private.source = "{source}"
partition = {{ by = "equal", clients = 3 }}
network = {{ name = "small", embedding = 64, height = 32, width = 32 }}
stages = [{{ name = "federate", algorithm = {{ name = "fedpe" }} }}]
"""


def put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def folders(root: Path) -> str:
    """LFW and CASIA-WebFace."""
    for name, images in PEOPLE.items():
        for number, image in enumerate(images):
            put(root / "set" / name / f"{number}.png", image)
    return "set"


def vggface2(root: Path) -> str:
    for name, images in PEOPLE.items():
        for number, image in enumerate(images):
            put(root / "vgg" / ("train" if number % 2 else "test") / name / f"{number}.png", image)
    return "vgg"


def balanced(root: Path) -> str:
    for group, (name, images) in zip(("African", "Asian", "Indian"), PEOPLE.items(), strict=True):
        for number, image in enumerate(images):
            put(root / "race_per_7000" / group / name / f"{number}.png", image)
    return "race_per_7000"


def rfw(root: Path) -> str:
    """Twenty pairs a group, since ten folds are expected of it."""
    for group in ("African", "Asian"):
        for name, images in PEOPLE.items():
            for number, image in enumerate(images, 1):
                put(root / "rfw" / "data" / group / name / f"{name}_{number:04}.jpg", image)
        same = ["3 1 2", "3 3 4", "5 1 2", "5 3 4", "8 1 2", "8 3 4", "3 1 3", "3 2 4", "5 1 3", "8 2 3"]
        other = [f"3 {n % 4 + 1} {'58'[n % 2]} {n // 3 + 1}" for n in range(10)]
        put(root / "rfw" / "txts" / group / f"{group}_pairs.txt", "\n".join(same + other).encode())
    return "rfw"


def celeba(root: Path) -> str:
    lines = []
    for name, images in PEOPLE.items():
        for number, image in enumerate(images):
            put(root / "celeba" / "img_align_celeba" / f"{name}{number}.jpg", image)
            lines.append(f"{name}{number}.jpg {name}")
    put(root / "celeba" / "identity_CelebA.txt", "\n".join(lines).encode())
    attributes = [f"{line.split()[0]} 1 -1" for line in lines]
    put(root / "celeba" / "list_attr_celeba.txt", "\n".join([str(len(lines)), "Male Young", *attributes]).encode())
    return "celeba"


def records(root: Path) -> str:
    write_records(root / "train.rec", insightface({int(name): images for name, images in PEOPLE.items()}))
    return "train.rec"


def archive(root: Path) -> str:
    lines = ["path,identity"]
    with zipfile.ZipFile(root / "set.zip", "w") as file:
        for name, images in PEOPLE.items():
            for number, image in enumerate(images):
                file.writestr(f"images/{name}{number}.png", image)
                lines.append(f"{name}{number}.png,{name}")
        file.writestr("labels.csv", "\n".join(lines))
    return "set.zip"


def unpacked(root: Path) -> str:
    with zipfile.ZipFile(root / archive(root)) as file:
        file.extractall(root / "unpacked")
    return "unpacked"


def plain_list(root: Path) -> str:
    folders(root)
    lines = [f"set/{name}/{number}.png {name}" for name, images in PEOPLE.items() for number in range(len(images))]
    put(root / "list.txt", "\n".join(lines).encode())
    return "list.txt"


def insightface_list(root: Path) -> str:
    folders(root)
    lines = [f"1\tset/{name}/{number}.png\t{name}" for name, images in PEOPLE.items() for number in range(len(images))]
    put(root / "train.lst", "\n".join(lines).encode())
    return "train.lst"


def mxnet_list(root: Path) -> str:
    folders(root)
    lines = [f"{n}\t{name}.000000\tset/{name}/{n}.png" for name, images in PEOPLE.items() for n in range(len(images))]
    put(root / "im2rec.lst", "\n".join(lines).encode())
    return "im2rec.lst"


def parquet(root: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")
    rows = [({"bytes": image, "path": None}, int(name)) for name, images in PEOPLE.items() for image in images]
    (root / "hub" / "data").mkdir(parents=True)
    for shard, part in enumerate((rows[:5], rows[5:])):
        table = pyarrow.table({"image": [image for image, _ in part], "label": [label for _, label in part]})
        writer.write_table(table, root / "hub" / "data" / f"train-0000{shard}-of-00002.parquet")
    return "hub"


def pack(root: Path) -> str:
    pack_faces(root / archive(root), root / "set.faces", height=32, width=32)
    return "set.faces"


LAYOUTS = [folders, vggface2, balanced, celeba, records, archive, unpacked, plain_list, insightface_list, mxnet_list]
LAYOUTS += [parquet, pack]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_experiment_reads_it(tmp_path: Path, layout: Callable[[Path], str]) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(source=layout(tmp_path)))
    # With one person in each group, nobody can tell which folders are people.
    settings = ["data.private.identity_level=last"] if layout is balanced else []
    materials = Materials(load_experiment(tmp_path / "experiment.toml", settings), Execution(cache=tmp_path / "cache"))
    faces = materials.private
    found = {name.split("/")[-1]: set() for name in faces.identities}
    for row in range(len(faces)):
        found[faces.identities[faces.identity[row]].split("/")[-1]].add(faces.images(np.array([row])).tobytes())
    assert found == {name: {pixels_of(image).tobytes() for image in images} for name, images in PEOPLE.items()}
    assert len(materials.clients.of(materials.clients.clients[0]).train) >= 1


def test_rfw_has_its_groups_as_domains(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(source=rfw(tmp_path)))
    faces = Materials(load_experiment(tmp_path / "experiment.toml"), Execution(cache=tmp_path / "cache")).private
    assert set(faces.columns["domain"].tolist()) == {"African", "Asian"}
    assert set(faces.identities) == {f"{group}/{name}" for group in ("African", "Asian") for name in PEOPLE}


def test_held_out_people_of_rfw_are_compared_group_by_group(tmp_path: Path) -> None:
    faces = rfw(tmp_path)
    for group in ("African", "Asian"):  # so that there are two people in each of two folds
        for number in range(1, 5):
            put(tmp_path / faces / "data" / group / "9" / f"9_{number:04}.jpg", picture(40 + number, size=32))
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        EXPERIMENT.format(source=folders(tmp_path))
        + f'data.heldout.source = "{faces}/data"\nevaluation = {{ folds = 2, pairs_per_fold = 4 }}\n'
    )
    [benchmark] = Materials(load_experiment(experiment), Execution(cache=tmp_path / "cache")).final_benchmarks()
    assert list(benchmark.groups) == ["African", "Asian"]
    for group, pairs in benchmark.groups.items():
        for side in (pairs.left, pairs.right):
            people = {benchmark.samples.identities[label] for label in benchmark.samples.labels[side]}
            assert people <= {f"{group}/{name}" for name in (*PEOPLE, "9")}
