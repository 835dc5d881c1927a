"""CelebA as its authors distribute it, in small files written here, and faces cut out of photographs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from personae.data import PartitionPlan, Split, open_faces
from personae.data.haar import crop_face
from personae.data.images import ImageError
from personae.errors import ConfigError, DataError
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials

NAMES = ["Male", "Young", "Eyeglasses"]


def celeba(root: Path, *, people: int = 6, images: int = 5, anno: str = "", folder: str = "img_align_celeba") -> Path:
    """Person p has images that are all of one brightness; attributes follow from p and the number of the image."""
    (root / folder).mkdir(parents=True)
    (root / anno).mkdir(exist_ok=True)
    who, what, which = [], [], []
    for place in range(people * images):
        person, name = place % people, f"{place + 1:06d}.jpg"
        Image.new("RGB", (178, 218), (30 * person, 30 * person, 30 * person)).save(root / folder / name, quality=95)
        who.append(f"{name} {1000 + person}")
        what.append(f"{name}  " + "  ".join(" 1" if truth else "-1" for truth in truths(person, place // people)))
        which.append(f"{name} {place % 3}")
    (root / anno / "identity_CelebA.txt").write_text("\n".join(who) + "\n")
    header = f"{len(what)}\n{' '.join(NAMES)} \n"
    (root / anno / "list_attr_celeba.txt").write_text(header + "\n".join(what) + "\n")
    (root / anno / "list_eval_partition.txt").write_text("\n".join(which) + "\n")
    return root


def truths(person: int, image: int) -> list[bool]:
    return [person % 2 == 0, person < 3, image == 0]


@pytest.mark.parametrize(("anno", "folder"), [("", "img_align_celeba"), ("Anno", "Img/img_align_celeba")])
def test_people_attributes_and_split_are_read(tmp_path: Path, anno: str, folder: str):
    root = celeba(tmp_path / "celeba", anno=anno, folder=folder)
    faces = open_faces(root, height=32, width=32, cache=tmp_path / "cache", as_they_are=True)
    assert faces.identities == tuple(str(1000 + person) for person in range(6))
    assert len(faces) == 30
    places = np.array([int(path[:6]) - 1 for path in faces.columns["path"]])
    assert np.array_equal(faces.identity, places % 6)
    for row, place in enumerate(places):
        assert [bool(faces.columns[name][row]) for name in NAMES] == truths(place % 6, place // 6)
        assert faces.columns["split"][row] == ("train", "val", "test")[place % 3]
    assert abs(int(faces.images(np.array([7]))[0].mean()) - 30 * int(faces.identity[7])) < 3


def test_only_the_identities_are_needed(tmp_path: Path):
    root = celeba(tmp_path / "celeba")
    (root / "list_attr_celeba.txt").unlink()
    (root / "list_eval_partition.txt").unlink()
    assert set(open_faces(root, height=32, width=32, cache=tmp_path / "cache", as_they_are=True).columns) == {"path"}


def test_an_experiment_file_divides_it_by_attributes(tmp_path: Path):
    root = celeba(tmp_path / "celeba")
    raw = {
        "name": "celeba",
        "network": {"name": "small", "height": 32, "width": 32},
        "data": {"private": {"source": str(root), "min_images": 5, "as_they_are": True}},
        "partition": {"by": "attributes", "predicates": ["Male & !Eyeglasses", "!Male & !Eyeglasses"]},
        "stages": [{"name": "train", "algorithm": {"name": "hf_maml"}}],
    }
    materials = Materials(parse_experiment(raw, "here"), Execution(cache=tmp_path / "cache"))
    men, women = materials.partition.clients
    faces = materials.private
    for client, male in ((men, True), (women, False)):
        rows = materials.partition.rows(client)
        assert len(rows) == 12  # three people of four images without glasses
        assert (faces.columns["Male"][rows] == male).all()
        assert not faces.columns["Eyeglasses"][rows].any()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda root: (root / "img_align_celeba" / "000003.jpg").unlink(), r"line 3: .*000003.jpg is missing"),
        (lambda root: cut(root / "list_attr_celeba.txt", 4), "1 image is not in it, the first is 000003.jpg"),
        (lambda root: cut(root / "list_eval_partition.txt", 0), "1 image is not in it, the first is 000001.jpg"),
        (lambda root: change(root / "list_attr_celeba.txt", " 1 ", " 7 "), "'7' is none of 1, -1"),
        (lambda root: change(root / "list_eval_partition.txt", ".jpg 2", ".jpg 3"), "'3' is none of 0, 1, 2"),
        (lambda root: change(root / "list_attr_celeba.txt", "Young", "Male"), "line 2: the names of the attributes"),
        (lambda root: change(root / "list_attr_celeba.txt", "Young ", ""), "line 3: 4 words instead of 3"),
        (lambda root: (root / "list_attr_celeba.txt").write_text(""), "line 2: the names of the attributes"),
        (lambda root: change(root / "identity_CelebA.txt", " 1000", ""), "line 1: 1 words instead of 2"),
        (lambda root: change(root / "identity_CelebA.txt", "000002.jpg", "000001.jpg"), "000001.jpg is labelled"),
        (lambda root: change(root / "identity_CelebA.txt", "000002.jpg", "../x.jpg"), "leaves the folder"),
        (lambda root: (root / "identity_CelebA.txt").write_text("\n"), "it lists no images"),
        (lambda root: (root / "identity_CelebA.txt").write_bytes(b"\xff\xfe\x00"), "not a text in UTF-8"),
        (lambda root: (root / "img_align_celeba").rename(root / "elsewhere"), "no images; put them into"),
    ],
)
def test_what_is_wrong_with_the_files_is_told(tmp_path: Path, spoil, complaint: str):
    root = celeba(tmp_path / "celeba")
    spoil(root)
    with pytest.raises(DataError, match=complaint):
        open_faces(root, height=32, width=32, cache=tmp_path / "cache")


def cut(file: Path, line: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:line] + lines[line + 1 :]))


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


def test_equal_and_lognormal_partitions_work_on_it(tmp_path: Path):
    faces = open_faces(celeba(tmp_path / "celeba"), height=32, width=32, cache=tmp_path / "cache", as_they_are=True)
    for by in ("equal", "lognormal-identities"):
        partition = PartitionPlan(by=by, clients=3, mu=3.0, sigma=3.0, new_clients=1).apply(faces, 0)
        assert sum(len(partition.rows(name)) for name in partition.clients) == len(faces)
        assert all(len(partition.rows(name, Split.TEST)) for name in partition.clients)


# ------------------------------------------------------------------------------------------------------------ cropping


def drawn_face(size: int = 96) -> Image.Image:
    """Light skin, dark eyes under dark brows, a shaded nose and a mouth: what the cascade looks for."""
    face = Image.new("L", (size, size), 90)
    draw, unit = ImageDraw.Draw(face), size / 96
    draw.ellipse([8 * unit, -4 * unit, 88 * unit, 100 * unit], fill=205)
    for left in (20, 54):
        draw.rectangle([left * unit, 30 * unit, (left + 22) * unit, 34 * unit], fill=70)
        draw.ellipse([(left + 2) * unit, 37 * unit, (left + 20) * unit, 47 * unit], fill=60)
    draw.polygon([(48 * unit, 40 * unit), (41 * unit, 62 * unit), (55 * unit, 62 * unit)], fill=180)
    draw.rectangle([34 * unit, 74 * unit, 62 * unit, 79 * unit], fill=95)
    return face


def photograph(left: int, top: int, size: int = 96) -> np.ndarray:
    picture = Image.new("L", (260, 220), 120)
    picture.paste(drawn_face(size), (left, top))
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(1.5)).convert("RGB"))


def needs_opencv() -> None:
    pytest.importorskip("cv2", reason="the extra `align` (OpenCV) is not installed")


@pytest.mark.parametrize(("left", "top"), [(20, 30), (120, 80)])
def test_the_face_is_cut_out_wherever_it_is(left: int, top: int):
    needs_opencv()
    pixels = photograph(left, top)
    found = crop_face(pixels)
    side = found.shape[0]
    assert found.shape == (side, side, 3)
    assert 64 <= side <= 128  # the drawing is 96 wide
    start = found.__array_interface__["data"][0] - pixels.__array_interface__["data"][0]  # it is a view
    row, column = start // (260 * 3), start % (260 * 3) // 3
    assert abs(column + side / 2 - (left + 48)) < 12
    assert abs(row + side / 2 - (top + 52)) < 15


def test_of_several_faces_the_largest_is_taken():
    needs_opencv()
    both = photograph(10, 20, 72).copy()
    both[90:, 120:] = photograph(10, 20, 110)[0:130, 0:140]
    assert crop_face(both).shape[0] > 90  # the smaller one alone is cut out at 80
    with pytest.raises(ImageError, match="no face was found"):
        crop_face(np.full((100, 100, 3), 128, dtype=np.uint8))


def test_a_picture_without_a_face_is_unreadable(tmp_path: Path):
    needs_opencv()
    root = celeba(tmp_path / "celeba", people=2, images=2)
    with pytest.raises(DataError, match=r"4 of 4 images cannot be used, .*no face was found in it"):
        open_faces(root, height=32, width=32, cache=tmp_path / "cache", crop="haar")


def test_cropped_faces_are_other_faces(tmp_path: Path):
    needs_opencv()
    folder = tmp_path / "people" / "ann"
    folder.mkdir(parents=True)
    Image.fromarray(photograph(20, 30)).save(folder / "1.png")
    Image.fromarray(photograph(120, 80)).save(folder / "2.png")
    Image.new("RGB", (260, 220), "grey").save(folder / "3.png")
    size = {"height": 64, "width": 64, "cache": tmp_path / "cache"}
    whole = open_faces(tmp_path / "people", **size, as_they_are=True)
    cut_out = open_faces(tmp_path / "people", **size, crop="haar", skip_unreadable=True)
    assert (len(whole), len(cut_out), cut_out.unreadable) == (3, 2, 1)
    assert whole.fingerprint != cut_out.fingerprint
    assert len(open_faces(tmp_path / "people", **size, as_they_are=True)) == 3  # both stay in the cache
    one, other = cut_out.images(np.arange(2)).astype(int)
    assert np.abs(one - other).mean() < 12  # the same face from two places; uncut they differ a lot
    uncut = whole.images(np.arange(2)).astype(int)
    assert np.abs(uncut[0] - uncut[1]).mean() > 20


def test_without_opencv_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    with pytest.raises(ConfigError, match=r'needs OpenCV; install it with: pip install "personae\[align\]"'):
        open_faces(celeba(tmp_path / "celeba"), height=32, width=32, cache=tmp_path / "cache", crop="haar")


def test_synthetic_faces_are_not_cropped():
    raw = {
        "name": "x",
        "data": {"private": {"identities": 10, "crop": "haar"}},
        "partition": {"clients": 2},
        "stages": [{"name": "train", "algorithm": {"name": "fedpe"}}],
    }
    with pytest.raises(ConfigError, match="crop does not go with synthetic faces"):
        parse_experiment(raw, "here")
