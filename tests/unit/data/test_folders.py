"""Folders as people have them: nested, with phones' photographs and other things in between, empty, in levels."""

import csv
import io
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from facefiles import picture
from personae.cli import app
from personae.data import images, open_faces, pack_faces, synthetic_faces
from personae.data.images import decode
from personae.data.readers import read_listing
from personae.errors import ConfigError, DataError
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.faces import own_faces
from personae.models import Network
from personae.models.weights import save_weights
from personae.recognition.gallery import Gallery


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all tests here: what recipes render takes longer than the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def put(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def tell(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def inspected(*words: object) -> dict:
    told = tell("data", "inspect", "--json", *words)
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif", reason="the extra `heic` is not installed").register_heif_opener()
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def views(root: Path, people: int) -> Path:
    """Photographs of synthetic people, in a folder for each view."""
    faces = synthetic_faces(identities=people, images=4, size=32, cache=root / "rendered")
    for row, pixels in enumerate(faces.images(np.arange(len(faces)))):
        folder = root / "photographs" / f"{faces.identity[row] + 1:03}" / ("frontal", "profile")[row % 2]
        put(folder / f"{row}.jpg", encoded(Image.fromarray(pixels), "JPEG"))
    return root / "photographs"


def test_views_of_a_person_are_of_one_person(tmp_path: Path) -> None:
    path = views(tmp_path, 5)
    found = inspected(path)
    assert (found["identities"], found["images"], found["domains"]) == (5, 20, {})
    assert any(
        "its 5 folders are taken for people: those in them have the same names (frontal, profile)" in remark
        for remark in found["remarks"]
    )
    points = "\n".join(f"{file.relative_to(path)} {' 9 20 21 20 15 25 10 28 20 28'}" for file in path.rglob("*.jpg"))
    (tmp_path / "points.txt").write_text(points)
    told = tell("data", "align", path, tmp_path / "aligned", "--landmarks", tmp_path / "points.txt")
    assert told.exit_code == 0, told.output
    assert "its 5 folders are taken for people" in told.output
    with (tmp_path / "aligned" / "labels.csv").open(newline="") as table:
        assert {row["identity"] for row in csv.DictReader(table)} == {"001", "002", "003", "004", "005"}
    assert inspected(path, "--identity-level", "last")["identities"] == 10
    assert inspected(path, "--identity-level", "first")["remarks"] == []


@pytest.mark.parametrize(
    ("folders", "level", "identities", "domains"),
    [
        (["a/x", "b/x", "c/x", "c/y"], "first", 3, None),
        (["a/2019", "a/2020", "b/2020", "c/2019", "d/2019"], "first", 4, None),
        (
            ["day/ann", "day/bob", "day/cid", "day/dan", "night/ann", "night/bob", "night/cid", "night/dan"],
            "last",
            8,
            2,
        ),
        (["African/a", "African/b", "Asian/c", "Asian/d"], "last", 4, 2),
        (["train/ann", "train/bob", "test/ann"], "first", 2, None),
        (["train/ann/x", "train/ann/y", "train/bob/x", "test/cid/x", "test/cid/y"], "first", 3, None),
        (["ann", "bob", "bob/old"], "first", 2, None),
        (["ann", "bob"], "first", 2, None),
    ],
)
def test_which_level_is_the_identity(
    tmp_path: Path, folders: list[str], level: str, identities: int, domains: int | None
) -> None:
    for number, folder in enumerate(folders):
        put(tmp_path / "set" / folder / f"{number}.png", picture(number))
    listing = read_listing(tmp_path / "set")
    assert len(set(listing.labels)) == identities
    assert ("domain" in listing.columns) == (domains is not None) == (level == "last")
    if domains:
        assert len(set(listing.columns["domain"].tolist())) == domains
    assert ("split" in listing.columns) == folders[0].startswith("train")
    nested = any("/" in folder.removeprefix("train/").removeprefix("test/") for folder in folders)
    assert len(listing.remarks) == nested  # whatever was decided is said


@pytest.mark.parametrize(
    ("folders", "complaint"),
    [
        (["ann/x", "ann/y", "bob/x", "bob/y"], '"first" makes 2 people and "last" 4'),
        (["photos/ann", "photos/bob"], '"first" makes 1 person and "last" 2, or give photos in it'),
        (["ann", "more/bob", "more/cid"], "some folders hold images and others (more) hold folders"),
        (["a/b/c", "a/b/d", "b/b/c"], "folders (a, b) hold folders that hold folders"),
        (["ann/2019", "bob/2020", "cid/holiday"], '"first" makes 3 people and "last" 3'),
    ],
)
def test_what_cannot_be_told_is_asked(tmp_path: Path, folders: list[str], complaint: str) -> None:
    for number, folder in enumerate(folders):
        put(tmp_path / "set" / folder / f"{number}.png", picture(number))
    with pytest.raises(DataError) as told:
        open_faces(tmp_path / "set", height=8, width=8, cache=tmp_path / "cache")
    assert complaint in str(told.value)
    assert "--identity-level" in str(told.value)
    found = inspected(tmp_path / "set")
    assert complaint in found["faults"][0]
    assert found["images"] == len(folders)
    assert found["advice"] is None
    for level in ("first", "last"):
        assert read_listing(tmp_path / "set", identity_level=level).faults == ()


def test_every_command_reads_people_alike_and_says_so_once(tmp_path: Path) -> None:
    path = views(tmp_path, 6)
    put(path / "001" / "frontal" / "film.mov", b"")
    model, network = tmp_path / "model.safetensors", Network(name="small", embedding=16, height=32, width=32)
    save_file(network.build().state_dict(), model)
    commands = {
        "run": ("run", "quick", "--dry-run", "--set", f"data.private.source={path}", "--set", "partition.clients=2"),
        "evaluate": ("evaluate", model, "--on", path, "--json", "--resamples", 0),
        "partition": ("partition", path, "--clients", 2, "--plot", tmp_path / "plot.png", "--json"),
        "pack": ("data", "pack", path, tmp_path / "first.faces", "--json"),
        "inspect": ("data", "inspect", path),
        "enroll": ("enroll", path, "--model", model, "--gallery", tmp_path / "known", "--threshold", 0.5),
    }
    for name, command in commands.items():
        told = tell(*command)
        assert told.exit_code == 0, told.output
        assert told.output.count("its 6 folders are taken for people") == 1, name
        assert told.output.count("1 file is left out (1 MOV)") == 1, name
    assert "2 clients, 6 identities" in tell(*commands["run"]).output
    assert "2 clients, 12 identities" in tell(*commands["run"], "--identity-level", "last").output
    assert "2 clients, 12 identities" in tell(*commands["run"], "--set", "data.private.identity_level=last").output
    assert json.loads(tell(*commands["pack"][:3], tmp_path / "x", "--json").stdout)["identities"] == 6
    with Gallery.open(tmp_path / "known") as known:
        assert len(known.people()) == 6
    told = tell("enroll", path / "001", "--name", "Ann", *commands["enroll"][2:])
    assert told.exit_code == 0, told.output
    assert "1 file is left out (1 MOV)" in told.output
    with Gallery.open(tmp_path / "known") as known:
        assert known.people()["Ann"] == 4  # of both views
    remarks: list[str] = []
    experiment = load_experiment("quick", [f"data.private.source={path}"])
    held = own_faces(path, experiment, Execution(notify=remarks.append))  # as `join` reads them
    assert len(held.held.faces.identities) == 6
    assert len(remarks) == 2


def test_a_level_is_asked_of_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.png ann\n")
    put(tmp_path / "a.png", picture(1))
    with pytest.raises(ConfigError, match=r"identity_level is for folders of people, not for text list"):
        read_listing(tmp_path / "list.txt", identity_level="first")


def messy(root: Path) -> Path:
    """An office's photographs: everything that is odd about them at once."""
    photo = Image.open(io.BytesIO(picture(1, size=64)))
    turned = Image.Exif()
    turned[0x0112] = 6
    put(root / "Zoë Ångström" / "1.jpg", encoded(photo, "JPEG"))
    put(root / "Zoë Ångström" / "2.jpg", encoded(photo.rotate(90), "JPEG", exif=turned))
    put(root / "bob" / "grey.png", encoded(photo.convert("L").rotate(180), "PNG"))
    put(root / "bob" / "print.jpg", encoded(photo.convert("CMYK").rotate(270), "JPEG"))
    put(root / "bob" / "copy.jpg", encoded(photo, "JPEG"))
    put(root / "bob" / "strip.png", encoded(photo.resize((300, 20)), "PNG"))
    put(root / "cid" / "broken.jpg", encoded(photo, "JPEG")[:200])
    put(root / "cid" / "old" / "scan.tiff", encoded(photo.transpose(Image.Transpose.FLIP_TOP_BOTTOM), "TIFF"))
    put(root / "cid" / "wink.gif", encoded(photo.resize((40, 40)), "GIF"))
    put(root / "cid" / "phone.HEIC", b"\0\0\0\x1cftypheic")
    put(root / "cid" / "phone.mov", b"film")
    put(root / "notes.txt", b"notes")
    put(root / "group.jpg", encoded(photo.resize((80, 60)), "JPEG"))
    (root / "dan" / "empty").mkdir(parents=True)
    (root / ".hidden").mkdir()
    return root


def test_inspect_tells_everything_that_is_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "reads_heic", lambda: False)
    monkeypatch.setattr("personae.data.readers.tree.reads_heic", lambda: False)
    told = tell("data", "inspect", messy(tmp_path / "office"))
    assert told.exit_code == 0, told.output
    for text in (
        "9 images of 3 identities",
        "group.jpg: an image outside of any identity's folder; move it to",
        "3 files are left out (1 HEIC, 1 MOV, 1 TXT); HEIC takes pip install 'personae[heic]'",
        "1 folder has no images and is ignored: dan",
        "what is in folders in a person's folder (cid/old) is taken for the person's",
        "images that cannot be used: 1;",
        "cannot be used: cid/broken.jpg (truncated)",
        "files under two identities: 1;",
        "the same file: Zoë Ångström/1.jpg = bob/copy.jpg",
        "formats: JPEG 4, PNG 2, GIF 1, TIFF 1",
        "colours: RGB 5, ",
        "grey 1",
        "CMYK 1",
        "odd sizes: bob/strip.png (300 x 20)",
        "photographs that their camera says to turn: 1",
    ):
        assert text in told.output, text
    json_form = inspected(tmp_path / "office")
    assert json_form["formats"] == {"JPEG": 4, "PNG": 2, "TIFF": 1, "GIF": 1}
    assert len(json_form["faults"]) == 1


def test_what_is_left_out_is_said_when_photographs_are_aligned(tmp_path: Path) -> None:
    path = messy(tmp_path / "office")
    (path / "group.jpg").unlink()
    (tmp_path / "points.txt").write_text("Zoë 1\nZoë 1\nbob/copy.jpg 9 20 21 20 15 25 10 28 20 28\n")
    told = tell("data", "align", path, tmp_path / "out", "--landmarks", tmp_path / "points.txt")
    assert told.exit_code == 0, told.output
    assert told.output.count("are left out (") == 1
    assert "1 MOV, 1 TXT" in told.output
    assert "no images and is ignored: dan" in told.output


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "HEIF"])
def test_photographs_of_scanners_and_phones_are_read(tmp_path: Path, kind: str) -> None:
    photo = Image.new("RGB", (32, 32), (200, 100, 50))
    suffix = {"HEIF": "HEIC"}.get(kind, kind)
    put(tmp_path / "set" / "ann" / f"1.{suffix}", encoded(photo, kind))
    put(tmp_path / "set" / "bob" / "1.png", picture(1, size=32))
    faces = open_faces(tmp_path / "set", height=16, width=16, cache=tmp_path / "cache")
    assert np.abs(faces.images(np.array([0]))[0].astype(int) - (200, 100, 50)).max() < 6
    assert inspected(tmp_path / "set")["formats"] == {kind: 1, "PNG": 1}


