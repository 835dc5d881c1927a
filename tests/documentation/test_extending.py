"""The guests of docs/extending.md, each run from the text of the page as an outside user would run it.

A guest is a section of the page with a Python block, whose first line names its file, and a TOML block: an experiment.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pages import DOCS, SMALL, blocks
from personae import ConfigError, embed, load_experiment, load_weights, open_faces, run_experiment, synthetic_faces
from personae.aggregation import AGGREGATIONS
from personae.algorithms import AVAILABLE
from personae.cli import app
from personae.core.registry import Registry
from personae.experiment.config import refuse_references
from personae.layers import LAYERS
from personae.parts.images import normalise
from personae.parts.terms import TERMS
from personae.selection import SELECTIONS

PAGE = DOCS / "extending.md"


class Guest:
    """One section of the page, written into the current folder."""

    def __init__(self, section: str) -> None:
        text = PAGE.read_text(encoding="utf-8")
        (body,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        (self.code,), (self.experiment,) = blocks(body, "python"), blocks(body, "toml")
        self.file = Path(self.code.partition("\n")[0].removeprefix("# "))
        self.file.write_text(self.code)
        Path("guest.toml").write_text(self.experiment)

    def run(self, *overrides: str, out: str = "run") -> Path:
        """The folder of a run of the experiment, with one worker."""
        return run_experiment(load_experiment("guest.toml", [*SMALL, *overrides]), out, workers=1).folder

    def registered(self, group: str, name: str, reference: str) -> None:
        """As an installed package that registers it would look to Python."""
        about = Path("guests-1.0.dist-info")
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {reference}\n")


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, faces_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of somebody else's; what it holds is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


def asked(run: Path, stage: str) -> list[set[str]]:
    """The clients of each round that sent a model."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    rows = [
        row for row in lines if row["stage"] == stage and (row["direction"], row["payload"]) == ("up", "ModelState")
    ]
    return [
        {row["client"] for row in rows if row["round"] == round_} for round_ in sorted({row["round"] for row in rows})
    ]


def test_every_guest_has_at_most_40_lines() -> None:
    guests = blocks(PAGE.read_text(encoding="utf-8"), "python")
    assert len(guests) >= 3
    assert all(len(guest.splitlines()) <= 40 for guest in guests)


def test_an_algorithm() -> None:
    """Without a step of the server, the model stays the one before, to the bit."""
    run = Guest("An algorithm").run("stages.federate.algorithm.damping=0.0")
    assert (run / "models/federate.safetensors").read_bytes() == (run / "models/pretrain.safetensors").read_bytes()


def test_a_selection_policy() -> None:
    run = Guest("A selection policy").run("stages.federate.selection.cohort=3")
    assert asked(run, "federate") == [
        {"client-000", "client-001", "client-002"},
        {"client-000", "client-001", "client-003"},
    ]


def test_an_aggregation_rule() -> None:
    Guest("An aggregation rule").run()
    rule = AGGREGATIONS["tempered:Tempered"](power=0.5)
    combined = rule.combine([(torch.tensor([1.0]), 1.0), (torch.tensor([4.0]), 16.0)], torch.zeros(1), None)
    assert combined.item() == pytest.approx((1 * 1 + 4 * 4) / (1 + 4))


