"""What an office has after a run over a network: its own model and the shared one, without the server."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner, Result

from fake import DesksOfTheirOwn, as_a_server
from personae.cli import app
from personae.core.embedder import Embedder, embed
from personae.core.holdings import ClientFaces
from personae.core.threads import torch_threads
from personae.deployment.consent import ALL
from personae.deployment.desk import Desk
from personae.deployment.join import Member
from personae.deployment.plan import POST, Conditions
from personae.deployment.serve import prepare
from personae.deployment.server import main
from personae.errors import ConfigError, DataError, PersonaeError
from personae.experiment import assembly
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.evaluator import evaluator_of
from personae.experiment.execution import Execution
from personae.experiment.faces import deal, own_faces
from personae.experiment.home import own_run
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.runtime.federation import Evaluator
from personae.runtime.post import Post

OFFICES = ("Berlin", "Oslo", "Paris")
TRAINING = {"batch_size": 8, "iterations": 2}
STAGES = {
    "fedpe": "",
    "fedfr": "fedpe",
    "adapt": "fedfr",
    "hf_maml": "fedpe",
    "tune": "hf_maml",
}


def experiment(**changes: Any) -> Experiment:
    plain = {
        "name": "offices",
        "seed": 4,
        "network": {"name": "small", "embedding": 8, "height": 32, "width": 32},
        "data": {
            "public": {"first": 50, "identities": 4, "images": 4},
            "heldout": {"first": 90, "identities": 6, "images": 4},
        },
        "evaluation": {"folds": 2, "pairs_per_fold": 4},
        "stages": [
            {
                "name": name,
                "rounds": 1 if name == "tune" else 2,
                "after": before,
                "algorithm": {"name": name, **({"meta": TRAINING} if name == "hf_maml" else {"training": TRAINING})},
            }
            for name, before in STAGES.items()
        ],
    }
    return parse_experiment(plain | changes, "test")


def held(folder: Path, known: Experiment, out: Path) -> None:
    """A whole run over all offices, each with the faces in `folder/NAME.zip` and its home in `folder/homes/NAME`."""
    prepare(known, out, OFFICES, Conditions(deadline=120, wait=1), resume=True)
    desks = {}
    for name in OFFICES:
        member = Member(
            data=folder / f"{name}.zip",
            home=folder / "homes" / name,
            execution=Execution(cache=folder / "cache"),
            accept=frozenset({ALL}),
        )
        desks[name] = Desk(member.host, member.execution.notify, member.problems)
    main(DesksOfTheirOwn(Post(out / POST), desks), {"out": str(out)})


SEEN: dict[tuple[str, ...], list[Tensor]] = {}  # by an office's people: vectors of its test faces when it was evaluated


def watched(known: Experiment) -> Evaluator:
    def evaluator(embedder: Embedder, faces: ClientFaces) -> dict[str, float]:
        SEEN.setdefault(faces.test.identities, []).append(embed(embedder, faces.test))
        return evaluator_of(known)(embedder, faces)

    return evaluator


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three offices after a run, and what the server has of it in `out`."""
    folder = tmp_path_factory.mktemp("company")
    dealt = experiment(
        data={"private": {"identities": 9, "images": 8}},
        partition={"by": "equal", "clients": len(OFFICES)},
        stages=[{"name": "any", "algorithm": {"name": "fedpe"}}],
    )
    for name, path in zip(
        OFFICES, deal(Materials(dealt, Execution(cache=folder / "cache")), folder / "dealt"), strict=True
    ):
        path.rename(folder / f"{name}.zip")
    with pytest.MonkeyPatch.context() as patch:
        as_a_server.__wrapped__(patch)
        patch.setenv("PERSONAE_CACHE", str(folder / "cache"))
        patch.setattr(assembly, "evaluator_of", watched)
        held(folder, experiment(), folder / "out")
        yield folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def printed(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def refused(kind: type[PersonaeError], *words: object) -> str:
    result = run(*words)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return str(result.exception)


def evaluated(company: Path, name: str, stage: str) -> dict[str, float]:
    """What the server was told of this office at the end of the stage."""
    events = [json.loads(line) for line in (company / "out" / "metrics.jsonl").read_text().splitlines()]
    return [each["clients"][name] for each in events if each["event"] == "personal" and each["stage"] == stage][-1]


@pytest.mark.parametrize("stage", STAGES)
def test_an_office_exports_the_models_that_it_was_evaluated_by(stage: str, company: Path, tmp_path: Path) -> None:
    known = experiment()
    for name in OFFICES if stage == "tune" else OFFICES[:1]:
        place, faces = (
            company / "homes" / name,
            own_faces(company / f"{name}.zip", known, Execution(cache=company / "cache")).of(name),
        )
        for which, options in (("global", ()), ("personal", ("--personal",))):
            file = tmp_path / name / f"{which}.safetensors"
            said = done("export", place, "--stage", stage, *options, "--to", file, "--no-evaluate")
            makes_none = which == "personal" and stage in ("fedpe", "hf_maml")
            assert (f"stage {stage} ({stage}) makes no personal models: this is the shared one" in said) == makes_none
            with torch_threads(1):
                embedder = load_model(file).embedder
                figures, vectors = evaluator_of(known)(embedder, faces), embed(embedder, faces.test)
            assert any(torch.equal(vectors, each) for each in SEEN[faces.test.identities])
            told = evaluated(company, name, stage)
            assert {f"{which}/{key}": value for key, value in figures.items()} == {
                key: value for key, value in told.items() if key.startswith(which)
            }
            card = json.loads((tmp_path / name / f"{which}.card.json").read_text())
            personal = which == "personal" and not makes_none
            assert card["at_the_client"] == {
                key: value for key, value in told.items() if personal or key.startswith("global/")
            }
            assert card["model"]["client"] == (name if personal else None)
        shared = load_model(tmp_path / name / "global.safetensors")
        assert shared.digest == load_model(company / "out", stage).digest
        own = load_model(tmp_path / name / "personal.safetensors")
        assert (own.digest == shared.digest) == (stage in ("fedpe", "hf_maml"))
        assert own.digest == load_model(place, stage, personal=True).digest


def test_a_card_at_an_office_tells_what_left_it_and_nothing_of_the_others(company: Path, tmp_path: Path) -> None:
    entries = [json.loads(line) for line in (company / "out" / "ledger.jsonl").read_text().splitlines()]
    for options in ((), ("--personal",)):
        file = tmp_path / "own.safetensors"
        done("export", company / "homes" / "Berlin", "--stage", "adapt", *options, "--to", file, "--resamples", 40)
        page, plain = (tmp_path / "own.card.md").read_text(), (tmp_path / "own.card.json").read_text()
        for other in ("Oslo", "Paris", str(company), "clients"):
            assert other not in page
            assert other not in plain.replace("left_the_clients", "")
        card = json.loads(plain)
        lineage = ("fedpe", "fedfr", "adapt")
        sent: dict[tuple[str, str], list[int]] = {}
        for entry in entries:
            if (entry["direction"], entry["client"]) == ("up", "Berlin") and entry["stage"] in lineage:
                count = sent.setdefault((entry["stage"], entry["payload"]), [0, 0])
                count[0], count[1] = count[0] + 1, count[1] + entry["bytes"]
        left = {
            (each["stage"], each["payload"]): [each["messages"], each["bytes"]] for each in card["left_the_clients"]
        }
        assert left == sent
        assert ("fedfr", "PublicEmbeddings") in left
        place = own_run(company / "homes" / "Berlin")
        assert card["home"] == {"client": "Berlin", "run": place.folder.name, "stage": "adapt", "round": 2, "rounds": 2}
        assert "`Berlin` received after round 2 of 2 of the stage `adapt`" in page
        assert "## What left this client" in page
        assert list(card["benchmarks"]) == ["own"]
        assert "tar@1e-01" in card["benchmarks"]["own"]["thresholds"]


def test_an_office_enrols_and_identifies_with_its_home_and_with_what_it_exported(company: Path, tmp_path: Path) -> None:
    place, people = company / "homes" / "Oslo", tmp_path / "people"
    faces = own_faces(company / "Oslo.zip", experiment(), Execution(cache=company / "cache")).of("Oslo").train
    for position, label in enumerate(faces.labels.tolist()):
        folder = people / faces.identities[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(faces.images(torch.tensor([position]))[0].numpy()).save(folder / f"{position}.png")
    one = min(people.iterdir())
    image = min(one.iterdir())
    file = tmp_path / "own.safetensors"
    done("export", place, "--personal", "--to", file, "--far", 0.5, "--resamples", 0)
    for name, words in {"home": ("--model", place, "--personal"), "file": ("--model", file)}.items():
        gallery = tmp_path / f"{name}.db"
        done("enroll", people, *words, "--gallery", gallery, "--threshold", -1.0)
        assert one.name in json.dumps(printed("identify", image, *words, "--gallery", gallery))
        done("verify", one.name, image, *words, "--gallery", gallery)
    done("verify", image, image, "--model", place, "--threshold", 0.9)
    shared, own = (
        printed("evaluate", place, *words, "--on", f"own={people}", "--resamples", 0) for words in ((), ("--personal",))
    )
    assert shared["own"]["metrics"] != own["own"]["metrics"]


def test_faces_are_needed_only_where_a_personal_model_is_trained_on_them(company: Path, tmp_path: Path) -> None:
    place = tmp_path / "home"
    shutil.copytree(company / "homes" / "Paris", place)
    (kept,) = (place / "runs").iterdir()
    content = json.loads((kept / "run.json").read_text())
    (kept / "run.json").write_text(json.dumps(content | {"data": str(tmp_path / "gone")}))
    file = tmp_path / "own.safetensors"
    said = done("export", place, "--stage", "adapt", "--personal", "--to", file)
    assert "not evaluated:" in said
    assert "gone: this client's faces are not here any more; say where they are with --data" in " ".join(said.split())
    assert "None were measured" not in (tmp_path / "own.card.md").read_text()  # the run has measured it
    file = tmp_path / "tuned.safetensors"
    assert "gone: this client's faces are not here any more; say where they are with --data" in refused(
        DataError, "export", place, "--personal", "--to", file
    )
    assert "these are not the faces that this client had in run offices" in refused(
        DataError, "export", place, "--personal", "--data", company / "Oslo.zip", "--to", file
    )
    assert not list(tmp_path.glob("*tuned*"))
    done("export", place, "--personal", "--data", company / "Paris.zip", "--to", file)
    assert load_model(file).digest == load_model(company / "homes" / "Paris", personal=True).digest


def test_the_newest_run_is_taken_and_others_are_chosen_by_name_or_number(company: Path, tmp_path: Path) -> None:
    place = tmp_path / "home"
    shutil.copytree(company / "homes" / "Berlin", place)
    (first,) = (place / "runs").iterdir()
    for number, (name, begun) in {"ab12": ("offices", "2999-01-01"), "ab34": ("office-two", "2999-01-02")}.items():
        shutil.copytree(first, place / "runs" / number)
        content = json.loads((first / "run.json").read_text())
        content["told"]["name"], content["begun"] = name, begun
        (place / "runs" / number / "run.json").write_text(json.dumps(content))
    file = tmp_path / "m.safetensors"

    def taken(*options: str) -> str:
        done("export", place, *options, "--to", file, "--no-evaluate")
        return str(json.loads((tmp_path / "m.card.json").read_text())["home"]["run"])

    assert "run office-two (ab34) is the newest of 3" in " ".join(
        done("export", place, "--to", file, "--no-evaluate").split()
    )
    assert taken() == "ab34"
    assert taken("--run", "offices") == "ab12"
    assert taken("--run", first.name) == taken("--run", first.name[:9]) == first.name
    assert taken("--run", "office-") == "ab34"
    for wanted, complaint in {"office": "several runs", "ab": "several runs", "x": "no run"}.items():
        assert f"--run {wanted}: {complaint} of" in refused(ConfigError, "export", place, "--run", wanted, "--to", file)


def test_what_does_not_go_together_is_told_in_one_line(company: Path, tmp_path: Path) -> None:
    place, file = company / "homes" / "Berlin", tmp_path / "m.safetensors"
    for words, complaint in (
        ((place, "--client", "Berlin"), "is the home of one client; use --personal"),
        ((place, "--stage", "fedpee"), "no stage is called 'fedpee'; there are fedpe, fedfr"),
        ((company / "out", "--personal"), "go with the home of a client"),
        ((company,), "neither a run nor the home of a client"),
        ((company / "out", "--client", "Berlin"), "at the office of Berlin, where its private state is"),
    ):
        said = refused(ConfigError, "export", *words, "--to", file)
        assert complaint in said
        assert "\n" not in said
    (tmp_path / "home" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "home" / "runs" / "x" / "run.json").write_text("{")
    assert "run.json: this file is damaged" in refused(DataError, "export", tmp_path / "home", "--to", file)
    assert not list(tmp_path.glob("*m.*"))


def test_the_server_evaluates_by_its_held_out_faces_alone(company: Path, tmp_path: Path) -> None:
    done("export", company / "out", "--to", tmp_path / "m.safetensors", "--resamples", 40)
    card = json.loads((tmp_path / "m.card.json").read_text())
    assert list(card["benchmarks"]) == ["heldout"]
    assert card["training"]["data"]["private"] == "with the clients"
    assert card["training"]["clients"] == 3
    assert "synthetic faces alone" not in (tmp_path / "m.card.md").read_text()


def test_what_came_last_counts_and_figures_of_another_model_are_not_its_own(company: Path, tmp_path: Path) -> None:
    """Asked to train in a round, an office has the model after the round before; nobody evaluated that one here."""
    shutil.copytree(company / "homes" / "Berlin", tmp_path / "home")
    own = own_run(tmp_path / "home")
    last = own.last_request("fedfr")
    assert (last.round, last.client.name) == (2, "Berlin")
    assert own.records.figures("fedfr", 2)
    own.receive(replace(last, task="train"))
    assert own.last_request("fedfr").round == 1
    file = tmp_path / "m.safetensors"
    done("export", tmp_path / "home", "--stage", "fedfr", "--to", file, "--no-evaluate")
    card = json.loads((tmp_path / "m.card.json").read_text())
    assert (card["home"]["round"], card["at_the_client"]) == (1, {})
    own.receive(last)
    assert own.records.figures("fedfr", 2) == {}


def test_an_office_that_is_asked_again_remembers_when_it_began(company: Path) -> None:
    own = own_run(company / "homes" / "Oslo")
    replace(own, begun="2999-01-01").write()
    assert own_run(company / "homes" / "Oslo").begun == own.begun