@pytest.mark.parametrize("kind", ["TIFF", "HEIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_they_stand_upright(kind: str, orientation: int) -> None:
    photo = Image.new("RGB", (32, 32), "white")
    photo.paste("black", (0, 0, 32, 16))
    tag = Image.Exif()
    tag[0x0112] = orientation
    expected = {1: photo, 3: photo.rotate(180), 6: photo.rotate(270), 8: photo.rotate(90)}[orientation]
    found = decode(encoded(photo, kind, exif=tag.tobytes()), 32, 32, upright=True)
    assert np.abs(found[::8, ::8].astype(int) - np.asarray(expected)[::8, ::8]).max() < 60


def test_heic_without_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "reads_heic", lambda: False)
    put(tmp_path / "phone.heic", b"\0\0\0\x1cftypheic")
    (tmp_path / "list.txt").write_text("phone.heic ann\n")
    with pytest.raises(DataError, match=r"phone.heic \(HEIC takes pip install 'personae\[heic\]'\)"):
        open_faces(tmp_path / "list.txt", height=8, width=8, cache=tmp_path / "cache")
    monkeypatch.setattr("personae.data.readers.tree.reads_heic", lambda: False)
    put(tmp_path / "set" / "ann" / "1.heic", b"")
    with pytest.raises(DataError, match=r"no images .+; 1 file is left out \(1 HEIC\); HEIC takes pip install"):
        open_faces(tmp_path / "set", height=8, width=8, cache=tmp_path / "cache")


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    put(tmp_path / "set" / "ann" / "1.png", picture(1))
    put(tmp_path / "set" / "bob" / "1.png", picture(2))
    (tmp_path / "set" / "bob" / "again").symlink_to(tmp_path / "set")
    listing = read_listing(tmp_path / "set")
    assert listing.paths == ("ann/1.png", "bob/1.png")
    assert any("1 folder has no images and is ignored: bob/again" in remark for remark in listing.remarks)


def test_folders_without_end_are_one_line(tmp_path: Path) -> None:
    put(tmp_path / "set" / "ann" / "1.png", picture(1))
    (tmp_path / "set" / "/".join("d" * 120)).mkdir(parents=True)
    with pytest.raises(DataError, match="folders in more than 100 folders"):
        read_listing(tmp_path / "set")


def test_a_folder_of_images_without_people_is_inspected_too(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "heap" / f"{number}.png", picture(number))
    put(tmp_path / "heap" / "copy.png", picture(1))
    put(tmp_path / "heap" / "film.mov", b"")
    told = tell("data", "inspect", tmp_path / "heap")
    assert told.exit_code == 0, told.output
    for text in ("4 images of 0 identities", "nobody says who is on the images", "1 file is left out (1 MOV)"):
        assert text in told.output
    assert f"personae cluster MODEL --on {tmp_path}/heap" in told.output
    assert inspected(tmp_path / "heap")["repeated"] == 1
    assert tell("data", "pack", tmp_path / "heap", tmp_path / "heap.faces", "--unlabelled").exit_code == 0
    assert inspected(tmp_path / "heap.faces")["identities"] == 0


def test_a_data_set_one_level_further_down(tmp_path: Path) -> None:
    put(tmp_path / "download" / "faces" / "images" / "a.png", picture(1))
    (tmp_path / "download" / "faces" / "labels.csv").write_text("path,identity\na.png,ann\n")
    found = inspected(tmp_path / "download")
    assert found["faults"][-1].endswith(
        f"in faces it is laid out as images/ and labels.csv; give {tmp_path / 'download' / 'faces'}"
    )


@pytest.mark.parametrize("shape", ["few", "many", "domains", "pack", "unaligned", "broken"])
def test_what_inspect_recommends_runs_as_it_is_printed(tmp_path: Path, shape: str) -> None:
    root = tmp_path / "my faces"
    for person in range(44 if shape == "many" else 6):
        for number in range(3):
            folder = f"{'AB'[person % 2]}/p{person}" if shape == "domains" else f"p{person}"
            put(
                root / folder / f"{number}.png",
                picture(10 * person + number, size=24 + (shape == "unaligned") * number),
            )
    if shape == "broken":
        put(root / "p0" / "broken.png", b"bad")
    if shape == "pack":
        assert tell("data", "pack", root, tmp_path / "set.faces", "--height", 32, "--width", 32).exit_code == 0
        root = tmp_path / "set.faces"
    commands = inspected(root)["advice"]["commands"]
    printed = tell("data", "inspect", root).output
    assert all(command in printed for command in commands)
    if shape == "unaligned":
        align, command = map(shlex.split, commands)
        assert align == ["personae", "data", "align", str(root), f"{root}-aligned"]
        root.rename(tmp_path / "photographs")
        for file in (tmp_path / "photographs").rglob("*.png"):  # aligned, for all that matters here
            name = file.relative_to(tmp_path / "photographs")
            put(tmp_path / "my faces-aligned" / name, encoded(Image.open(file).resize((24, 24)), "PNG"))
    else:
        (command,) = map(shlex.split, commands)
    assert command[:2] == ["personae", "run"]
    assert ("MODEL" in command) == (shape not in ("many", "domains"))
    if "MODEL" in command:
        network = Network(name="small", embedding=8, height=32, width=32)
        command[command.index("MODEL")] = str(tmp_path / "model.safetensors")
        save_weights(tmp_path / "model.safetensors", network, network.build().state_dict())
    told = tell(*command[1:], "--dry-run", "--workers", 1)
    assert told.exit_code == 0, told.output
    assert "clients" in told.output


def test_names_that_are_no_text_are_shown_by_their_codes(tmp_path: Path) -> None:
    """Disks of other systems have names in other encodings; nothing that is written down may fail by them."""
    source = tmp_path / "faces"
    for person in (b"Andr\xe9", b"Ann"):
        for number in range(2):
            put(Path(os.fsdecode(os.fsencode(source) + b"/%s/%d\xff.jpg" % (person, number))), picture(number))
    put(Path(os.fsdecode(os.fsencode(source) + b"/Ann/broken\xff.jpg")), b"no image")
    with pytest.raises(DataError, match=r"1 of 5 images cannot be used"):
        open_faces(source, height=8, width=8)
    faces = open_faces(source, height=8, width=8, skip_unreadable=True)
    assert faces.identities == ("Andr\\udce9", "Ann")
    assert "Ann/0\\udcff.jpg" in faces.columns["path"].tolist()
    pack_faces(source, tmp_path / "set.faces", height=8, width=8, skip_unreadable=True)
    assert open_faces(tmp_path / "set.faces", height=8, width=8).fingerprint == faces.fingerprint
