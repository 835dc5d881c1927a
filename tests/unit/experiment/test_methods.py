"""Several methods on one's own faces: what is run, what is left out, and that it runs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from personae.data import synthetic_faces
from personae.errors import ConfigError
from personae.experiment.execution import Execution
from personae.experiment.methods import USUAL, methods_experiment
from personae.experiment.run import run_experiment
from personae.models.network import Network
from personae.models.weights import save_weights

TINY = Network(name="small", embedding=16, height=32, width=32)


def save(folder: Path, first: int, identities: int, cache: Path) -> Path:
    faces = synthetic_faces(identities=identities, images=6, first=first, size=32, cache=cache)
    for at, (image, who) in enumerate(zip(faces.images(np.arange(len(faces))), faces.identity, strict=True)):
        (folder / f"p{who:03}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"p{who:03}" / f"{at}.png")
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory, faces_cache):
    return save(tmp_path_factory.mktemp("mine") / "faces", 0, 20, faces_cache)


def test_a_fifth_of_the_people_is_held_out(faces):
    experiment, left_out = methods_experiment(faces, ["fedpe"], Execution(), network=TINY, clients=2)
    assert (experiment.data.private.identities, experiment.data.heldout.first) == (16, 16)
    assert [stage.name for stage in experiment.stages] == ["local", "fedpe"]
    assert left_out == []


def test_weights_name_their_network_and_are_not_trained_at_the_rate_of_random_ones(faces, tmp_path):
    save_weights(tmp_path / "tiny.safetensors", TINY, TINY.build().state_dict())
    given, _ = methods_experiment(faces, ["fedpe"], Execution(), weights=tmp_path / "tiny.safetensors", clients=2)
    scratch, _ = methods_experiment(faces, ["fedpe"], Execution(), network=TINY, clients=2)
    assert given.network == TINY
    begun, random = given.stages[-1].algorithm, scratch.stages[-1].algorithm
    assert begun["training"]["lr"] < random["training"]["lr"]
    assert (begun["head_init"], random["head_init"]) == ("mean", "random")


def test_what_needs_public_faces_is_left_out_with_a_sentence(faces):
    experiment, left_out = methods_experiment(faces, USUAL, Execution(), network=TINY, clients=2)
    names = [stage.name for stage in experiment.stages]
    assert names == ["local", "fedpe", "fedgc", "fedface", "hf_maml", "hf_maml-tuned"]
    assert [line.partition(" ")[0] for line in left_out] == ["fedfr", "unsupervised"]
    assert "give a folder of them with --public" in left_out[0]
    with pytest.raises(ConfigError, match="fedfr is left out: it trains with public faces"):
        methods_experiment(faces, ["fedfr"], Execution(), network=TINY)
    with pytest.raises(ConfigError, match=r"--methods fedprox: there are local, fedpe"):
        methods_experiment(faces, ["fedprox"], Execution(), network=TINY)


def test_all_methods_run_from_one_start_with_public_faces(faces, tmp_path, faces_cache):
    public = save(tmp_path / "public", 100, 8, faces_cache)
    experiment, left_out = methods_experiment(
        faces, USUAL, Execution(), public=public, network=TINY, clients=2, rounds=1
    )
    assert left_out == []
    after = {stage.name: stage.after for stage in experiment.stages}
    assert {after[name] for name in ("local", "fedpe", "fedgc", "fedface", "fedfr", "hf_maml", "clusters")} == {"start"}
    report = run_experiment(experiment, tmp_path / "run").report.read_text()
    finished = {path.stem for path in (tmp_path / "run" / "evaluation").glob("*.json")}
    assert finished == {stage.name for stage in experiment.stages}
    assert "each client alone" in report
    assert "unsupervised FedFR" in report
