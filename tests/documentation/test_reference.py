"""The generated pages are what the code says; every key of an experiment has a meaning."""

import importlib.util
from types import ModuleType

import pytest

from pages import DOCS


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_what_the_code_says(generate: ModuleType) -> None:
    stale = [path for path, content in generate.pages().items() if (DOCS / path).read_text("utf-8") != content]
    assert stale == [], "write them anew: make reference"


def test_every_key_of_an_experiment_is_on_the_page_with_its_meaning(generate: ModuleType) -> None:
    rows = [line.split(" | ") for line in generate.experiment().splitlines() if line.startswith("| `")]
    keys = {row[0].strip("|` ") for row in rows}
    assert {"seed", "source", "clients", "embedding", "rounds", "selection", "fars", "training.lr"} <= keys
    assert [row[0] for row in rows if not row[-1].strip("| ")] == []


def test_every_command_is_on_the_page(generate: ModuleType) -> None:
    page = generate.command_line()
    for command in ("run", "serve", "data inspect", "gallery list", "evaluate"):
        assert f"\n## personae {command}\n" in page
    assert "`--resume`" in page
