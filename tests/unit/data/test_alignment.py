"""Photographs to aligned faces: by landmarks from a file and by the detector, once or in several goes."""

import csv
import importlib.util
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from facefiles import insightface, picture, write_records
from personae.cli import app
from personae.data import FaceSet, aligned, detection, open_faces, synthetic_faces
from personae.data.align import TEMPLATE, similarity, template, warp
from personae.data.aligned import align_faces, read_landmarks
from personae.errors import ConfigError, DataError
from personae.progress import Advance

POINTS = TEMPLATE * 0.5 + [20, 10]


def put(root: Path, count: int = 3) -> tuple[Path, Path]:
    """Photographs of two people, and landmarks of all but the last."""
    lines = []
    for number in range(count):
        file = root / "faces" / ("ann" if number % 2 else "bob") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number, size=96))
        points = " ".join(f"{value:.3f}" for value in (POINTS + number).ravel())
        lines.append(f"{file.parent.name}/{file.name} {points}")
    (root / "landmarks.txt").write_text("\n".join(lines[:-1]) + "\n")
    return root / "faces", root / "landmarks.txt"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("height", "width"), [(112, 112), (112, 96)])
def test_landmarks_from_a_file(tmp_path: Path, height: int, width: int) -> None:
    faces, landmarks = put(tmp_path)
    done = align_faces(faces, tmp_path / "out", landmarks=landmarks, height=height, width=width)
    assert (done.images, done.aligned, done.misses) == (3, 2, [("bob/2.png", "no landmarks are given")])
    read = open_faces(tmp_path / "out", height=height, width=width, cache=tmp_path / "cache")
    assert sorted(read.columns["path"].tolist()) == ["ann/1.png.jpg", "bob/0.png.jpg"]
    assert read.identities == ("ann", "bob")
    for row, path in enumerate(read.columns["path"].tolist()):
        number = int(path.split("/")[1][0])
        photo = np.asarray(Image.open(faces / path.removesuffix(".jpg")))
        expected = warp(photo, similarity(POINTS + number, template(height, width)), height, width)
        apart = np.abs(read.images(np.array([row]))[0].astype(int) - expected)
        assert apart.mean() < 2  # what JPEG of quality 95 costs
    assert "bob/2.png,no landmarks are given" in (tmp_path / "out" / "misses.csv").read_text()


def test_everything_that_was_known_is_kept(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("images/a.png", picture(1, size=96))
        archive.writestr("images/b.jpg", picture(2, "JPEG", size=96))
        archive.writestr("labels.csv", 'path,identity,domain,Male\na.png,"ann, the first",day,1\nb.jpg,bob,night,0\n')
    numbers = ",".join(map(str, POINTS.ravel()))
    (tmp_path / "points.csv").write_text(f"a.png,{numbers}\nb.jpg,{numbers}\n")
    align_faces(tmp_path / "set.zip", tmp_path / "out", landmarks=tmp_path / "points.csv")
    read = open_faces(tmp_path / "out", height=112, width=112, cache=tmp_path / "cache")
    assert read.identities == ("ann, the first", "bob")
    assert read.columns["Male"].tolist() == [True, False]
    assert read.columns["domain"].tolist() == ["day", "night"]
    assert read.columns["path"].tolist() == ["a.png.jpg", "b.jpg"]


def test_landmark_files_of_the_field(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    ten = " ".join(map(str, range(10)))
    wanted = np.arange(10.0).reshape(5, 2)
    file.write_text(f"2\nlefteye_x lefteye_y righteye_x\n000001.jpg {ten}\n000002.jpg   {ten}\n\n")  # CelebA
    assert list(read_landmarks(file)) == ["000001.jpg", "000002.jpg"]
    np.testing.assert_array_equal(read_landmarks(file)["000002.jpg"], wanted)
    file.write_text(f"data/African/m.0/1.jpg\t7\t{ten}\n")  # RFW, with a label
    np.testing.assert_array_equal(read_landmarks(file)["data/African/m.0/1.jpg"], wanted)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a.jpg 1 2 3\n" * 3, "line 3: not a path and ten numbers"),
        ("a.jpg" + " nan" * 10, "has no line with a path and ten numbers"),
        ("../a.jpg" + " 1" * 10, "line 1: the path '../a.jpg' leaves the folder"),
        ("", "has no line"),
        (b"\xff\xfe", "not text in UTF-8"),
        (None, "cannot be read (No such file"),
    ],
)
def test_bad_landmark_files(tmp_path: Path, text: str | bytes | None, complaint: str) -> None:
    file = tmp_path / "list.txt"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=r"list.txt") as told:
        read_landmarks(file)
    assert complaint in str(told.value)


class Stop(Exception):
    pass


def stopping_after(images: int):
    @contextmanager
    def meter(description: str, total: int, unit: str) -> Iterator[Advance]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if done >= images:
                raise Stop

        yield advance

    return meter


