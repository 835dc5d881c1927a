"""A broken photograph in somebody's folder, a failing program and a desk that is gone: what the server gets to see."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from lab import PERSONAE, lab
from PIL import Image

from fake import NAME, DesksOfTheirOwn, Recording, as_a_server  # noqa: F401 - the fixture
from personae.core.problem import Problem
from personae.deployment.consent import ALL
from personae.deployment.desk import Desk
from personae.deployment.join import Member
from personae.deployment.plan import POST, Conditions, outcome
from personae.deployment.serve import prepare
from personae.deployment.server import main
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.home import Records
from personae.report.html import write_report
from personae.runtime.post import Post
from personae.runtime.problems import PROBLEMS

EXPERIMENT = {
    "name": "tiny",
    "network": {"name": "small", "embedding": 8, "height": 32, "width": 32},
    "data": {"private": {"identities": 2, "images": 4}},
    "partition": {"by": "equal", "clients": 2},
    "stages": [
        {
            "name": "federate",
            "rounds": 1,
            "quorum": 0.25,
            "algorithm": {"name": "fedpe", "training": {"batch_size": 4, "iterations": 1}},
        }
    ],
}


def photographs(folder: Path, *people: str) -> Path:
    """Folders of small pictures; the first person's first one is cut short."""
    for index, person in enumerate(people):
        for number in range(4):
            path = folder / person / f"{person}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(10 * index + number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    return folder


def broken(folder: Path) -> Path:
    path = photographs(folder, NAME, "other") / NAME / f"{NAME}-0.png"
    path.write_bytes(path.read_bytes()[:100])
    return folder


def marked(folder: Path) -> Path:
    """A table in which a name stands where a part should."""
    images = photographs(folder / "images", "ann", "bob")
    rows = [f"{path.relative_to(images)},{path.parent.name},{NAME}" for path in images.rglob("*.png")]
    (folder / "labels.csv").write_text("\n".join(["path,identity,split", *rows]) + "\n")
    return folder


class Offices(DesksOfTheirOwn, Recording):
    """Each client with a desk of its own."""


def test_a_broken_photograph_of_somebody_says_nothing_of_whom(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    faces = {
        "Berlin": broken(tmp_path / "berlin"),
        "Oslo": photographs(tmp_path / "oslo", "ann", "bob"),
        "Paris": marked(tmp_path / "paris"),
        "Rome": photographs(tmp_path / "rome" / NAME, NAME),
    }
    out = tmp_path / "out"
    prepare(parse_experiment(EXPERIMENT, "test"), out, list(faces), Conditions(deadline=60, wait=1), resume=False)
    heard: dict[str, list[str]] = {name: [] for name in faces}
    desks = {}
    for name, folder in faces.items():
        home = tmp_path / f"home of {NAME}" / name
        member = Member(
            data=folder,
            home=home,
            execution=Execution(cache=tmp_path / "cache", notify=heard[name].append),
            accept=frozenset({ALL}),
        )
        desks[name] = Desk(member.host, member.execution.notify, member.problems, member.leaving)
    grid = Offices(Post(out / POST), desks)
    main(grid, {"out": str(out)})
    write_report(out)
    assert outcome(out) == {"code": 0, "error": ""}
    notices = (out / "notices.log").read_text()
    assert f"round 1: Berlin failed: {Problem.UNREADABLE.words}; the details are in that client's own log" in notices
    assert f"round 1: Paris failed: {Problem.DATA.words}" in notices
    assert f"no figures of Berlin: {Problem.UNREADABLE.words}" in notices
    said = capfd.readouterr()
    server = [*grid.heard, said.out.encode(), said.err.encode()]
    server += [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert Problem.UNREADABLE.words.encode() in (out / "report.html").read_bytes()
    assert not any(NAME.encode() in content for content in server)
    # Both sides count what left, though the office could not even open its faces.
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    sent = [entry["bytes"] for entry in ledger if (entry["client"], entry["direction"]) == ("Berlin", "up")]
    (folder,) = (tmp_path / f"home of {NAME}" / "Berlin" / "runs").iterdir()
    assert Records(folder).left(["federate"]) == [
        {"stage": "federate", "payload": "FailureCode", "messages": len(sent), "bytes": sum(sent)}
    ]
    # At the office they can see which photograph it is, on the screen and in the log.
    photograph = f"{NAME}/{NAME}-0.png"
    assert any(photograph in line and "the server is told 'unreadable' and no more" in line for line in heard["Berlin"])
    assert photograph in (tmp_path / f"home of {NAME}" / "Berlin" / PROBLEMS).read_text()
    assert not (tmp_path / f"home of {NAME}" / "Oslo" / PROBLEMS).exists()


# --------------------------------------------------------------------------------------------------- a real SuperLink

NETWORK = """
name = "tiny"

[network]
name = "small"
embedding = 8
height = 32
width = 32

[data.private]
identities = 6
images = 6

[partition]
by = "equal"
clients = 3

[[stages]]
name = "federate"
rounds = 2
quorum = 0.3

[stages.algorithm]
name = "fedpe"
training = { batch_size = 8, iterations = 2 }
"""


@pytest.mark.slow
def test_a_superlink_hears_no_name_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client has a broken photograph, and ends before it sends anything; another fails in its work, and is gone."""
    monkeypatch.setenv("SOMEBODY", NAME)
    programs = {
        name: [sys.executable, str(Path(__file__).with_name(f"{name}.py"))] for name in ("listening", "careless")
    }
    with lab(tmp_path / "lab", NETWORK) as here:
        here.serve("--deadline", "120", "--wait", "30", program=programs["listening"])
        here.join("client-000")
        here.homes = tmp_path / NAME
        words = here.joining("client-001", "client-001")
        words[words.index("--data") + 1] = str(broken(tmp_path / NAME / "faces"))
        ended = here.start("client-001", [*PERSONAE, *words])
        here.join("client-002", program=programs["careless"])
        here.done()
        first, second = (event["failed"] for event in here.records("metrics") if event["event"] == "round")
        assert first == {"client-001": "it is not connected", "client-002": Problem.UNREADABLE.words}
        assert second.keys() == {"client-001", "client-002"}
        assert ended.wait() == 3
        assert Problem.UNREADABLE.words in here.log("serve")
        heard = (here.folder / "heard").read_bytes()
        assert b"failure/value" in heard
        server = [heard, here.log("serve").encode()]
        server += [path.read_bytes() for path in here.out.rglob("*") if path.is_file()]
        assert not any(NAME.encode() in content for content in server)
        assert NAME in here.log("client-001")
        assert NAME in here.log("client-002")
        assert NAME in (here.home("client-002") / PROBLEMS).read_text()
