"""What the pages tell a reader to type is valid: commands and their options, experiments, Python."""

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from pages import DOCS, PAGES, ROOT, SMALL, blocks, commands, name_of
from personae import load_experiment, run_experiment
from personae.cli import app
from personae.core.registry import references
from personae.experiment.config import load_variants, parse_experiment
from personae.experiment.recipes import recipes

GUESTS = {DOCS / "extending.md", DOCS / "tutorials" / "write-an-algorithm.md"}  # whose experiments other tests run
GROUP: Any = typer.main.get_command(app)
DEFINITION = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.If)  # runs no work when imported
PLACEHOLDER = re.compile(r"^[A-Z|\[\]=]+$")


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that `personae WORDS` calls, and its arguments."""
    command, rest = GROUP, words
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            return command, rest
        assert rest[0] in command.commands, f"there is no command {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_line_parses(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        command, arguments = command_of(shlex.split(line)[1:])
        context = click.Context(command)
        values, left, _ = command.make_parser(context).parse_args(args=list(arguments))  # refuses unknown options
        assert left == [], line
        for parameter in command.params:
            given = values.get(parameter.name)
            if isinstance(parameter.type, click.Choice) and isinstance(given, str):
                assert given in parameter.type.choices, line
        if command.name in ("run", "init", "deal") and not re.search(r"[A-Z.]", arguments[0]):
            assert arguments[0] in recipes(), line
        if command.name == "run" and arguments[0] in recipes():
            for variant in (values.get("variant") or "").split(","):
                load_experiment(arguments[0], values.get("settings") or [], variant or None)


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=name_of)
def test_every_command_in_a_sentence_exists_with_its_options(page: Path) -> None:
    for line in re.findall(r"`personae ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
        command, _ = command_of([word for word in line.split() if not PLACEHOLDER.match(word)])
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) - known <= {"--help"}, line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text("utf-8"), "toml")], ids=name_of)
def test_every_toml_block_is_part_of_an_experiment(page: Path, tmp_path: Path) -> None:
    base = {
        "name": "example",
        "data": {"private": {"identities": 8}, "public": {"identities": 8}},
        "partition": {"clients": 2},
        "stages": [{"name": "first", "algorithm": {"name": "pretrain"}}],
    }
    for block in blocks(page.read_text(encoding="utf-8"), "toml"):
        raw = tomllib.loads(block)
        if "project" in raw:  # of a package that extends this one
            continue
        if list(references(raw, "")):
            assert page in GUESTS
        elif "extends" in raw:
            (tmp_path / "example.toml").write_text(("" if "name" in raw else 'name = "example"\n') + block)
            load_experiment(tmp_path / "example.toml")
            load_variants(tmp_path / "example.toml")
        else:
            data = base["data"] | raw.get("data", {})
            parse_experiment(base | raw | {"data": data}, name_of(page))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text("utf-8"), "python")], ids=name_of)
def test_python_compiles_and_what_it_imports_is_there(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        if "reference" in page.parts:  # signatures, which are no statements
            continue
        tree = ast.parse(block)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), name_of(page), "exec"), {})
        if all(isinstance(node, DEFINITION) for node in tree.body[1:]):
            exec(compile(tree, name_of(page), "exec"), {"__name__": "example"})


def test_the_algorithm_of_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faces_cache: Path) -> None:
    page = (DOCS / "tutorials" / "write-an-algorithm.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    monkeypatch.syspath_prepend(tmp_path)
    (code,), (experiment,) = blocks(page, "python"), blocks(page, "toml")
    Path("fairer.py").write_text(code)
    Path("fairer.toml").write_text(experiment)
    run = run_experiment(load_experiment("fairer.toml", SMALL), "run", workers=1).folder
    assert (run / "models/federate.safetensors").read_bytes() != (run / "models/pretrain.safetensors").read_bytes()


def test_the_readme_is_short_and_calls_what_ci_calls() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 100
    called = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert called in {line.partition("  ")[0] for block in blocks(readme, "sh") for line in block.splitlines()}
