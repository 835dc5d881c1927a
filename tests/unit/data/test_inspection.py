"""What `personae data inspect` finds, in sets that are made to have it."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from facefiles import insightface, picture, write_records
from personae.cli import app
from personae.commands.data import faces as commands
from personae.data import pack_faces
from personae.data.inspection import inspect_faces
from personae.errors import DataError


def put(root: Path, **people: list[bytes]) -> Path:
    for name, images in people.items():
        for number, image in enumerate(images):
            file = root / "faces" / name.replace("__", "/") / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image)
    return root / "faces"


def pictures(first: int, count: int) -> list[bytes]:
    return [picture(number) for number in range(first, first + count)]


def test_numbers_of_a_plain_set(tmp_path: Path) -> None:
    sizes = [1, 2, 2, 3, 5, 8, 9]
    people = {f"p{n}": pictures(100 * n, count) for n, count in enumerate(sizes)}
    found = inspect_faces(put(tmp_path, **people))
    assert (found.images, found.identities, found.looked_at) == (30, 7, 30)
    assert found.layout == "a folder per identity"
    assert found.per_identity == {
        name: float(np.quantile(sizes, at))
        for name, at in zip(found.per_identity, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1), strict=True)
    }
    assert found.histogram == [(1, 1, 1), (2, 3, 3), (4, 7, 1), (8, 15, 2)]
    assert found.sizes == {"16 x 16": 30}
    assert (found.repeated, found.shared, found.alike, found.unreadable) == (0, [], [], [])
    assert len(found.problems) == 2
    assert "identities with a single image: 1 of 7;" in found.problems[0]
    assert "identities are few: 7;" in found.problems[1]
    assert found.advice is not None
    assert found.advice.commands == (f"personae run {tmp_path}/faces --weights MODEL",)
    assert found.advice.because.startswith("6 identities with two images or more; this proposes a method")


def brighter(encoded: bytes) -> bytes:
    """Another file, the same picture to the eye."""
    image = Image.open(io.BytesIO(encoded)).point(lambda value: min(255, value * 9 // 10 + 12))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def test_the_same_picture_under_two_names(tmp_path: Path) -> None:
    one, two, three = pictures(0, 3), pictures(10, 3), pictures(20, 3)
    found = inspect_faces(
        put(tmp_path, ann=[*one, one[0], brighter(one[2])], bob=[*two, one[1]], cid=[*three, brighter(two[2])])
    )
    assert found.repeated == 1
    assert found.shared == [("ann/1.png", "bob/3.png")]
    assert [(left, right) for left, right, _ in found.alike] == [("bob/2.png", "cid/3.png")]
    assert found.alike[0][2] > 0.995
    assert any("files under two identities: 1;" in problem for problem in found.problems)
    assert any("look nearly the same: 1;" in problem for problem in found.problems)


def test_blank_images_are_not_taken_for_one_another(tmp_path: Path) -> None:
    def blank(value: int) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (16, 16), (value,) * 3).save(stream, "PNG")
        return stream.getvalue()

    found = inspect_faces(put(tmp_path, ann=[blank(10), blank(20)], bob=[blank(30), blank(40)]))
    assert found.alike == []


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = put(tmp_path, ann=[*pictures(0, 2), b"bad"], bob=[picture(5), picture(6)[:60]])
    found = inspect_faces(path)
    assert found.unreadable == [
        ("ann/2.png", "not a JPEG, PNG, BMP, WebP, GIF, TIFF or HEIC image"),
        ("bob/1.png", "truncated"),
    ]
    assert "images that cannot be used: 2;" in found.problems[0]


def test_gaps_between_numbers(tmp_path: Path) -> None:
    people = {"3": pictures(0, 2), "4": pictures(10, 2), "7": pictures(20, 2), "10": pictures(30, 2)}
    found = inspect_faces(put(tmp_path, **people))
    assert any("4 between 3 and 10, such as 5, 6, 8" in problem for problem in found.problems)
    apart = tmp_path / "apart"
    found = inspect_faces(put(apart, **{"17": pictures(0, 2), "900000": pictures(10, 2)}))
    assert not any("gaps" in problem for problem in found.problems)  # these are numbers of something else


def test_sizes_the_most_frequent_first(tmp_path: Path) -> None:
    large = [picture(n, size=24) for n in range(3)]
    found = inspect_faces(put(tmp_path, ann=[*large, picture(9)], bob=pictures(20, 1)))
    assert list(found.sizes.items()) == [("24 x 24", 3), ("16 x 16", 2)]
    assert any("sizes: 2;" in problem for problem in found.problems)


def test_only_a_sample_is_looked_into(tmp_path: Path) -> None:
    path = put(tmp_path, ann=pictures(0, 6), bob=[b"bad"] * 6)
    found = inspect_faces(path, sample=4)
    assert (found.images, found.looked_at, len(found.unreadable)) == (12, 4, 2)
    assert inspect_faces(path, sample=0).looked_at == 0
    assert inspect_faces(path, sample=99).looked_at == 12


@pytest.mark.parametrize(
    ("names", "style"),
    [
        (["n000001", "n000002"], "VGGFace2"),
        (["0000045", "0000099"], "CASIA-WebFace"),
        (["Aaron_Peirsol", "Zico"], None),
        (["Aaron_Peirsol", "Ann_B_Davis"], "LFW"),
        ([f"{group}__m.0{n}{group}" for group in ("African", "Asian") for n in range(2)], "BUPT-Balancedface and RFW"),
    ],
)
def test_styles_of_known_sets(tmp_path: Path, names: list[str], style: str | None) -> None:
    found = inspect_faces(put(tmp_path, **{name: pictures(10 * n, 2) for n, name in enumerate(names)}))
    assert found.layout == "a folder per identity" + (f", with names like those of {style}" if style else "")


def test_domains_and_splits_of_groups_of_folders(tmp_path: Path) -> None:
    people = {
        f"{group}__m{n}": pictures(100 * n, 2) for group, n in zip(["African", "Asian"] * 3, range(6), strict=True)
    }
    found = inspect_faces(put(tmp_path, **people, African__m1=pictures(900, 3)))
    assert found.domains == {"African": 9, "Asian": 6}
    assert found.identities == 7  # whoever is called m1 in two groups is two people
    assert (
        "its 2 folders (African, Asian) are taken for domains, and the 7 folders in them for people" in found.remarks[0]
    )
    assert found.advice is not None
    assert "--set 'partition.source=\"African\"'" in found.advice.commands[0]
    other = tmp_path / "other"
    found = inspect_faces(put(other, train__n1=pictures(0, 2), test__n1=pictures(10, 2), test__n2=pictures(20, 2)))
    assert (found.splits, found.domains, found.identities) == ({"test": 4, "train": 2}, {}, 2)


def test_advice_goes_by_what_is_there(tmp_path: Path) -> None:
    many = {n: [picture(1)] * 2 for n in range(60)}
    found = inspect_faces(write_records(tmp_path / "faces.rec", insightface(many)), sample=0)
    assert found.layout == "records of MXNet (.rec)"
    assert found.advice is not None
    assert found.advice.commands == (f"personae run {tmp_path / 'faces.rec'}",)
    lonely = write_records(tmp_path / "lonely.rec", insightface({n: [picture(n)] for n in range(9)}))
    assert inspect_faces(lonely, sample=0).advice is None


def test_a_pack_is_inspected_and_checked(tmp_path: Path) -> None:
    source = put(tmp_path, ann=pictures(0, 3), bob=[*pictures(10, 2), picture(1)])
    pack_faces(source, tmp_path / "set.faces", height=16, width=16)
    found = inspect_faces(tmp_path / "set.faces")
    assert (found.layout, found.images, found.identities) == ("pack", 6, 2)
    assert found.shared == [("ann/1.png", "bob/2.png")]
    assert found.sizes == {"16 x 16": 6}


def test_on_the_command_line(tmp_path: Path) -> None:
    path = put(tmp_path, ann=pictures(0, 3), bob=[*pictures(10, 2), picture(1)])
    told = CliRunner().invoke(app, ["data", "inspect", str(path)])
    assert told.exit_code == 0
    for text in ("6 images of 2 identities", "16 x 16 (6)", "the same file: ann/1.png = bob/2.png", "2 to 3"):
        assert text in told.output
    told = CliRunner().invoke(commands, ["inspect", str(path), "--json"])
    assert json.loads(told.stdout)["shared"] == [["ann/1.png", "bob/2.png"]]
    packed = CliRunner().invoke(app, ["data", "pack", str(path), str(tmp_path / "x.faces"), "--json"])
    assert json.loads(packed.stdout)["images"] == 6


def test_all_faults_of_a_list_are_told_and_a_run_is_told_the_first(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    lines = ["0.png ann", "gone.png ann", "1.png bob", "2.png", "../3.png bob", "1.png eve", "0.png ann", "3.png bob"]
    (tmp_path / "faces.txt").write_text("\n".join(lines) + "\n")
    found = inspect_faces(tmp_path / "faces.txt")
    assert (found.images, found.identities) == (3, 2)
    told = [fault.split(", line ")[1] for fault in found.faults]
    assert [fault.split(":")[0] for fault in told] == ["4", "5", "2", "6", "7"]
    for wanted in ("has no label", "leaves the folder", "is missing", "labelled 'eve', but 'bob'", "already listed"):
        assert any(wanted in fault for fault in told), wanted
    shown = CliRunner().invoke(commands, ["inspect", str(tmp_path / "faces.txt")])
    assert shown.stdout.count("to be put right first") == 5
    with pytest.raises(DataError, match=r"line 4: '2.png' has no label"):
        pack_faces(tmp_path / "faces.txt", tmp_path / "set.faces", height=16, width=16)


@pytest.mark.parametrize("zipped", [True, False])
def test_all_images_that_a_table_names_in_vain_are_told(tmp_path: Path, zipped: bool) -> None:
    root = tmp_path / "set"
    (root / "images").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "images" / f"{name}.png").write_bytes(picture(ord(name)))
    (root / "labels.csv").write_text("path,identity\na.png,ann\nx.png,ann\nb.png,bob\ny.png,eve\n")
    if zipped:
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for file in root.rglob("*.*"):
                archive.write(file, file.relative_to(root))
        root = tmp_path / "set.zip"
    found = inspect_faces(root)
    assert (found.images, found.identities, len(found.faults)) == (2, 2, 2)
    assert "line 3" in found.faults[0]
    assert "x.png" in found.faults[0]
    assert "y.png" in found.faults[1]
    with pytest.raises(DataError, match=r"x\.png"):
        pack_faces(root, tmp_path / "set.faces", height=16, width=16)


def test_a_list_that_names_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faces.txt").write_text("gone.png ann\n")
    with pytest.raises(DataError, match=r"gone\.png is missing"):
        inspect_faces(tmp_path / "faces.txt")