def test_who_stops_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned, "_AT_ONCE", 2)
    faces, landmarks = put(tmp_path, 9)
    align_faces(faces, tmp_path / "whole", landmarks=landmarks)
    for stop in (2, 4, 6):
        with pytest.raises(Stop):
            align_faces(faces, tmp_path / "parts", landmarks=landmarks, progress=stopping_after(2))
        assert not (tmp_path / "parts" / "labels.csv").exists()
        assert len((tmp_path / "parts" / "alignment.jsonl").read_text().splitlines()) == 1 + stop
    with (tmp_path / "parts" / "alignment.jsonl").open("a") as journal:
        journal.write('{"path": "ann/7.png", "scor')  # killed in the middle of a line
    (tmp_path / "parts" / "images" / "ann" / "1.png.jpg").unlink()  # lost, and done again
    done = align_faces(faces, tmp_path / "parts", landmarks=landmarks)
    assert (done.images, done.aligned, done.resumed) == (9, 8, 5)
    parts, whole = content(tmp_path / "parts"), content(tmp_path / "whole")
    journals = [sorted(set(files.pop("alignment.jsonl").splitlines())) for files in (parts, whole)]
    assert parts == whole
    assert journals[0] == journals[1]
    again = align_faces(faces, tmp_path / "parts", landmarks=landmarks)
    assert again.resumed == 9
    assert content(tmp_path / "parts").keys() == {*parts, "alignment.jsonl"}


def test_other_options_or_images_need_another_folder(tmp_path: Path) -> None:
    faces, landmarks = put(tmp_path)
    align_faces(faces, tmp_path / "out", landmarks=landmarks)
    with pytest.raises(ConfigError, match="out: was begun with other images or options"):
        align_faces(faces, tmp_path / "out", landmarks=landmarks, width=96)
    landmarks.write_text(landmarks.read_text().replace(" 3", " 4"))
    with pytest.raises(ConfigError, match="out: was begun with other images or options"):
        align_faces(faces, tmp_path / "out", landmarks=landmarks)
    with pytest.raises(ConfigError, match="has other things in it"):
        align_faces(faces, tmp_path, landmarks=landmarks)
    with pytest.raises(ConfigError, match="lies in"):
        align_faces(faces, faces / "out", landmarks=landmarks)
    with pytest.raises(ConfigError, match="is not a folder"):
        align_faces(faces, landmarks, landmarks=landmarks)
    (tmp_path / "out" / "alignment.jsonl").write_text("no journal\n")
    with pytest.raises(DataError, match=r"alignment.jsonl: not a journal"):
        align_faces(faces, tmp_path / "out", landmarks=landmarks)


def test_unreadable_photographs_are_misses(tmp_path: Path) -> None:
    faces, landmarks = put(tmp_path)
    (faces / "bob" / "0.png").write_bytes(b"bad")
    done = align_faces(faces, tmp_path / "out", landmarks=landmarks)
    assert ("bob/0.png", "not a JPEG, PNG, BMP, WebP, GIF, TIFF or HEIC image") in done.misses
    (tmp_path / "none.txt").write_text("ghost.png" + " 1" * 10)
    with pytest.raises(DataError, match=r"faces: no face could be aligned, the first is ann/1.png \(no landmarks"):
        align_faces(faces, tmp_path / "none", landmarks=tmp_path / "none.txt")


def test_records_have_names_too(tmp_path: Path) -> None:
    file = write_records(tmp_path / "train.rec", insightface({0: [picture(1, size=96)], 1: [picture(2, size=96)]}))
    points = " ".join(map(str, POINTS.ravel()))
    (tmp_path / "points.txt").write_text(f"1 {points}\n2 {points}\n")
    align_faces(file, tmp_path / "out", landmarks=tmp_path / "points.txt")
    assert open_faces(tmp_path / "out", height=112, width=112, cache=tmp_path / "cache").identities == ("0", "1")


def scenes(root: Path) -> FaceSet:
    """Two photographs of each of six people, with room around the face."""
    if importlib.util.find_spec("mtcnn") is None:
        pytest.skip("the extra `align` is not installed")
    people = synthetic_faces(identities=6, images=2, size=160, cache=root / "cache")
    for row, pixels in enumerate(people.images(np.arange(12))):
        file = root / "faces" / people.identities[people.identity[row]] / f"{row}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        scene = np.full((240, 320, 3), 120, np.uint8)
        scene[40:200, 80:240] = pixels
        Image.fromarray(scene).save(file, quality=95)
    return people


