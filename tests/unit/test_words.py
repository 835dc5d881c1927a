"""Numbers agree with their nouns, in the helper and in what a user sees, and English is plain."""

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from personae import DataError, PartitionPlan, open_faces
from personae.cli import app
from personae.words import counted, number_of_images


def test_one_and_many() -> None:
    assert [counted(n, "image") for n in (0, 1, 2, 1200)] == ["0 images", "1 image", "2 images", "1,200 images"]
    assert [counted(n, "identity") for n in (1, 2)] == ["1 identity", "2 identities"]
    assert [counted(n, "person", "people") for n in (1, 2)] == ["1 person", "2 people"]


def test_how_many_images() -> None:
    assert [number_of_images(least, None) for least in (1, 5)] == ["", "5 images or more"]
    assert [number_of_images(least, 4) for least in (1, 2, 4)] == ["at most 4 images", "2 to 4 images", "4 images"]
    assert number_of_images(1, 1) == "1 image"


@pytest.fixture
def one_person(tmp_path: Path) -> Path:
    folder = tmp_path / "faces" / "ann"
    folder.mkdir(parents=True)
    Image.new("RGB", (112, 112), "white").save(folder / "1.png")
    return folder.parent


def test_a_set_of_one_image(one_person: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["data", "inspect", str(one_person)], env={"COLUMNS": "200"}).stdout
    assert "1 image of 1 identity; 1 was looked at" in told
    pack = CliRunner().invoke(app, ["data", "pack", str(one_person), str(tmp_path / "one.faces")]).stdout
    assert "1 image of 1 identity," in pack


def test_a_partition_among_one_client(one_person: Path, tmp_path: Path) -> None:
    faces = open_faces(str(one_person), height=8, width=8, cache=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="1 identity is too few for 2 clients"):
        PartitionPlan(clients=2, min_images=1).apply(faces, 0)


def test_a_forecast_of_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "one.toml").write_text(
        'name = "one"\npartition = { clients = 1 }\nnetwork = { height = 32, width = 32, embedding = 8 }\n'
        "data.private = { identities = 1, images = 5 }\n"
        '[[stages]]\nname = "federate"\nalgorithm = { name = "fedpe" }\n'
    )
    told = CliRunner().invoke(app, ["run", "one.toml", "--dry-run"]).stdout
    assert "1 client, 1 identity\n" in told
    assert "3 training images and 1 test image," in told


INSTEAD = {  # constructions that came up often, and what to write
    r"(?<!may )\bbe it\b(?! was)": "such as",
    r"\bwhereby\b|\bwherein\b|\bthereof\b|\btherein\b|\bthereby\b|\bhenceforth\b|\blest\b": "a second sentence",
    r"\bhence\b": "so",
    r"\banew\b": "again",
    r"\bone's own\b": "your own",
    r"\bso much for\b|\bwhat is to last\b": "what you mean",
    r"\ba row each\b": "one row each",
    r"\b(a|one|two|\d+) (line|file|row|page|path|column|person|image|point|number)s? an? "
    r"(line|file|row|image|round|client|person|class|pair|method|metric|protocol|benchmark|event|paper)\b": "per",
    r"\b(two|\d+) an? pair\b": "per pair",
}
ROOT = Path(__file__).parents[2]


def _written() -> list[Path]:
    """What people read, and the source that references are made of; the notebook is a diary and stays as it was."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    source = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".toml", ".html")]
    return [path for path in (*pages, *source) if "notebook" not in path.parts]


@pytest.mark.parametrize(("archaic", "instead"), INSTEAD.items())
def test_english_is_plain(archaic: str, instead: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]}"
        for path in _written()
        for text in [path.read_text(encoding="utf-8")]
        for hit in re.finditer(archaic, text)
    ]
    assert found == [], f"write {instead}"


def test_pages_name_people_and_parties() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in _written() if path.suffix == ".md"}
    assert [path.name for path, text in pages.items() if re.search(r"\bwhoever\b", text, re.IGNORECASE)] == []
