"""A researcher's day with faces that nobody has labelled: look, plan, run, evaluate, export, also over a network."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from researcher import EXPERIMENT, write_faces

sys.path.append(str(Path(__file__).parents[1] / "parity"))
from lab import PERSONAE, Lab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    write_faces(folder, folder / "cache", people=16, images=8)
    return folder


def personae(day: Path, *words: str, code: int = 0) -> str:
    lab_like = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PERSONAE_CACHE": str(day / "cache"), "COLUMNS": "200"}
    done = subprocess.run([*PERSONAE, *words], cwd=day, env=lab_like, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_a_day_at_one_machine(day: Path) -> None:
    assert "16 identities" in personae(day, "data", "inspect", "office")
    assert "2 of the clients without labels" in personae(day, "run", "streets.toml", "--dry-run")
    longer = ("--set", "stages.pretrain.algorithm.training.epochs=20", "--set", "stages.adapt.rounds=4")
    table = personae(day, "run", "streets.toml", "--out", "run", *longer)
    assert "clusters of faces without labels" in table
    again = json.loads(personae(day, "report", "run", "--json"))
    found = {line["client"]: line["figures"] for line in again["clusters"] if line["images"] == "training"}
    assert found.keys() == {"street", "station"}
    assert all(figures["count"] >= 1 for figures in found.values())
    rates = [row["metrics"]["heldout/tar@1e-01"] for row in again["models"]]
    assert min(rates) > 0.12  # better than chance, which has 0.1
    personae(day, "export", "run", "--to", "model.safetensors", "--resamples", "0")
    options = ("--on", "others", "--far", "0.1", "--resamples", "0", "--json")
    evaluated = json.loads(personae(day, "evaluate", "model.safetensors", *options))
    assert evaluated["others"]["metrics"]["tar@1e-01"] == pytest.approx(rates[-1], abs=1e-3)
    clustered = json.loads(personae(day, "cluster", "run", "--on", "street", "--out", "found", "--json"))
    assert clustered["images"] == 128
    assert clustered["people"] is None
    stopped = personae(
        day, "run", "streets.toml", "--out", "stop", "--set", "stages.cluster.algorithm.if_odd=stop",
        "--set", "stages.cluster.algorithm.clustering.distance=1.9", code=3,
    )  # fmt: skip
    assert "look collapsed" in stopped


def test_the_same_faces_zipped_listed_and_packed_are_the_same_run(day: Path) -> None:
    with zipfile.ZipFile(day / "street.zip", "w") as archive:
        for image in sorted((day / "street").glob("*.png")):
            archive.write(image, f"anything/{image.name}")
    (day / "street.txt").write_text("".join(f"street/{image.name}\n" for image in (day / "street").glob("*.png")))
    personae(day, "data", "pack", "street", "street.faces", "--height", "32", "--width", "32", "--unlabelled")
    models = {}
    for name in ("street", "street.zip", "street.txt", "street.faces"):
        out = f"by-{name}"
        personae(day, "run", "streets.toml", "--out", out, "--set", f"data.private.parts.street.source={name}")
        models[name] = (day / out / "models" / "adapt.safetensors").read_bytes()
    assert len(set(models.values())) == 1


class Streets(Lab):
    """The targets join with flat folders of images."""

    def joining(self, client: str, name: str) -> list[str]:
        words = super().joining(client, name)
        if client != "office":
            words[words.index("--data") + 1] = str(self.folder / client)
            words.append("--unlabelled")
        return words


def test_two_unlabelled_clients_join_over_a_network(day: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    for name in ("office", "others", "street", "station"):
        shutil.copytree(day / name, folder / name)
    here = Streets(folder, EXPERIMENT)
    try:
        here.serve("--deadline", "300")
        for client in here.clients:
            here.join(client)
        here.done()
    finally:
        left = here.end()
    assert not left
    (event,) = (each for each in here.records("metrics") if each["event"] == "round" and each["stage"] == "cluster")
    assert event["clients"].keys() == {"street", "station"}
    assert all(figures["clusters/count"] >= 1 for figures in event["clients"].values())
    (evaluated,) = (
        each for each in here.records("metrics") if each["event"] == "personal" and each["stage"] == "cluster"
    )
    assert "global/clusters/silhouette" in evaluated["clients"]["street"]
    assert "global/rank1" in evaluated["clients"]["office"]
    assert 'id="clusters"' in (here.out / "report.html").read_text()


def test_a_client_without_labels_does_not_take_part_in_what_needs_them(day: Path, tmp_path: Path) -> None:
    """It says so at its own desk, and the server goes on without it, or ends where the quorum is lost."""
    folder = tmp_path / "lab"
    for name in ("office", "others", "street", "station"):
        shutil.copytree(day / name, folder / name)
    words = EXPERIMENT.replace(", unlabelled = true", "")
    supervised = words.replace('"street" }', '"office" }').replace('"station" }', '"office" }')
    whole = supervised[: supervised.index("[[stages]]")]
    here = Streets(folder, whole + '[[stages]]\nname = "federate"\nalgorithm = { name = "fedpe" }\n')
    try:
        here.serve("--deadline", "60")
        for client in here.clients:
            here.join(client)
        here.wait_for("a refusal", lambda: "fedpe has to know who is on the faces" in here.log("street"))
    finally:
        here.end()