def test_by_detection(tmp_path: Path) -> None:
    people = scenes(tmp_path)
    blank = tmp_path / "faces" / people.identities[0] / "blank.jpg"
    Image.new("RGB", (200, 200), "grey").save(blank)
    told = CliRunner().invoke(app, ["data", "align", str(tmp_path / "faces"), str(tmp_path / "out"), "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert report["images"] == 13
    assert report["aligned"] >= 10
    assert [f"{people.identities[0]}/blank.jpg", "no face was found"] in report["misses"]
    # What is aligned now has its landmarks where they belong.
    faces = open_faces(tmp_path / "out", height=112, width=112, cache=tmp_path / "cache")
    found = [
        detection.main_face(each, 112, 112) for each in detection.find_faces(list(faces.images(np.arange(10))), 0.5)
    ]
    apart = [np.abs(face.landmarks - TEMPLATE).mean() for face in found if face is not None]
    assert len(apart) >= 8
    assert np.median(apart) < 4


def test_faces_that_score_too_little_are_misses_with_their_score(tmp_path: Path) -> None:
    scenes(tmp_path)

    def align(to: str, *options: str) -> dict:
        told = CliRunner().invoke(
            app, ["data", "align", str(tmp_path / "faces"), str(tmp_path / to), "--json", *options]
        )
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)

    every = align("every", "--min-score", "0")
    entries = [json.loads(line) for line in (tmp_path / "every" / "alignment.jsonl").read_text().splitlines()[1:]]
    scores = {entry["path"]: entry["score"] for entry in entries if "score" in entry}
    assert every["aligned"] == len(scores) >= 10
    least = sorted(scores.values())[3] - 1e-4
    low = {path for path, score in scores.items() if score < least}
    assert 0 < len(low) <= 3
    strict = align("strict", "--min-score", f"{least:.6f}")
    missed = {path: why for path, why in strict["misses"] if path in scores}
    assert missed
    assert set(missed) <= low  # one that scores more with a margin around it is aligned
    assert strict["aligned"] == len(scores) - len(missed)
    with (tmp_path / "strict" / "misses.csv").open(newline="") as table:
        listed = {row["path"]: row["why"] for row in csv.DictReader(table)}
    for path, why in missed.items():
        assert listed[path] == why
        assert f"scores {least:g}" in why
        assert float(why.rsplit(" ", 1)[1]) < least


def test_an_unlikely_face_does_not_hide_a_likely_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = detection.Face(np.array([0, 0, 96, 96.0]), 0.72, POINTS + 9)  # larger, and in the middle
    person = detection.Face(np.array([0, 0, 50, 50.0]), 0.99, POINTS)
    queue = [[wall], [wall, person], [], [wall], []]  # of ann/1, bob/0 and bob/2; then of those without a face again
    monkeypatch.setattr(detection, "find_faces", lambda images, margin: [queue.pop(0) for _ in images])
    monkeypatch.setattr(detection, "require", lambda: None)
    faces, _ = put(tmp_path)
    told = CliRunner().invoke(app, ["data", "align", str(faces), str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    assert "1 of 3 images aligned" in told.output
    assert (tmp_path / "out" / "misses.csv").read_text().splitlines()[1:] == [
        "ann/1.png,no face was found that scores 0.8: the likeliest has 0.720",
        "bob/2.png,no face was found",
    ]
    entry = json.loads((tmp_path / "out" / "alignment.jsonl").read_text().splitlines()[2])
    assert (entry["path"], entry["score"]) == ("bob/0.png", 0.99)


def test_a_tight_crop_is_looked_at_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margins = []

    def find(images: list, margin: float) -> list:
        margins.append((len(images), margin))
        face = detection.Face(np.array([0, 0, 90, 90.0]), 0.9, POINTS)
        return [[face] if margin > 0.3 or index == 0 else [] for index in range(len(images))]

    monkeypatch.setattr(detection, "find_faces", find)
    monkeypatch.setattr(detection, "require", lambda: None)
    faces, _ = put(tmp_path)
    done = align_faces(faces, tmp_path / "out", margin=0.1)
    assert margins == [(3, 0.1), (2, 0.6)]
    assert (done.aligned, done.second_look) == (3, 2)


def test_large_photographs_come_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def find(images: list, margin: float) -> list:
        sizes.append(len(images))
        return [[detection.Face(np.array([0, 0, 90, 90.0]), 0.9, POINTS)] for _ in images]

    monkeypatch.setattr(detection, "find_faces", find)
    monkeypatch.setattr(detection, "require", lambda: None)
    monkeypatch.setattr(aligned, "_PIXELS_AT_ONCE", 96 * 96)
    align_faces(put(tmp_path, 5)[0], tmp_path / "out")
    assert sizes == [2, 2, 1]


def test_packs_and_margins_that_make_no_sense(tmp_path: Path) -> None:
    from personae.data import pack_faces

    faces, landmarks = put(tmp_path)
    pack_faces(faces, tmp_path / "set.faces", height=8, width=8)
    with pytest.raises(DataError, match=r"set.faces: a pack holds faces at one size"):
        align_faces(tmp_path / "set.faces", tmp_path / "out")
    with pytest.raises(ConfigError, match="a margin of -1"):
        align_faces(faces, tmp_path / "out", landmarks=landmarks, margin=-1)
