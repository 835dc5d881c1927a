"""A researcher's day with faces that nobody has labelled, in short; tests/slow has the long form."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from personae import cli
from personae.runtime.seal import sealed, unsealed
from researcher import write_faces


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Personae = Callable[..., Ended]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    write_faces(folder, folder / "cache")
    return folder


@pytest.fixture
def personae(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], day: Path) -> Iterator[Personae]:
    """Calls the command line in this process, as its entry point does, from where the faces are."""
    monkeypatch.setenv("PERSONAE_CACHE", str(day / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(day)
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["personae", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    yield call
    signal.signal(signal.SIGTERM, handler)


def one_line(ended: Ended) -> str:
    (line,) = (line for line in ended.err.splitlines() if line.startswith("personae: "))
    return line


def test_from_flat_folders_to_a_model(personae: Personae, day: Path) -> None:
    ended = personae("run", "streets.toml", "--dry-run")
    assert ended.code == 0, ended.err
    assert "3 clients, 6 identities; 2 of the clients without labels" in ended.out

    ended = personae("run", "streets.toml", "--out", "first", "--workers", "1")
    assert ended.code == 0, ended.err
    assert "clusters of faces without labels" in ended.out
    assert "the clusters of station look collapsed" in ended.err
    assert "the clusters of station look collapsed" not in ended.out  # it was said as the run went on
    assert "the clusters of station look collapsed" in personae("report", "first").out
    page = (day / "first" / "report.html").read_text()
    assert 'id="clusters"' in page
    assert "the clusters of station look collapsed" in page
    assert not re.search(r">\s*nan\b", page, re.IGNORECASE)

    ended = personae("report", "first", "--json")
    told = json.loads(ended.out)
    places = {(line["label"], line["images"], line["client"]) for line in told["clusters"]}
    assert {("cluster", "training", "street"), ("cluster", "training", "station")} <= places
    assert {("adapt", "test", "street"), ("adapt", "test", "station")} <= places
    assert not any(client == "office" for _, _, client in places)
    assert all(0 <= line["figures"]["outside"] <= 1 for line in told["clusters"])
    metrics = told["models"][-1]["metrics"]
    assert {"heldout/accuracy", "private/rank1", "clients/global/rank1"} <= metrics.keys()
    assert not any("clusters" in name for name in metrics)
    assert [line["shared"]["clients"] for line in told["fairness"]] == [1] * len(told["fairness"])  # the office alone

    assert personae("export", "first", "--to", "model.safetensors", "--resamples", "0").code == 0
    ended = personae("evaluate", "model.safetensors", "--on", "others", "--resamples", "0", "--json")
    assert ended.code == 0, ended.err
    ended = personae("cluster", "first", "--on", "street", "--out", "found", "--distance", "0.3")
    assert ended.code == 0, ended.err
    assert "silhouette" in ended.out
    ended = personae("partition", "street", "--unlabelled", "--clients", "2", "--plot", "plot.png")
    assert "unlabelled" in ended.out


def records(run: Path) -> dict[str, bytes]:
    """What a run leaves, but for the name of the run and the fingerprints of files, in which their paths count."""
    places = ("models", "evaluation", "private", "metrics.jsonl", "ledger.jsonl")
    files = [path for place in places for path in ((run / place).rglob("*") if "." not in place else [run / place])]
    found = {str(path.relative_to(run)): path.read_bytes() for path in files if path.is_file()}
    del found["private/.run"]
    for name, content in found.items():
        if name.startswith("private/") and name.endswith(".safetensors"):
            packet, of = unsealed(content)
            found[name] = b"".join(sealed(packet, of | {"run": ""}))
        elif name.startswith("evaluation/") and name.endswith(".json"):
            found[name] = re.sub(rb'"faces": "[0-9a-f]{64}"', b'"faces": ""', content)
    return found


def test_the_names_of_folders_and_files_decide_nothing(personae: Personae, day: Path) -> None:
    """The same images below folders of other names, in another order: the same bits."""
    for name in ("street", "station"):
        for number, image in enumerate(sorted((day / name).glob("*.png"), reverse=True)):
            place = day / "elsewhere" / name / f"person {number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, place / f"{(7 * number) % 36:03d}.png")
    places = [f"data.private.parts.{name}.source=elsewhere/{name}" for name in ("street", "station")]
    sets = [word for place in places for word in ("--set", place)]
    if not (day / "first").exists():  # when this test runs alone
        assert personae("run", "streets.toml", "--out", "first", "--workers", "1").code == 0
    assert personae("run", "streets.toml", "--out", "other", "--workers", "1", *sets).code == 0
    assert records(day / "first") == records(day / "other")
    assert len(records(day / "first")) > 8
    for content in records(day / "other").values():
        assert b"person" not in content.replace(b'"personal', b"").replace(b"/personal", b"")


def test_clusters_that_are_no_people_stop_a_run_that_asks_for_it(personae: Personae, day: Path) -> None:
    strictly = ("--set", "stages.cluster.algorithm.if_odd=stop", "--workers", "1")
    ended = personae("run", "streets.toml", "--out", "stop", *strictly)
    assert ended.code == 3, ended.err
    assert re.search(r"cluster: the clusters of station look collapsed: \d+ clusters of \d+ to \d+", one_line(ended))
    assert not (day / "stop" / "models" / "cluster.safetensors").exists()


def test_a_method_that_needs_labels_is_refused_before_anything_is_there(personae: Personae, day: Path) -> None:
    ended = personae("run", "streets.toml", "--out", "never", "--set", "stages.adapt.algorithm={name='fedpe'}")
    assert ended.code == 2, ended.err
    line = one_line(ended)
    assert "stage adapt: fedpe has to know who is on the faces" in line
    assert "data.private.parts.street is unlabelled" in line
    assert "unsupervised" in line
    assert not (day / "never").exists()


def test_a_flat_folder_without_a_word_is_refused_with_the_way_out(personae: Personae) -> None:
    ended = personae("run", "streets.toml", "--out", "flat", "--set", "data.private.parts.street.unlabelled=false")
    assert ended.code == 3, ended.err
    assert "or, if these faces have no labels, say unlabelled = true" in one_line(ended)
