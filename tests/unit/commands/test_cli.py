"""The command line as a user meets it: what it prints, what it writes, and how it ends."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from personae import ALGORITHMS, Network, cli, load_experiment
from personae.core.layout import Layout
from personae.core.problem import Problem
from personae.deployment.processes import free_port
from personae.layers import EXAMPLES
from personae.privacy.disclosure import markdown

ROOT = Path(__file__).parents[3]
EXPERIMENT = """
name = "tiny"
network = { height = 32, width = 32, embedding = 16 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10 }

[data]
public = { identities = 8, images = 4 }
private = { first = 8, identities = 9, images = 6 }
heldout = { first = 17, identities = 8, images = 4 }

[[stages]]
name = "pretrain"
label = "pre-trained"
rounds = 1
algorithm = { name = "pretrain", training = { epochs = 1 } }

[[stages]]
name = "federate"
label = "federated"
rounds = 2
evaluate_every = 1
algorithm = { name = "fedpe", training = { epochs = 1, lr = 0.01 } }
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Personae = Callable[..., Ended]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def personae(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path) -> Iterator[Personae]:
    """Calls the command line in this process, as its entry point does."""
    monkeypatch.setenv("PERSONAE_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "200")
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["personae", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(EXPERIMENT)
    return path


def one_line(ended: Ended) -> str:
    """What was said about a failure, which has to be one line."""
    lines = [line for line in ended.err.splitlines() if line.startswith("personae: ")]
    assert len(lines) == 1, ended.err
    assert "Traceback" not in ended.err
    return lines[0]


def test_a_run_ends_with_a_table_and_a_report_and_leaves_its_records(
    personae: Personae, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = personae("run", experiment, "--out", out, "--workers", "1")
    assert ended.code == 0, ended.err
    assert "pre-trained" in ended.out
    assert "federated" in ended.out
    assert ended.out.rstrip().endswith(f"report: {out / 'report.html'}")
    assert "<html" in (out / "report.html").read_text()
    for name in ("config.json", "environment.json", "metrics.jsonl", "ledger.jsonl", "models/federate.safetensors"):
        assert (out / name).stat().st_size > 0
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rounds = [(event["stage"], event["round"]) for event in events if event["event"] == "global"]
    assert rounds == [("pretrain", 0), ("pretrain", 1), ("federate", 0), ("federate", 1), ("federate", 2)]
    measured = [event["metrics"] for event in events if event["event"] == "global"]
    assert measured[1] == measured[2], "a stage starts from the model that the one before it ended with"
    assert measured[0] != measured[1] != measured[3]


def test_the_ledger_counts_what_each_client_sent_and_received(
    personae: Personae, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert personae("run", experiment, "--out", out, "--workers", "1").code == 0
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    up = {
        (line["client"], line["payload"])
        for line in ledger
        if line["stage"] == "federate" and line["direction"] == "up"
    }
    kinds = ("Count", "ModelState", "Scalars")
    assert up == {(f"client-00{index}", kind) for index in range(3) for kind in kinds}
    sizes = {line["bytes"] for line in ledger if line["payload"] == "ModelState"}
    assert len(sizes) == 1
    assert sizes.pop() % 4 == 0
    assert not any(line["payload"] == "ClassEmbeddings" for line in ledger)


def test_results_as_json_are_the_table(personae: Personae, experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = personae("run", experiment, "--out", out, "--workers", "1", "--json")
    rows = json.loads(ended.out)["models"]
    assert [row["label"] for row in rows] == ["start", "pre-trained", "federated"]
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "global"][-1]
    assert rows[-1]["metrics"].items() >= last["metrics"].items()


def test_a_folder_in_use_is_not_overwritten_and_a_finished_run_resumes_to_itself(
    personae: Personae, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = personae("run", experiment, "--out", out, "--workers", "1")
    metrics = (out / "metrics.jsonl").read_bytes()
    again = personae("run", experiment, "--out", out)
    assert again.code == 2
    assert "--resume" in one_line(again)
    resumed = personae("run", experiment, "--out", out, "--resume", "--workers", "1")
    assert (resumed.code, resumed.out) == (0, first.out)
    assert (out / "metrics.jsonl").read_bytes() == metrics
    other = personae("run", experiment, "--out", out, "--resume", "--set", "seed=5")
    assert other.code == 2
    assert "seed was 0 and is 5" in one_line(other)


def test_resuming_what_was_never_begun_begins_it(personae: Personae, experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    ended = personae("run", experiment, "--out", out, "--resume", "--workers", "1", "--json")
    assert ended.code == 0
    result = json.loads(ended.out)
    assert [row["label"] for row in result["models"]] == ["start", "pre-trained", "federated"]
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert (events[0]["event"], events[0]["stage"], events[0]["round"]) == ("global", "pretrain", 0)
    assert result["models"][0]["metrics"].items() >= events[0]["metrics"].items()
    table = personae("report", out).out
    assert table.rindex("  pre-trained") < table.rindex("  federated")


def test_a_run_that_fails_on_its_faces_does_not_block_the_corrected_one(
    personae: Personae, experiment: Path, tmp_path: Path
) -> None:
    out, faces = tmp_path / "run", noisy_faces(tmp_path / "faces", people=9, shots=10)
    broken = faces / "p3" / "1.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:40])
    command = ("run", experiment, "--out", out, "--workers", "1", "--set", f"data.private.source={faces}")
    failed = personae(*command)
    assert failed.code == 3
    assert "p3/1.png" in one_line(failed)
    corrected = personae(*command, "--set", "data.private.skip_unreadable=true")
    assert corrected.code == 0, corrected.err
    broken.write_bytes(whole)
    assert "not empty" in one_line(personae(*command))  # a run that has begun is never replaced


def test_a_dry_run_says_what_it_takes_and_writes_no_run(personae: Personae, experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = json.loads(personae("run", experiment, "--out", out, "--dry-run", "--json", "--workers", "1").out)
    assert not out.exists()
    assert (found["clients"], found["identities"]) == (3, 9)
    stage = found["stages"][1]
    assert (stage["clients_per_round"], stage["rounds"]) == (3, 2)
    assert personae("run", experiment, "--out", out, "--workers", "1").code == 0
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    model = {line["bytes"] for line in ledger if line["payload"] == "ModelState"}.pop()
    assert stage["bytes_down"] == 3 * model
    crossed = sum(
        line["bytes"]
        for line in ledger
        if (line["stage"], line["round"], line["direction"]) == ("federate", 1, "up")
        and line["payload"] in ("ModelState", "Count")
    )
    assert stage["bytes_up"] == crossed + 3 * 8
    kinds = ", ".join(f"{found['kinds'][kind]} ({kind})" for kind in stage["leaves"])
    assert "weights (ModelState)" in kinds
    told = personae("run", experiment, "--dry-run", "--workers", "1").out
    assert f"leaves a client in federate: {kinds}\n" in told
    assert "differential privacy: none\n" in told


def test_a_dry_run_says_what_clients_see_of_each_other(personae: Personae, experiment: Path) -> None:
    def told(selection: str) -> str:
        given = ("--set", f"stages.federate.selection={selection}")
        return personae("run", experiment, "--dry-run", "--workers", "1", *given).out

    assert "what clients see of each other" not in told('{ name = "all" }')
    one = told('{ name = "passes", clients = 1 }')
    assert "what clients see of each other in federate: in a round of one client, the next client receives" in one
    assert "in a round of two clients, each can work out the other's update" in told('{ name = "count", clients = 2 }')


def test_a_dry_run_counts_what_layers_send(personae: Personae, experiment: Path) -> None:
    def federate(*layers: str) -> dict[str, Any]:
        given = ("--set", f"stages.federate.layers=[{', '.join(layers)}]")
        return json.loads(personae("run", experiment, "--dry-run", "--json", "--workers", "1", *given).out)["stages"][1]

    plain, clipped = federate(), federate('{ name = "clip", norm = 1.0 }')
    assert {**clipped, "algorithm": plain["algorithm"]} == plain
    carrying = federate('{ name = "carry", control_variates = true, momentum = "server" }')
    assert carrying["algorithm"] == f"{plain['algorithm']} with carry"
    layout = Layout.of(load_experiment(experiment).network.layout())
    gradients = 3 * 2 * 4 * layout.trainable_size  # three clients, a variate and a momentum, in both directions
    assert carrying["bytes_up"] - plain["bytes_up"] == gradients
    assert carrying["bytes_down"] - plain["bytes_down"] == gradients
    assert set(carrying["leaves"]) - set(plain["leaves"]) == {"Gradient"}


def test_every_kind_of_failure_has_its_exit_code(personae: Personae, experiment: Path, tmp_path: Path) -> None:
    run = ("run", experiment, "--workers", "1", "--out")
    wild = "--set stages.{0}.algorithm.training.lr=1e30 --set stages.{0}.algorithm.training.epochs=4"
    endings = {
        "usage": personae("run"),
        "unknown option": personae("run", experiment, "--nonsense"),
        "config": personae("run", tmp_path / "missing.toml"),
        "contradiction": personae(*run, tmp_path / "a", "--set", "data.private.min_images=3"),
        "faces from elsewhere": personae(*run, tmp_path / "a", "--set", "data.private.source=somewhere"),
        "no such faces": personae("evaluate", tmp_path / "none.pth", "--on", "x"),
        "server diverged": personae(*run, tmp_path / "b", *wild.format("pretrain").split()),
        "clients diverged": personae(*run, tmp_path / "c", *wild.format("federate").split()),
    }
    codes = {name: ended.code for name, ended in endings.items()}
    assert codes == {
        "usage": 2,
        "unknown option": 2,
        "config": 2,
        "contradiction": 2,
        "faces from elsewhere": 3,
        "no such faces": 3,
        "server diverged": 4,
        "clients diverged": 4,
    }
    assert "lower lr" in one_line(endings["server diverged"])
    assert "client-000" in one_line(endings["clients diverged"])


def test_missing_faces_are_a_data_error(personae: Personae, experiment: Path, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("private = { first = 8, identities = 9, images = 6 }", 'private = { source = "no-such" }')
    experiment.write_text(text)
    ended = personae("run", experiment, "--out", tmp_path / "run", "--workers", "1")
    assert ended.code == 3
    assert "no-such" in one_line(ended)


@pytest.mark.parametrize("command", [("run",), ("run", "--dry-run"), ("serve",)])
@pytest.mark.parametrize("name", ["fedfr", "adapt"])
def test_without_the_public_faces_that_it_needs_nothing_begins(
    personae: Personae, tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    experiment, out = tmp_path / "x.toml", tmp_path / "run"
    experiment.write_text(
        'name = "x"\npartition = { clients = 2 }\ndata = { private = { identities = 8 } }\n'
        f'[[stages]]\nname = "federate"\nalgorithm = {{ name = "{name}" }}\n'
    )
    ended = personae(command[0], experiment, *command[1:], "--out", out)
    assert ended.code == 2
    assert f"stage federate: {name} needs public faces; add [data.public] to the experiment" in one_line(ended)
    assert not out.exists()


def test_a_lost_quorum_names_a_client_and_why(personae: Personae, tmp_path: Path) -> None:
    """Each client has one training image, which BatchNorm cannot be trained on."""
    for person in range(3):
        for shot in range(3):
            path = tmp_path / "faces" / f"person{person}" / f"{shot}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (80 * person, 100 * shot, 50)).save(path)
    experiment = tmp_path / "x.toml"
    experiment.write_text(
        'name = "x"\nnetwork = { height = 32, width = 32 }\n'
        'partition = { by = "one-identity", train = 0.3, val = 0.0, test = 0.7 }\n'
        'data = { private = { source = "faces" } }\n'
        '[[stages]]\nname = "federate"\nalgorithm = { name = "fedpe" }\n'
    )
    ended = personae("run", experiment, "--out", tmp_path / "run", "--workers", "1")
    assert ended.code == 6
    log = tmp_path / "run" / "private" / "problems.log"
    said = f"first of 3: client-000: {Problem.DATA.words}; the details are in {log}"
    assert re.search(r"0 of 3 clients .* the quorum is 2; ", one_line(ended))
    assert said in one_line(ended)
    assert "BatchNorm" in log.read_text()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 5, "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 5, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 5, "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), 5, "not enough memory"),
        (OSError("the library says why"), 2, "personae: the library says why"),
        (OSError(errno.EACCES, "Permission denied", "/file"), 2, "personae: /file: Permission denied"),
    ],
)
def test_what_the_machine_lacks_is_told_in_one_line(
    personae: Personae, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    ended = personae("doctor")
    assert ended.code == code
    assert said in one_line(ended)


def test_a_full_disk_stops_the_run_which_then_resumes(
    personae: Personae, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is being written: records, a client's private state, a checkpoint, a model."""
    whole, real = tmp_path / "whole", os.fsync
    assert personae("run", experiment, "--out", whole, "--workers", "1").code == 0
    for write in (15, 25, 35):
        out, calls = tmp_path / f"full-at-{write}", count(1)

        def full(descriptor: int, calls: Iterator[int] = calls, write: int = write) -> None:
            if next(calls) == write:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        ended = personae("run", experiment, "--out", out, "--workers", "1")
        assert ended.code == 5
        assert "the disk is full" in one_line(ended)
        assert not list(out.rglob("*.tmp"))
        monkeypatch.setattr(os, "fsync", real)
        assert personae("run", experiment, "--out", out, "--workers", "1", "--resume").code == 0
        for name in ("metrics.jsonl", "ledger.jsonl", "models/federate.safetensors"):
            assert (out / name).read_bytes() == (whole / name).read_bytes()


# In a worker process the disk fails when one client is about to keep its second state.
FAILING = """
import errno, os
from pathlib import Path
opened = Path.open
def opening(path, *how, **more):
    if path.parent.parent.name == "client-001" and path.name.startswith(".000002.safetensors"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return opened(path, *how, **more)
Path.open = opening
"""


def test_a_worker_that_cannot_keep_a_state_stops_the_run_which_then_resumes(
    personae: Personae, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that failed would be left out of the model, and nobody would know."""
    whole, out, site = (tmp_path / name for name in ("whole", "run", "site"))
    assert personae("run", experiment, "--out", whole, "--workers", "2").code == 0
    site.mkdir()
    (site / "sitecustomize.py").write_text(FAILING)
    with monkeypatch.context() as failing:
        failing.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")])))
        ended = personae("run", experiment, "--out", out, "--workers", "2")
    assert ended.code == 5
    assert Problem.UNKEPT.words in one_line(ended)
    assert "problems.log says why, repair that and resume" in one_line(ended)
    assert os.strerror(errno.EIO) in (out / "private" / "problems.log").read_text()
    assert personae("run", experiment, "--out", out, "--workers", "2", "--resume").code == 0
    for name in ("metrics.jsonl", "ledger.jsonl", "models/federate.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_resumably(experiment: Path, tmp_path: Path, cache: Path, number: int) -> None:
    out = tmp_path / "run"
    # As in a shell's foreground: tests that run in its background inherit that interrupts are ignored.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", heard + "from personae.__main__ import main; main()", "run", str(experiment)]
    command += ["--out", str(out), "--workers", "1", "--set", "stages.federate.rounds=100000"]
    environment = {**os.environ, "PERSONAE_CACHE": str(cache)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not (out / "checkpoints" / "finished" / "pretrain.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 5, said
    assert "--resume" in said
    assert "Traceback" not in said


def test_a_model_of_a_run_and_its_weights_file_evaluate_alike(
    personae: Personae, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert personae("run", experiment, "--out", out, "--workers", "1").code == 0
    for person in range(6):
        for shot in range(3):
            path = tmp_path / "faces" / f"p{person}" / f"{shot}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((32, 32), 20 + 30 * person).convert("RGB").save(path)
    faces = f"noise={tmp_path / 'faces'}"
    of_run = personae("evaluate", out, "--on", faces, "--json")
    of_file = personae(
        "evaluate",
        out / "models" / "federate.safetensors",
        "--on",
        faces,
        "--json",
        "--backbone",
        "small",
        "--embedding",
        "16",
        "--size",
        "32",
    )
    assert of_run.code == 0, of_run.err
    assert json.loads(of_run.out) == json.loads(of_file.out)
    assert json.loads(of_run.out)["noise"]["genuine_pairs"] == 6 * 3
    assert "noise" in personae("evaluate", out, "--on", faces).out
    unknown = personae("evaluate", out, "--on", faces, "--stage", "central")
    assert unknown.code == 2
    assert "pretrain, federate" in one_line(unknown)


def noisy_faces(root: Path, people: int = 12, shots: int = 4) -> Path:
    for person in range(people):
        for shot in range(shots):
            path = root / f"p{person}" / f"{shot}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((32, 32), 20 + 10 * person + shot).convert("RGB").save(path)
    return root


def weights(file: Path) -> Path:
    save_file(Network(name="small", embedding=16, height=32, width=32).build().state_dict(), file)
    return file


def test_an_evaluation_has_intervals_progress_and_a_page(personae: Personae, tmp_path: Path) -> None:
    faces, model = noisy_faces(tmp_path / "faces"), weights(tmp_path / "model.safetensors")
    page = tmp_path / "page.html"
    ended = personae("evaluate", model, "--on", f"a [set]={faces}", "--report", page, "--resamples", "40")
    assert ended.code == 0, ended.err
    assert "embedding a [set]" in ended.err
    assert "a [set]" in ended.out
    assert re.search(r"tar@1e-01 .*\n.*\[\d+\.\d\d, \d+\.\d\d\]", ended.out)
    assert re.search(r"equal error rate .* \d+\.\d\d ", ended.out)
    assert re.search(r"pairs of two persons .* 1,056 ", ended.out)
    assert f"report: {page}" in ended.out.replace("\n", "")
    text = page.read_text()
    assert "false reject rate" in text
    assert "a [set]" in text
    assert "<script" not in text
    again = personae("evaluate", model, "--on", f"a [set]={faces}", "--json", "--resamples", "40")
    assert "embedding" not in again.err  # the vectors are there
    stored = json.loads(again.out)["a [set]"]
    assert set(stored["intervals"]) >= {"tar@1e-01", "tar@1e-02"}
    plain = personae("evaluate", model, "--on", f"x={faces}", "--json", "--no-mirror", "--resamples", "0", "--no-cache")
    assert "embedding x" in plain.err
    assert json.loads(plain.out)["x"]["intervals"] == {}
    assert json.loads(plain.out)["x"]["metrics"] != stored["metrics"]


@pytest.mark.parametrize(
    ("on", "code", "message"),
    [
        ("ijbc={}", 3, "ijbc_face_tid_mid.txt: cannot be read"),
        ("megaface={}", 3, "facescrub_lst: cannot be read"),
        ("calfw={}", 3, "no pairs_CALFW.txt"),
        ("rfw={}", 3, "no txts/GROUP"),
        ("ijba={}", 3, "ten splits"),
    ],
)
def test_a_benchmark_that_is_not_there_is_one_line(
    personae: Personae, tmp_path: Path, on: str, code: int, message: str
) -> None:
    faces, model = noisy_faces(tmp_path / "faces", 2, 1), weights(tmp_path / "model.safetensors")
    ended = personae("evaluate", model, "--on", on.format(faces))
    assert ended.code == code
    assert message in one_line(ended)


def test_benchmarks_take_names_and_their_paths_may_hold_equals_signs(personae: Personae, tmp_path: Path) -> None:
    faces, model = noisy_faces(tmp_path / "a=b" / "faces", 4, 2), weights(tmp_path / "model.safetensors")
    ended = personae("evaluate", model, "--on", f"x={faces}", "--on", faces, "--json", "--resamples", "0")
    assert ended.code == 0, ended.err
    assert list(json.loads(ended.out)) == ["x", "faces"]
    for nothing in ("", "x="):
        assert "there is no path" in one_line(personae("evaluate", model, "--on", nothing))


def test_a_page_that_cannot_be_written_is_told_before_the_work(personae: Personae, tmp_path: Path) -> None:
    faces, model = noisy_faces(tmp_path / "faces", 4, 2), weights(tmp_path / "model.safetensors")
    for option, target in (("--report", model / "page.html"), ("--save", faces)):
        ended = personae("evaluate", model, "--on", faces, option, target)
        assert ended.code == 2
        assert str(target) in one_line(ended)
        assert "embedding" not in ended.err


def test_an_evaluation_that_is_stopped_can_go_on(
    personae: Personae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("personae.evaluation.suite.evaluate", stopped)
    faces, model = noisy_faces(tmp_path / "faces", 4, 2), weights(tmp_path / "model.safetensors")
    ended = personae("evaluate", model, "--on", faces)
    assert ended.code == 5
    assert "the same command goes on" in one_line(ended)


@pytest.mark.parametrize(
    ("command", "help_"),
    [
        ("run", "An experiment file, the name of a recipe, or a"),
        ("evaluate", "A run, a client's home"),
        ("report", "Folder of a run."),
        ("verify", "An"),
    ],
)
def test_help_explains_arguments(personae: Personae, command: str, help_: str) -> None:
    told = personae(command, "--help").out.partition("Options")[0]
    assert help_ in told.partition("Arguments")[2]


def test_two_benchmarks_of_one_name_are_refused(personae: Personae, tmp_path: Path) -> None:
    faces, model = noisy_faces(tmp_path / "faces", 4, 2), weights(tmp_path / "model.safetensors")
    ended = personae("evaluate", model, "--on", f"x={faces}", "--on", f"x={faces}", "--resamples", "0")
    assert ended.code == 2
    assert "2 protocols are called 'x'" in ended.err
    no_gpu = personae("evaluate", model, "--on", f"x={faces}", "--device", "tpu")
    assert "'tpu' is not one of 'cpu', 'cuda'" in one_line(no_gpu)


def test_a_folder_that_is_no_run_is_refused(personae: Personae, tmp_path: Path) -> None:
    for arguments in (("report", tmp_path), ("evaluate", tmp_path, "--on", "x")):
        ended = personae(*arguments)
        assert ended.code == 2
        assert str(tmp_path) in one_line(ended)


@pytest.fixture
def untrained(tmp_path: Path) -> tuple[str | Path, ...]:
    """A model and how to open it: random weights keep pictures of one colour apart from those of another."""
    path = tmp_path / "weights.safetensors"
    network = Network(name="small", embedding=16, height=32, width=32)
    save_file(network.build(torch.Generator().manual_seed(0)).state_dict(), path)
    return path, "--backbone", "small", "--embedding", "16", "--size", "32"


def paint(folder: Path, colours: tuple[str, ...], each: int = 4) -> list[str]:
    """Pictures of few colours with a little noise, in one folder; gives the colour of each, by name of file."""
    folder.mkdir(parents=True)
    painted = []
    for number in range(each * len(colours)):
        colour = colours[number % len(colours)]
        picture = Image.blend(Image.new("RGB", (32, 32), colour), Image.effect_noise((32, 32), 9).convert("RGB"), 0.05)
        picture.save(folder / f"{number:02d}.png")
        painted.append(colour)
    return painted


def test_cluster_finds_who_belongs_together_without_labels(
    personae: Personae, tmp_path: Path, untrained: tuple[str | Path, ...]
) -> None:
    painted = paint(tmp_path / "heap", ("red", "blue", "lime"))
    out = tmp_path / "found"
    options = ("--on", tmp_path / "heap", "--out", out, "--distance", "0.2")
    ended = personae("cluster", *untrained, *options)
    assert ended.code == 0, ended.err
    assert "F-score" not in ended.out  # nobody said who is who
    assert str(out / "labels.csv") in ended.out.replace("\n", "")
    lines = (out / "labels.csv").read_text().splitlines()
    assert lines[0] == "image,cluster"
    found = dict(line.split(",") for line in lines[1:])
    assert [found[f"{number:02d}.png"] for number in range(12)] == [
        {"red": "0", "blue": "1", "lime": "2"}[colour] for colour in painted
    ]
    summary = json.loads((out / "clusters.json").read_text())
    assert (summary["clusters"], summary["sizes"], summary["in_no_cluster"]) == (3, [4, 4, 4], 0)
    assert summary["clustering"]["distance"] == 0.2
    assert (summary["agreement"], summary["people"]) == (None, None)
    with Image.open(out / "clusters.png") as sheet:
        colours = sheet.convert("RGB")
        assert colours.size[0] > colours.size[1]
        row = [colours.getpixel((140 + 68 * column, 60)) for column in range(5)]
    assert [pixel[0] > 200 > pixel[2] for pixel in row] == [True] * 4 + [False]  # four red ones, then paper
    again = json.loads(personae("cluster", *untrained, *options, "--json").out)
    assert {**summary, "out": str(out)} == again


def test_cluster_evaluates_itself_where_identities_are_known(
    personae: Personae, tmp_path: Path, untrained: tuple[str | Path, ...]
) -> None:
    for person, colours in (("ann", ("red",)), ("bob", ("blue", "lime")), ("eve", ("lime",))):
        paint(tmp_path / "people" / person, colours)
    options = ("--on", tmp_path / "people", "--out", tmp_path / "found")
    found = json.loads(personae("cluster", *untrained, *options, "--distance", "0.2", "--json").out)
    # Pairs: ann 6, bob 28, eve 6. Clusters: red 4, blue 4, lime 8, of which ann 6, bob 6 + 6 and eve 6 pairs are right.
    assert found["sizes"] == [4, 4, 8]
    assert found["agreement"]["precision"] == pytest.approx(24 / 40)
    assert found["agreement"]["recall"] == pytest.approx(24 / 40)
    assert found["people"] == 3
    with Image.open(tmp_path / "found" / "clusters.png") as sheet:  # the largest cluster first: bob, bob, ..., eve, eve
        corners = [sheet.convert("RGB").getpixel((132 + 68 * column, 36)) for column in range(8)]
    assert [corner == (192, 57, 43) for corner in corners] == [False] * 4 + [True] * 4  # a frame around another person
    shown = personae("cluster", *untrained, *options).out
    assert "F-score" in shown
    assert "people" in shown
    for method, option, expected in (
        ("finch", ("--level", "0"), {"level": 0}),
        ("c-finch", ("--centroids", "mean", "--metric", "cosine"), {"centroids": "mean", "metric": "cosine"}),
        ("c-finch", ("--search", "exact"), {"search": "exact"}),
        ("k-means", ("--clusters", "3"), {"clusters": 3}),
        ("k-means", ("--images-each", "8"), {"images_each": 8}),
        ("dbscan", ("--radius", "0.2", "--neighbours", "4"), {"radius": 0.2, "neighbours": 4}),
    ):
        by = json.loads(personae("cluster", *untrained, *options, "--method", method, *option, "--json").out)
        assert by["clustering"].items() >= {"name": method, **expected}.items()
        assert by["images"] == 16
        assert method != "k-means" or by["clusters"] == (3 if "clusters" in expected else 2)
    dropped = json.loads(
        personae("cluster", *untrained, *options, "--distance", "0.2", "--min-images", "5", "--json").out
    )
    assert (dropped["sizes"], dropped["in_no_cluster"]) == ([8], 8)


def test_cluster_on_bad_input_says_one_line(
    personae: Personae, tmp_path: Path, untrained: tuple[str | Path, ...]
) -> None:
    paint(tmp_path / "heap", ("red", "blue"))
    heap = ("--on", tmp_path / "heap", "--out", tmp_path / "found")
    for options, code, said in (
        ((*untrained, *heap, "--clusters", "3"), 2, "--clusters does not go with c-finch, but with k-means"),
        ((*untrained, *heap, "--method", "dbscan", "--level", "1"), 2, "but with c-finch, finch"),
        ((*untrained, *heap, "--distance", "-1"), 2, "distance is -1.0, it must be positive"),
        ((*untrained, *heap, "--metric", "manhattan"), 2, "'manhattan' is not one of 'euclidean', 'cosine'"),
        ((*untrained, *heap, "--images-each", "4"), 2, "--images-each does not go with c-finch, but with k-means"),
        ((*untrained, *heap, "--device", "tpu"), 2, "'tpu' is not one of 'cpu', 'cuda'"),
        ((*untrained, "--on", tmp_path / "nowhere"), 3, "no such file or folder"),
        ((tmp_path / "heap", *heap), 2, "this folder is neither a run nor the home of a client"),
    ):
        ended = personae("cluster", *options)
        assert ended.code == code, ended.err
        assert said in one_line(ended)
    (tmp_path / "heap" / "broken.png").write_bytes(b"no picture")
    assert "broken.png" in one_line(personae("cluster", *untrained, *heap))
    assert personae("cluster", *untrained, *heap, "--skip-unreadable").code == 0
    assert not (tmp_path / "nowhere").exists()


def test_partition_prints_plots_and_writes_who_holds_what(personae: Personae, tmp_path: Path) -> None:
    picture, table = tmp_path / "p.png", tmp_path / "p.csv"
    common = ("partition", "synthetic", "--identities", "12", "--clients", "4", "--plot", picture)
    ended = personae(*common, "--table", table, "--new-clients", "1")
    assert ended.code == 0, ended.err
    assert "client-003 (new)" in ended.out
    with Image.open(picture) as image:
        assert image.width > 300
    assert len(table.read_text().splitlines()) == 1 + 12 * 20
    rows = json.loads(personae(*common, "--json").out)
    assert [row["identities"] for row in rows] == [3, 3, 3, 3]
    refused = personae("partition", "synthetic", "--identities", "3", "--clients", "4", "--plot", picture)
    assert refused.code == 3
    assert "4 clients" in one_line(refused)


def test_algorithms_lists_every_algorithm_with_its_defaults(personae: Personae) -> None:
    described = json.loads(personae("algorithms", "--json").out)
    assert list(described) == list(ALGORITHMS)
    assert described["fedpe"]["training"]["momentum"] == 0.9
    assert "fedpe" in personae("algorithms").out


def test_the_disclosure_page_is_what_the_types_say(personae: Personae) -> None:
    page = (ROOT / "docs" / "reference" / "disclosure.md").read_text()
    assert page == markdown(ALGORITHMS.values(), EXAMPLES)
    assert personae("disclose", "--markdown").out == page
    listed = json.loads(personae("disclose", "--json").out)
    up = [row for row in listed["algorithms"] if row["direction"] == "up"]
    assert {row["payload"] for row in up if row["algorithm"] == "fedpe"} == {"ModelState", "Count", "Scalars"}
    for name in ("fedgc", "fedface"):
        assert {row["payload"] for row in up if row["algorithm"] == name} >= {"ModelState", "ClassEmbeddings"}
    carried = [row["field"] for row in listed["layers"] if row["after"] == "Gradient" and row["direction"] == "up"]
    assert carried == ["momentum", "control_variate"]
    told = " ".join(personae("disclose").out.split())
    assert "ModelWithoutBatchNorm" in told
    assert "pools the faces" in told
    assert "fedgc sends ClassEmbeddings: a biometric template of each person leaves the client" in told


def test_the_doctor_measures_and_advises(personae: Personae, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {item["subject"]: item for item in json.loads(personae("doctor", "--json").out)}
    assert int(found["convolution, one thread"]["state"].split()[0]) > 0
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("PERSONAE_CACHE", str(file / "below"))
    blocked = {item["subject"]: item for item in json.loads(personae("doctor", "--json").out)}
    assert not blocked["cache"]["good"]
    assert "PERSONAE_CACHE" in blocked["cache"]["advice"]
    assert "torch" in personae("doctor").out


def test_a_gpu_that_is_not_there_is_refused(
    personae: Personae, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for device in ("cuda", "tpu"):
        ended = personae("run", experiment, "--out", tmp_path / "run", "--device", device)
        assert ended.code == 2
        assert "--device" in one_line(ended)
        assert device in one_line(ended)


# ---------------------------------------------------------------------------------------------------- over a network


def test_certificates_faces_and_the_folder_of_a_run(
    personae: Personae, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    certs = tmp_path / "certs"
    made = personae("certs", str(certs), "--host", "10.1.2.3", "--client", "ann", "--client", "bob", "--json")
    assert made.code == 0
    assert {Path(path).relative_to(certs).as_posix() for path in json.loads(made.out)} >= {
        "ca.crt",
        "server/server.crt",
        "server/clients/ann.pub",
        "bob/key",
    }
    dealt = personae("deal", str(experiment), "--out", str(tmp_path / "dealt"), "--json")
    assert [Path(path).name for path in json.loads(dealt.out)] == [f"client-00{number}.zip" for number in range(3)]
    monkeypatch.setattr("personae.deployment.serve._until_done", lambda *_: {"code": 6, "error": "nobody came"})
    serve = ("serve", str(experiment), "--certs", str(certs / "server"), "--out", str(tmp_path / "run"))
    serve = (*serve, "--host", "127.0.0.1", "--port", str(free_port()))
    assert personae(*serve, "--json").code == 6
    assert json.loads((tmp_path / "run" / "deployment.json").read_text())["clients"] == ["ann", "bob"]
    assert personae(*serve).code == 6  # no round was completed, so that a new run may begin here
    assert personae(*serve, "--resume", "--deadline", "7").code == 6
    assert json.loads((tmp_path / "run" / "deployment.json").read_text())["conditions"]["deadline"] == 7
    assert "begun with --coding exact" in personae(*serve, "--resume", "--coding", "fp16").err
    assert "--superlink and --superlink-certs go together" in personae(*serve, "--superlink", "hub:9092").err


def test_without_flower_its_commands_say_what_to_install(personae: Personae, experiment: Path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (
        ("certs",),
        ("serve", str(experiment)),
        ("join", "--server", "a:1", "--data", ".", "--certs", "."),
    ):
        ended = personae(*words)
        assert ended.code == 2
        assert "pip install 'personae[flower]'" in ended.err