def test_a_layer() -> None:
    """Without any change that may leave, the model stays the one before, to the bit."""
    run = Guest("A layer").run("stages.federate.layers.0.share=0.0")
    assert (run / "models/federate.safetensors").read_bytes() == (run / "models/pretrain.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"stages\.federate\.layers: clients of adapt send no whole model"):
        load_experiment("guest.toml", [*SMALL, "stages.federate.algorithm.name=adapt"])


def test_a_local_regulariser() -> None:
    """It changes what clients learn: embeddings come nearer to the length that is asked for."""
    guest = Guest("A local regulariser")
    value = TERMS["lengths:Lengths"](weight=1.0, wanted=2.0).begin(None, None)
    assert value(None, torch.tensor([[3.0, 4.0], [0.0, 0.0]])).item() == pytest.approx((3**2 + 2**2) / 2)
    far = {}
    for weight in (0.001, 3.0):
        run = guest.run(f"stages.federate.algorithm.terms.0.weight={weight}", out=f"{weight}")
        network, weights = load_weights(run / "models/federate.safetensors")
        module = network.build(torch.Generator()).train()  # BatchNorm as the clients have it
        module.load_state_dict(weights)
        faces = synthetic_faces(identities=6, images=4, size=network.height).samples()
        lengths = module(normalise(faces.images(torch.arange(len(faces))))).norm(dim=1)
        far[weight] = (lengths - 2.0).abs().mean().item()
    assert far[3.0] < 0.7 * far[0.001]


@pytest.mark.parametrize(
    ("section", "registry", "name", "reference"),
    [
        ("An algorithm", AVAILABLE, "damped", "damped:Damped"),
        ("A selection policy", SELECTIONS, "turns", "turns:Turns"),
        ("An aggregation rule", AGGREGATIONS, "tempered", "tempered:Tempered"),
        ("A layer", LAYERS, "sparse", "sparse:Sparse"),
        ("A local regulariser", TERMS, "lengths", "lengths:Lengths"),
    ],
)
def test_a_guest_is_found_by_reference_and_by_name_and_over_networks_only_by_name(
    section: str, registry: Registry[object], name: str, reference: str
) -> None:
    guest = Guest(section)
    referred = load_experiment("guest.toml", SMALL)
    assert registry[reference].name == name
    with pytest.raises(ConfigError, match=f"'{reference}', which every client would have to import"):
        refuse_references(referred, "guest.toml")

    assert name not in registry
    guest.registered(registry.group, name, reference)
    assert registry[name] is registry[reference]
    Path("guest.toml").write_text(guest.experiment.replace(reference, name))
    registered = load_experiment("guest.toml", SMALL)
    refuse_references(registered, "guest.toml")
    for experiment, found_by in ((referred, reference), (registered, name)):
        stage = experiment.resolved()["stages"][1]
        parts = [stage[part] for part in ("algorithm", "selection", "aggregation")]
        assert found_by in [part["name"] for part in (*parts, *stage["layers"], *stage["algorithm"]["terms"])]


def test_what_is_no_selection_is_one_line() -> None:
    Guest("An algorithm")
    Path("guest.toml").write_text(
        'name = "x"\nextends = "quick"\n[stages.federate]\nselection = { name = "damped:Damped" }\n'
    )
    with pytest.raises(ConfigError, match=r"the selection damped:Damped is not a subclass of personae\.Selection"):
        load_experiment("guest.toml")


def test_a_benchmark(faces_cache: Path) -> None:
    """By reference and by name, on the command line; the figure is computed again from the vectors."""
    (body,) = re.findall(
        r"^## A benchmark$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    (code,) = blocks(body, "python")
    Path("doubles.py").write_text(code)
    run = run_experiment(load_experiment("quick", SMALL), "run", cache=faces_cache)
    for number in range(4):
        Path(f"faces/{number}").mkdir(parents=True)
    faces = synthetic_faces(identities=4, images=2, size=32, cache=faces_cache)
    for row, image in enumerate(faces.images(np.arange(8))):
        Image.fromarray(image).save(f"faces/{faces.identity[row]}/{row}.png")
    about = Path("guests-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[personae.benchmarks]\nopen-doubles = doubles:Doubles\n")
    opened = open_faces("faces", height=32, width=32)
    vectors, who = embed(run.model().embedder, opened.samples()), opened.samples().labels
    highest = max(float(vectors[a] @ vectors[b]) for a in range(8) for b in range(8) if who[a] != who[b])
    for name, label in {"doubles:Doubles": "Doubles", "open-doubles": "open-doubles"}.items():
        done = CliRunner().invoke(app, ["evaluate", "run", "--on", f"{name}=faces", "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)[label]["metrics"]["highest impostor score"] == pytest.approx(highest, abs=1e-6)
