"""`personae run FACES`: which experiment is proposed, why, and what becomes of faces that nobody can train on."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from personae.cli import app
from personae.data import pack_faces
from personae.errors import ConfigError, DataError
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.proposal import Proposal, Situation, propose
from personae.models import Network
from personae.models.weights import save_weights

TINY = Network(name="small", embedding=8, height=32, width=32)


def photographs(folder: Path, people: int, each: int = 4, first: int = 0) -> Path:
    """Noise will do: nobody looks at it."""
    random = np.random.default_rng(first)
    for who in range(first, first + people):
        (folder / f"p{who:03}").mkdir(parents=True)
        for number in range(each):
            image = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / f"p{who:03}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = photographs(tmp_path_factory.mktemp("own") / "mine", 50)
    photographs(folder, 3, each=1, first=900)  # one photograph says nothing
    return folder


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("others") / "public", 6, first=500)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(path, TINY, TINY.build().state_dict())
    return path


def proposed(faces: Path, tmp_path: Path, **given) -> Proposal:
    """The file says the same as the experiment."""
    given.setdefault("network", None if "weights" in given else TINY)
    found = propose(faces, Execution(cache=tmp_path / "cache"), **given)
    (tmp_path / "proposal.toml").write_text(found.text)
    assert load_experiment(tmp_path / "proposal.toml").resolved() == found.experiment.resolved()
    assert 2 <= len(re.findall(r"[.](?:\s|$)", found.why)) <= 6
    return found


def methods(found: Proposal) -> list[str]:
    return [stage.algorithm["name"] for stage in found.experiment.stages]


def test_from_scratch_the_recommended_recipe_with_people_held_out(faces: Path, tmp_path: Path) -> None:
    found = proposed(faces, tmp_path)
    experiment, recipe = found.experiment, load_experiment("recommended")
    assert methods(found) == ["fedpe", "adapt"]
    assert [stage.algorithm for stage in experiment.stages] == [stage.algorithm for stage in recipe.stages]
    assert experiment.data.private.identities == experiment.data.heldout.first == 40
    assert (experiment.partition.clients, experiment.stages[0].rounds) == (4, 18 * 2)
    assert found.why.startswith(
        "mine has 200 photographs of 50 people: 10 are held out for the test, and 4 clients share"
    )
    assert "from scratch" in found.why
    assert "small cohorts" in found.why
    two = proposed(faces, tmp_path, clients=2)
    assert two.experiment.stages[0].rounds == 18 * 2
    assert two.experiment.stages[0].selection == {"name": "passes", "clients": 1}
    assert "one client after the other" in two.why


def test_many_clients_with_few_people_renew_their_class_embeddings_from_scratch_alone(
    public: Path, weights: Path, tmp_path: Path
) -> None:
    many = photographs(tmp_path / "many", 125, each=2)

    def together(**given) -> tuple[dict, str]:
        found = proposed(many, tmp_path, **given)
        return next(stage for stage in found.experiment.stages if stage.name == "together").algorithm, found.why

    renewed, why = together(clients=20)
    assert (renewed["head"], renewed["head_init"]) == ("renewed", "mean")
    assert "With 20 clients, many others change the model between two visits to one of them." in why
    assert "means of its people's features, and not with old ones" in why
    for given in ({"clients": 19}, {"clients": 20, "public": public}, {"clients": 20, "weights": weights}):
        kept, why = together(**given)
        assert kept.get("head", "kept") == "kept"
        assert "not with old ones" not in why


@pytest.mark.parametrize(("people", "renews"), [(20 * 40, True), (20 * 41, False)])
def test_with_hundreds_of_people_class_embeddings_are_kept(people: int, renews: bool) -> None:
    assert Situation(people, 0, clients=20, wanted=20, public=None, weights=None).waits_long == renews


def test_a_model_to_begin_with_means_small_steps(faces: Path, public: Path, weights: Path, tmp_path: Path) -> None:
    rates = {}
    for name, given in (("weights", {"weights": weights}), ("public", {"public": public})):
        found = proposed(faces, tmp_path, clients=3, **given)
        together = next(stage for stage in found.experiment.stages if stage.name == "together")
        assert together.algorithm["head_init"] == "mean"
        rates[name] = together.algorithm["training"]["lr"]
        assert (methods(found)[0] == "pretrain") == (name == "public")
    assert rates["weights"] < rates["public"] < 0.1
    assert proposed(faces, tmp_path, weights=weights).experiment.network == TINY


def test_public_faces_beside_weights_are_left_out(faces: Path, public: Path, weights: Path, tmp_path: Path) -> None:
    found = proposed(faces, tmp_path, weights=weights, public=public)
    assert found.experiment.data.public is None
    assert "the public faces are left out, as the weights take their place" in found.why


def test_clients_with_few_people_get_fedface_and_are_told_that_templates_leave(
    faces: Path, weights: Path, tmp_path: Path
) -> None:
    found = proposed(faces, tmp_path, clients=20, weights=weights)
    assert methods(found) == ["fedface"]
    assert "templates of people, and they leave" in found.why
    assert "keep what you begin with" in found.why
    every = proposed(faces, tmp_path, clients=50, weights=weights)
    assert "40 clients share the other 40, since 50 would be more than there are people left" in every.why
    with pytest.raises(ConfigError, match="give --weights or --public, or fewer --clients"):
        proposed(faces, tmp_path, clients=20)
    with pytest.raises(ConfigError, match=r"--clients 51: .* has 50 people"):
        proposed(faces, tmp_path, clients=51)


def test_without_labels_clients_group_their_photographs(public: Path, weights: Path, tmp_path: Path) -> None:
    for at, path in enumerate(sorted(photographs(tmp_path / "some", 4).rglob("*.png"))):
        (tmp_path / "flat").mkdir(exist_ok=True)
        path.rename(tmp_path / "flat" / f"{at}.png")
    found = proposed(tmp_path / "flat", tmp_path, weights=weights)
    assert methods(found) == ["cluster", "unsupervised"]
    assert "nobody says of whom" in found.why
    assert "Only weights and figures leave" in found.why
    assert "weak start" not in found.why
    assert "weak start" in proposed(tmp_path / "flat", tmp_path, public=public).why
    with pytest.raises(ConfigError, match=r"nobody says who is on these photographs.* give --weights or --public"):
        proposed(tmp_path / "flat", tmp_path)


def test_faces_in_one_file_have_a_proposal_too(faces: Path, tmp_path: Path) -> None:
    pack_faces(faces, tmp_path / "mine.faces", height=40, width=40)
    found = proposed(tmp_path / "mine.faces", tmp_path, network=None)
    assert (found.experiment.network.height, found.experiment.network.width) == (40, 40)
    listed = [f"{path.relative_to(faces.parent)} {path.parent.name}\n" for path in faces.rglob("*.png")]
    (faces.parent / "list.txt").write_text("".join(listed))
    told = CliRunner().invoke(app, ["run", str(faces.parent / "list.txt"), "--dry-run"])
    assert told.exit_code == 0, told.exception
    assert "4 clients" in told.stdout


def test_one_person_and_no_person_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one: 1 person with two photographs or more; training takes two people"):
        proposed(photographs(tmp_path / "one", 1), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images"):
        proposed(tmp_path / "empty", tmp_path)


def test_the_command_proposes_writes_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "mine", 10)
    run = CliRunner().invoke
    shown = run(app, ["run", "mine"])
    assert (shown.exit_code, (tmp_path / "runs").exists()) == (0, False)
    assert 'name = "fedpe"' in shown.stdout
    assert "--yes runs it" in shown.stdout
    assert run(app, ["run", "mine", "--to", "mine.toml"]).stdout.endswith("personae run mine.toml\n")
    assert load_experiment("mine.toml").name == "mine"
    again = run(app, ["run", "mine", "--to", "mine.toml"])
    assert "exists already" in str(again.exception)
    assert "go with an experiment file" in str(run(app, ["run", "mine", "--set", "seed=1"]).exception)
    assert "--yes, --clients: these go with" in str(run(app, ["run", "quick", "--yes", "--clients", "3"]).exception)
    forecast = run(app, ["run", "mine", "--yes", "--dry-run"])
    assert (forecast.exit_code, (tmp_path / "runs").exists()) == (0, False)
    done = run(app, ["run", "mine", "--yes", "--workers", "1"])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert "is a run" in str(run(app, ["run", "runs/mine"]).exception)
