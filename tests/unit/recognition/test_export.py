"""Models out and in use: ONNX and safetensors, cards, thresholds, and the commands from export to identify."""

import dataclasses
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from personae import cli
from personae.core.algorithm import ClientInfo
from personae.core.embedder import Embedder
from personae.core.holdings import ClientFaces
from personae.data import detection, synthetic_faces
from personae.data.align import similarity, template, warp
from personae.errors import ConfigError, DataError
from personae.evaluation.protocols import Benchmark
from personae.evaluation.suite import evaluate
from personae.experiment.assembly import federation_of
from personae.experiment.config import load_experiment, parse_experiment
from personae.experiment.materials import Materials
from personae.experiment.model import Model, load_model, load_state
from personae.experiment.run import run_experiment
from personae.models import Network, load_weights
from personae.parts import onnx as onnx_models
from personae.parts.embedding import BackboneEmbedder
from personae.parts.onnx import save_onnx
from personae.recognition.card import markdown
from personae.recognition.export import export_model
from personae.recognition.faces import read_face, read_person
from personae.recognition.gallery import Gallery
from personae.recognition.threshold import Threshold, plain_evaluation, save_evaluation, threshold_at
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.host import ClientHost
from personae.runtime.transport import Answer, Request

EXPERIMENT = """
name = "tiny"
network = { height = 32, width = 32, embedding = 16 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10, fars = [0.1, 0.01] }

[data]
public = { identities = 8, images = 4 }
private = { first = 8, identities = 9, images = 6 }
heldout = { first = 17, identities = 20, images = 5 }

[[stages]]
name = "pretrain"
rounds = 1
algorithm = { name = "pretrain", training = { epochs = 1 } }

[[stages]]
name = "federate"
rounds = 2
algorithm = { name = "fedfr", training = { epochs = 1, lr = 0.01 } }

[[stages]]
name = "tune"
rounds = 1
algorithm = { name = "tune" }

[[stages]]
name = "corrected"
after = "pretrain"
rounds = 1
algorithm = { name = "fedgc", training = { epochs = 1, lr = 0.01 } }
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.toml").write_text(EXPERIMENT)
    run_experiment(load_experiment(folder / "tiny.toml"), folder / "tiny", cache=cache)
    return folder / "tiny"


def pixels(count: int, side: int = 32, seed: int = 5) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=random)


def as_network(images: Tensor) -> Tensor:
    return (images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


@pytest.fixture
def runtime() -> Callable[[Path], Callable[[Tensor], Tensor]]:
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX models are an extra")
    pytest.importorskip("onnx", reason="ONNX models are an extra")

    def opened(path: Path) -> Callable[[Tensor], Tensor]:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (takes,), (gives,) = session.get_inputs(), session.get_outputs()
        assert (takes.name, takes.type) == ("data", "tensor(float)")
        assert not isinstance(takes.shape[0], int)  # any number of images
        assert not isinstance(gives.shape[0], int)
        return lambda batch: torch.from_numpy(session.run(None, {"data": batch.numpy()})[0])

    return opened


@pytest.mark.parametrize(
    "network",
    [
        Network(name="small", embedding=8, height=32, width=48),
        Network(name="small", embedding=8, height=32, width=32, norm="group", hidden=12),
        Network(name="mobilefacenet", embedding=8, height=32, width=32),
        Network(name="iresnet18", embedding=8, height=32, width=32),
        Network(name="sphere20", embedding=8, height=32, width=32),
    ],
    ids=lambda network: network.name,
)
def test_a_network_in_onnx_gives_what_it_gives_in_torch(tmp_path: Path, network: Network, runtime) -> None:
    module = network.build(torch.Generator().manual_seed(3)).eval()
    for buffer in (each for each in module.buffers() if each.is_floating_point()):
        buffer.add_(0.1)  # statistics that are not those of the beginning
    off = save_onnx(module, tmp_path / "model.onnx", network.height, network.width)
    assert off <= 1e-5
    batch = torch.rand(3, 3, network.height, network.width, generator=torch.Generator().manual_seed(4)) * 2 - 1
    with torch.no_grad():
        wanted = module(batch)
    found = runtime(tmp_path / "model.onnx")(batch)
    assert ((found - wanted) / wanted.norm(dim=1, keepdim=True)).abs().max() < 1e-5
    content = (tmp_path / "model.onnx").read_bytes()
    assert str(Path(__file__).parents[3]).encode() not in content  # nothing of the machine


@pytest.mark.parametrize(("raw", "unit"), [(True, False), (False, True), (True, True)])
def test_normalisation_can_be_part_of_the_file(tmp_path: Path, raw: bool, unit: bool, runtime) -> None:
    network = Network(name="small", embedding=8, height=32, width=32)
    module = network.build(torch.Generator().manual_seed(3)).eval()
    save_onnx(module, tmp_path / "model.onnx", 32, 32, raw=raw, unit=unit)
    images = pixels(3)
    with torch.no_grad():
        wanted = module(as_network(images))
    wanted = F.normalize(wanted, dim=1) if unit else wanted
    found = runtime(tmp_path / "model.onnx")(images.permute(0, 3, 1, 2).float() if raw else as_network(images))
    assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-4)
    # Whoever loads it here need not know.
    both = as_network(images).flip(3)
    with torch.no_grad():
        plain = module(as_network(images)), module(both)
    plain = tuple(F.normalize(each, dim=1) for each in plain) if unit else plain
    assert torch.allclose(
        load_model(tmp_path / "model.onnx").embedder(images), F.normalize(sum(plain), dim=1), atol=1e-5
    )


@pytest.mark.parametrize("fault", [lambda found: found * 1.0001, lambda found: found + 1e-3, lambda found: found / 0])
def test_a_file_that_is_off_is_not_written(tmp_path: Path, fault, monkeypatch: pytest.MonkeyPatch, runtime) -> None:
    honest = onnx_models._run
    monkeypatch.setattr(onnx_models, "_run", lambda session, batch: fault(honest(session, batch)))
    module = Network(name="small", embedding=8, height=32, width=32).build()
    with pytest.raises(DataError, match=r"model.onnx: not written: in ONNX Runtime the model differs .* by \S+ of a"):
        save_onnx(module, tmp_path / "model.onnx", 32, 32)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_the_extra_is_named(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"model.onnx: ONNX models need {package}; install it with: pip install"):
        save_onnx(Network().build(), tmp_path / "model.onnx", 64, 64)
    assert not list(tmp_path.iterdir())


def test_a_run_as_safetensors_is_the_same_model(tmp_path: Path, run: Path) -> None:
    done = export_model(run, tmp_path / "model.safetensors", stage="federate", resamples=20)
    assert done.parity is None
    of_run, of_file = load_model(run, "federate"), load_model(tmp_path / "model.safetensors")
    assert of_file.digest == of_run.digest
    assert torch.equal(of_file.embedder(pixels(4)), of_run.embedder(pixels(4)))
    assert of_file.digest != load_model(run, "pretrain").digest
    assert of_file.digest != load_model(tmp_path / "model.safetensors", mirror=False).digest
    recorded = json.loads((run / "evaluation" / "federate.json").read_text())["benchmarks"]
    assert done.evaluation.results["heldout"].metrics == recorded["heldout"]["metrics"]


def test_a_run_in_onnx_has_its_figures(tmp_path: Path, run: Path, runtime) -> None:
    done = export_model(run, tmp_path / "model.onnx", stage="federate", resamples=0, raw=True)
    recorded = json.loads((run / "evaluation" / "federate.json").read_text())["benchmarks"]
    for name, value in done.evaluation.results["heldout"].metrics.items():
        assert value == pytest.approx(recorded["heldout"]["metrics"][name], abs=0.02), name


def kept(run: Path, client: str, stage: str) -> dict[str, Tensor]:
    (latest,) = sorted((run / "private" / client / stage).iterdir())[-1:]
    return load_file(latest)


def test_the_personal_model_of_fedfr_is_its_backbone_and_transform(tmp_path: Path, run: Path) -> None:
    export_model(run, tmp_path / "own.safetensors", stage="federate", client="client-001", evaluate=False)
    network, _ = load_weights(tmp_path / "own.safetensors")
    assert network == Network(height=32, width=32, embedding=16, hidden=16)
    private = kept(run, "client-001", "federate")
    backbone = Network(height=32, width=32, embedding=16).build().eval()
    floats = {key.removeprefix("model/"): value for key, value in private.items() if key.startswith("model/")}
    assert set(floats) <= set(backbone.state_dict())
    backbone.load_state_dict(floats, strict=False)
    names = json.loads((tmp_path / "own.card.json").read_text())["model"]["network"]
    assert names["hidden"] == 16
    order = ["transform", "shift", "classifiers", "bias"]
    transform, shift = (private[f"branch/{order.index(name)}"] for name in ("transform", "shift"))
    assert not torch.equal(transform, torch.eye(16))  # it has learnt something
    images = as_network(pixels(5))
    with torch.no_grad():
        wanted = backbone(images) @ transform.T + shift
        mirrored = backbone(images.flip(3)) @ transform.T + shift
    found = load_model(tmp_path / "own.safetensors").embedder(pixels(5))
    assert torch.allclose(found, F.normalize(wanted + mirrored, dim=1), atol=1e-5)
    assert load_model(run, "federate", client="client-001").digest == load_model(tmp_path / "own.safetensors").digest
    assert load_model(run, "federate", client="client-002").digest != load_model(tmp_path / "own.safetensors").digest


def floats_of(state: dict[str, Tensor]) -> list[Tensor]:
    return [state[name] for name in sorted(state) if state[name].is_floating_point()]


def evaluated_in(run: Path, stage: str, client: str) -> Tensor:
    """The weights of the last model that an evaluator is shown when a client is evaluated after a stage."""
    experiment = parse_experiment(json.loads((run / "config.json").read_text()), "config.json")
    materials, seen = Materials(experiment), []

    def evaluator(embedder: Embedder, faces: ClientFaces) -> dict[str, float]:
        if isinstance(embedder, BackboneEmbedder):  # the client's own, and not what remembers the global one
            seen.append(torch.cat([each.flatten() for each in floats_of(embedder.backbone.module.state_dict())]))
        return {}

    federation = dataclasses.replace(federation_of(experiment, materials.clients, run / "private"), evaluator=evaluator)
    host = ClientHost(federation)
    checkpoints = Checkpoints(run / "checkpoints", materials.digest(), experiment.recipe, host.backbone.layout)
    chosen = federation.stage(stage)
    info = ClientInfo(client, materials.clients.clients.index(client))
    down = chosen.algorithm.send(checkpoints.finished(stage), info)
    answer = host.handle(Request("evaluate", stage, chosen.rounds, info, down))
    assert isinstance(answer, Answer), answer
    return seen[-1]


def test_a_model_that_is_tuned_for_a_client_is_tuned_the_same_again(tmp_path: Path, run: Path) -> None:
    network, once = load_state(run, "tune", client="client-000")
    _, again = load_state(run, "tune", client="client-000")
    _, shared = load_state(run, "tune")
    assert network == Network(height=32, width=32, embedding=16)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert any(not torch.equal(once[name], shared[name]) for name in once)
    assert torch.equal(evaluated_in(run, "tune", "client-000"), torch.cat([each.flatten() for each in floats_of(once)]))
    # Its figures are those of the run.
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (event,) = [each for each in events if each["event"] == "personal" and each["stage"] == "tune"]
    export_model(run, tmp_path / "own.onnx", client="client-000", stage="tune", evaluate=False)
    card = json.loads((tmp_path / "own.card.json").read_text())
    assert card["at_the_client"] == event["clients"]["client-000"]
    assert card["benchmarks"] == {}
    assert card["model"]["client"] == "client-000"


def test_a_card_tells_what_the_ledger_tells(tmp_path: Path, run: Path) -> None:
    export_model(run, tmp_path / "model.safetensors", stage="corrected", resamples=30, fars=[0.05])
    card = json.loads((tmp_path / "model.card.json").read_text())
    messages, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for line in (run / "ledger.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["direction"] == "up" and entry["stage"] in ("pretrain", "corrected"):
            messages[entry["stage"], entry["payload"]] += 1
            sizes[entry["stage"], entry["payload"]] += entry["bytes"]
    assert ("corrected", "ClassEmbeddings") in sizes
    left = {(each["stage"], each["payload"]): (each["messages"], each["bytes"]) for each in card["left_the_clients"]}
    assert left == {key: (messages[key], sizes[key]) for key in sizes}
    assert [each["name"] for each in card["training"]["stages"]] == ["pretrain", "corrected"]
    result = card["benchmarks"]["heldout"]
    assert set(result["thresholds"]) == {"tar@1e-01", "tar@1e-02", "tar@5e-02"}
    assert set(result["intervals"]) >= {"tar@1e-01", "accuracy"}
    page = (tmp_path / "model.card.md").read_text()
    assert page == markdown(card)
    for needed in (
        "a biometric template of each person leaves the client",
        "| corrected | fedgc | 1 |",
        "20 people of synthetic faces",
        f"{100 * result['intervals']['tar@1e-01']['low']:.2f} to {100 * result['intervals']['tar@1e-01']['high']:.2f}",
        "It was trained on synthetic faces alone",
        "## Intended use",
        "No image left a client.",
    ):
        assert needed in page, needed
    assert str(run) not in page + json.dumps(card)
    assert str(tmp_path) not in page + json.dumps(card)


def test_exports_that_cannot_be(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ConfigError, match=r"x.pb: a model is exported to a file that ends with .safetensors or .onnx"):
        export_model(run, tmp_path / "x.pb")
    with pytest.raises(ConfigError, match=r"no client is called 'Eve'; there are client-000, client-001, client-002"):
        export_model(run, tmp_path / "x.safetensors", client="Eve")
    with pytest.raises(ConfigError, match=r"no stage is called 'Eve'"):
        export_model(run, tmp_path / "x.safetensors", stage="Eve")
    with pytest.raises(ConfigError, match=r"federate.safetensors: a run keeps its own files there"):
        export_model(run, run / "models" / "federate.safetensors", client="client-000")
    with pytest.raises(ConfigError, match=r"this goes with .onnx"):
        export_model(run, tmp_path / "x.safetensors", raw=True)
    export_model(run, tmp_path / "x.safetensors", evaluate=False)
    with pytest.raises(ConfigError, match=r"--stage and --client go with a run"):
        export_model(tmp_path / "x.safetensors", tmp_path / "y.safetensors", client="client-000")
    with pytest.raises(ConfigError, match=r"x.safetensors: this is the model itself"):
        export_model(tmp_path / "x.safetensors", tmp_path / "x.safetensors")
    export_model(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    page = (tmp_path / "y.card.md").read_text()
    assert "Not known here: the weights came as a file." in page
    assert "None were measured." in page


def test_model_and_card_appear_together_or_not_at_all(tmp_path: Path, run: Path) -> None:
    def unreadable(model: Model) -> list[Benchmark]:
        assert model.height == 32
        raise DataError("these faces cannot be read")

    for suffix in (".safetensors", ".onnx"):
        with pytest.raises(DataError, match="these faces cannot be read"):
            export_model(run, tmp_path / f"x{suffix}", on=unreadable)
        assert not list(tmp_path.iterdir())
    export_model(run, tmp_path / "x.safetensors", stage="federate", evaluate=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"x.safetensors", "x.card.md", "x.card.json"}
    with pytest.raises(DataError):
        export_model(run, tmp_path / "x.safetensors", stage="pretrain", on=unreadable)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ConfigError, match=r"folder.onnx: is a folder"):
        export_model(run, tmp_path / "folder.onnx")


def test_an_experiment_may_begin_with_what_was_exported(tmp_path: Path, run: Path, cache: Path) -> None:
    export_model(run, tmp_path / "start.safetensors", stage="federate", evaluate=False)
    text = EXPERIMENT.replace('name = "tiny"', 'name = "second"\nweights = "start.safetensors"', 1)
    head, *stages = text.split("[[stages]]")
    (tmp_path / "second.toml").write_text("[[stages]]".join([head, stages[3].replace('after = "pretrain"\n', "")]))
    run_experiment(
        load_experiment(tmp_path / "second.toml", ["stages.0.algorithm.training.lr=1e-30"]), tmp_path / "b", cache=cache
    )
    _, begun = load_state(tmp_path / "b")
    _, start = load_state(tmp_path / "start.safetensors")
    trained = [name for name, tensor in start.items() if tensor.is_floating_point() and "running" not in name]
    assert all(torch.allclose(begun[name], start[name], atol=1e-6) for name in trained)  # no step led anywhere
    assert '"start.safetensors"' in json.dumps(_card(tmp_path / "b", tmp_path)["training"]["weights"])


def test_weights_that_do_not_fit_are_told_before_anything_begins(tmp_path: Path, run: Path) -> None:
    export_model(run, tmp_path / "start.safetensors", stage="federate", evaluate=False)
    (tmp_path / "next.toml").write_text(
        EXPERIMENT.replace('name = "tiny"', 'name = "next"\nweights = "start.safetensors"', 1)
    )
    for setting, error, message in (
        ("weights=nowhere.pth", DataError, r"nowhere.pth: cannot be read \(No such file"),
        ("network.embedding=8", DataError, r"not the weights of small \(8-d.*they look like small \(16-d, 32x32"),
    ):
        with pytest.raises(error, match=message):
            run_experiment(load_experiment(tmp_path / "next.toml", [setting]), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def _card(run: Path, folder: Path) -> dict:
    export_model(run, folder / "again.safetensors", evaluate=False)
    return json.loads((folder / "again.card.json").read_text())


def test_thresholds_are_those_of_the_rates() -> None:
    faces = synthetic_faces(identities=30, images=6, size=32)

    def embedder(images: Tensor) -> Tensor:
        return F.normalize(images.float().mean(dim=1).flatten(1) - 127, dim=1)

    result = Benchmark("x", faces.samples(), fars=(1.0, 0.1, 0.02)).evaluate(embedder)
    rows = embedder(torch.from_numpy(faces.images(np.arange(len(faces))))).double()
    rows = rows / rows.norm(dim=1, keepdim=True)
    left, right = torch.triu_indices(len(rows), len(rows), 1)
    scores, same = (
        (rows[left] * rows[right]).sum(1),
        torch.from_numpy(faces.identity)[left] == torch.from_numpy(faces.identity)[right],
    )
    assert set(result.thresholds) == {"tar@1e-01", "tar@2e-02"}  # no finite score accepts everything
    for name, threshold in result.thresholds.items():
        accepted = scores >= threshold - 1e-7
        assert accepted[~same].double().mean() <= float(name.removeprefix("tar@")) + 1 / (~same).sum()
        assert accepted[same].double().mean() == pytest.approx(result.metrics[name], abs=1e-9)
        lower = scores >= threshold - 1e-3
        assert lower[~same].double().mean() > accepted[~same].double().mean() - 1e-12


@pytest.fixture
def evaluated(tmp_path: Path, run: Path) -> Path:
    model = load_model(run)
    faces = synthetic_faces(identities=25, images=5, size=32, first=40)
    benchmarks = [Benchmark(name, faces.samples(), fars=(0.1, 0.01, 0.001)) for name in ("one", "two")]
    found = evaluate(model.embedder, benchmarks)
    save_evaluation(tmp_path / "both.json", model, found)
    single = plain_evaluation(model, found)
    del single["benchmarks"]["two"]
    (tmp_path / "one.json").write_text(json.dumps(single))
    return tmp_path


def test_a_threshold_at_a_rate(evaluated: Path, run: Path) -> None:
    model = load_model(run)
    content = json.loads((evaluated / "one.json").read_text())["benchmarks"]["one"]
    found = threshold_at(0.01, evaluated / "one.json", model)
    assert found == Threshold(content["thresholds"]["tar@1e-02"], 0.01, "one, 7,500 pairs of impostors")
    assert str(found).endswith("(false accept rate 0.01 on one, 7,500 pairs of impostors)")
    assert threshold_at(0.01, evaluated / "both.json", model, "two").source == "two, 7,500 pairs of impostors"
    with pytest.raises(ConfigError, match=r"both.json: choose the benchmark .* there are one, two"):
        threshold_at(0.01, evaluated / "both.json", model)
    # 7,500 pairs allow seven false accepts at 1e-3, which says little of the true rate.
    with pytest.raises(
        DataError, match=r"7,500 pairs of impostors, too few for a false accept rate of 0.001: it takes 30,000"
    ):
        threshold_at(0.001, evaluated / "one.json", model)
    with pytest.raises(
        ConfigError, match=r"not evaluated at a false accept rate of 0.05; there are 1e-01, 1e-02, 1e-03"
    ):
        threshold_at(0.05, evaluated / "one.json", model)
    with pytest.raises(DataError, match=r"one.json: an evaluation of another model"):
        threshold_at(0.01, evaluated / "one.json", load_model(run, "pretrain"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": 1, "benchmarks": {}}',
        b'{"model": {"digest": 1}, "benchmarks": {}}',
        b'{"model": {"digest": "x"}, "benchmarks": []}',
    ],
)
def test_evaluations_that_are_none(tmp_path: Path, run: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(DataError, match=r"^\S*bad.json: "):
        threshold_at(0.01, tmp_path / "bad.json", load_model(run))
    with pytest.raises(DataError, match=r"absent.json: cannot be read"):
        threshold_at(0.01, tmp_path / "absent.json", load_model(run))


@pytest.mark.parametrize(
    "result",
    [
        "{}",
        "3",
        '{"impostor_pairs": "many", "thresholds": {}}',
        '{"impostor_pairs": 9999, "thresholds": {"tar@1e-02": "x"}}',
    ],
)
def test_figures_that_are_damaged(tmp_path: Path, run: Path, result: str) -> None:
    model = load_model(run)
    (tmp_path / "bad.json").write_text(f'{{"model": {{"digest": "{model.digest}"}}, "benchmarks": {{"x": {result}}}}}')
    with pytest.raises(DataError, match=r"bad.json: the figures of x are damaged"):
        threshold_at(0.01, tmp_path / "bad.json", model)


@pytest.fixture
def personae(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path) -> Iterator[Callable]:
    monkeypatch.setenv("COLUMNS", "200")
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["personae", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of made-up people: two to enrol of each, one to log in with."""
    folder = tmp_path_factory.mktemp("people")
    faces = synthetic_faces(identities=4, images=3, size=32, first=70)
    for row, image in enumerate(faces.images(np.arange(len(faces)))):
        purpose = "login" if row % 3 == 2 else "known"
        path = folder / purpose / f"person {row // 3}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    Image.new("RGB", (40, 32)).save(folder / "wide.png")
    (folder / "text.png").write_text("no image")
    return folder


def test_from_export_to_login(personae, run: Path, people: Path, tmp_path: Path, runtime) -> None:
    model, gallery = tmp_path / "model.onnx", tmp_path / "people.db"
    code, out, err = personae("export", run, "--to", model, "--stage", "federate", "--far", "0.05", "--resamples", "0")
    assert code == 0, err
    assert "model.card.md" in out
    code, out, err = personae(
        "enroll", people / "known", "--model", model, "--gallery", gallery, "--far", "0.05", "--benchmark", "heldout"
    )
    assert code == 0, err
    assert "person 3: 2 new faces" in out
    assert "4 people; accepts from" in out
    assert "false accept rate 0.05 on heldout, 4,750 pairs of impostors" in out
    code, out, _ = personae("gallery", "list", gallery, "--json")
    listed = json.loads(out)
    assert (code, listed["people"]) == (0, {f"person {number}": 2 for number in range(4)})
    card = json.loads((tmp_path / "model.card.json").read_text())
    assert listed["threshold"]["score"] == card["benchmarks"]["heldout"]["thresholds"]["tar@5e-02"]

    known, login = people / "known" / "person 1" / "3.png", people / "login" / "person 1" / "5.png"
    asked = ("--model", model, "--gallery", gallery)
    code, out, err = personae("identify", known, *asked, "--threshold", "0.3", "--json")
    found = json.loads(out)["matches"][str(known)]
    assert (code, found) == (0, {"name": "person 1", "accepted": True}), err
    code, out, _ = personae("identify", known, login, *asked, "--threshold", "1")
    assert code == 7
    assert "5.png: nobody known\n" in out
    stranger = json.loads(personae("identify", login, *asked, "--threshold", "1", "--json")[1])["matches"][str(login)]
    assert stranger == {"name": None, "accepted": False}
    shown = personae("identify", login, *asked, "--threshold", "1", "--scores")[1]
    assert "nobody known (nearest is person" in shown
    scored = json.loads(personae("identify", login, *asked, "--threshold", "1", "--scores", "--json")[1])["matches"]
    assert scored[str(login)].keys() == {"name", "score", "threshold", "accepted"}
    assert "accepted from 1.0000 (set by hand)" in out
    code, out, _ = personae("verify", "person 1", known, *asked, "--threshold", "0.3")
    assert (code, "3.png: person 1\n" in out) == (0, True)
    code, out, _ = personae("verify", "person 1", login, *asked, "--threshold", "1", "--scores")
    assert (code, "5.png: not person 1, score" in out) == (7, True)
    same = personae("verify", known, known, "--model", model, "--threshold", "0.99", "--scores")
    assert (same[0], "the same person, score 1.0000" in same[1]) == (0, True)
    assert (
        personae("verify", known, people / "known" / "person 2" / "6.png", "--model", model, "--threshold", "1")[0] == 7
    )
    # Without options, the gallery's own threshold counts.
    code, out, _ = personae("identify", known, *asked, "--json")
    assert json.loads(out)["threshold"] == listed["threshold"]

    code, _, err = personae("gallery", "remove", gallery, "person 1")
    assert (code, "person 1: 2 faces erased" in err) == (0, True)
    assert personae("verify", "person 1", known, *asked)[0] == 2
    code, out, _ = personae("enroll", known, login, "--name", "Zoë", *asked)
    assert (code, "Zoë: 2 new faces" in out) == (0, True)
    assert "3 people" not in out
    code, out, _ = personae("identify", login, *asked, "--threshold", "0", "--json")
    assert json.loads(out)["matches"][str(login)]["name"] == "Zoë"


def test_what_goes_wrong_in_use_is_one_line(personae, run: Path, people: Path, tmp_path: Path) -> None:
    gallery, known = tmp_path / "people.db", people / "known"
    of_run = ("--model", run, "--gallery", gallery)
    assert personae("enroll", known, *of_run)[0] == 0
    first = known / "person 0" / "0.png"
    (tmp_path / "other.db").write_text("no database")
    cases = {
        ("identify", first, *of_run): (
            2,
            "no threshold: give --far (with --evaluation, if the model has no card), or --threshold",
        ),
        ("identify", first, *of_run, "--far", "0.1"): (2, "there is no card beside"),
        ("identify", first, *of_run, "--far", "0.1", "--threshold", "0.1"): (2, "exclude each other"),
        ("identify", first, *of_run, "--benchmark", "x"): (2, "go with --far"),
        ("identify", first, *of_run, "--stage", "pretrain", "--threshold", "0"): (2, "of another model"),
        ("identify", first, *of_run, "--client", "client-001", "--stage", "federate", "--threshold", "0"): (
            2,
            "of another model",
        ),
        ("identify", first, *of_run, "--no-mirror", "--threshold", "0"): (2, "other mirror images"),
        ("identify", people / "wide.png", *of_run, "--threshold", "0"): (3, "wide.png: cannot be used (40x32 pixels"),
        ("identify", people / "text.png", *of_run, "--threshold", "0"): (3, "text.png: cannot be used"),
        ("identify", people / "none.png", *of_run, "--threshold", "0"): (3, "none.png: cannot be used"),
        ("identify", first, "--model", run, "--gallery", tmp_path / "other.db", "--threshold", "0"): (3, "no gallery"),
        ("identify", first, "--model", run, "--gallery", tmp_path / "none.db", "--threshold", "0"): (
            2,
            "cannot be read",
        ),
        ("verify", "Eve", first, *of_run, "--threshold", "0"): (2, "nobody is called 'Eve'"),
        ("gallery", "remove", gallery, "Eve"): (2, "nobody is called 'Eve'"),
        ("gallery", "list", tmp_path / "other.db"): (3, "no gallery"),
        ("enroll", people, *of_run): (3, ""),
        ("enroll", people / "wide.png", "--name", "Eve", *of_run): (3, "aligned faces of 32x32); give --align"),
        ("export", run): (2, ""),
    }
    for arguments, (code, text) in cases.items():
        ended = personae(*arguments)
        assert ended[0] == code, (arguments, ended)
        assert text in ended[2], (arguments, ended)


def test_a_pack_is_enrolled_like_the_faces_that_it_was_made_of(
    personae, run: Path, people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tmp_path / "known.faces"
    assert personae("data", "pack", people / "known", pack, "--height", "32", "--width", "32")[0] == 0
    kept = []
    for number, source in enumerate((people / "known", pack)):
        options = ("--model", run, "--gallery", tmp_path / f"{number}.db", "--threshold", "0.3")
        assert personae("enroll", source, *options)[0] == 0
        with Gallery.open(tmp_path / f"{number}.db") as known:
            kept.append(known.everybody())
    assert kept[1].names == kept[0].names
    torch.testing.assert_close(kept[1].vectors, kept[0].vectors, rtol=0, atol=0)

    larger = tmp_path / "larger.faces"
    assert personae("data", "pack", people / "known", larger, "--height", "48", "--width", "48")[0] == 0
    monkeypatch.setattr(detection, "require", lambda: None)
    refused = {
        (larger,): "larger.faces: 48x48 pixels, and the model takes aligned faces of 32x32; pack them at that size",
        (pack, "--align"): "known.faces: a pack holds faces at one size",
        (people / "text.png",): "text.png: not a layout that is known",
    }
    for arguments, text in refused.items():
        code, _, err = personae("enroll", *arguments, "--model", run, "--gallery", tmp_path / "none.db")
        assert code == 3, err
        assert text in err
        assert not (tmp_path / "none.db").exists()


SCENE, CORNER = (160, 200), (83, 61)  # height and width of a photograph, and left and top of the face in it


@pytest.fixture
def photographs(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same faces in larger pictures, and a detector that knows where; every other is stored lying on its side.

    Beside them are `crops`, what is to come of them.
    """
    left, top = CORNER
    landmarks = template(32, 32) + CORNER
    back = similarity(landmarks, template(32, 32))
    for row, path in enumerate(sorted(people.rglob("*/*.png"))):
        scene = Image.new("RGB", SCENE[::-1], "grey")
        scene.paste(Image.open(path), CORNER)
        crop = tmp_path / "crops" / path.relative_to(people)
        crop.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(warp(np.asarray(scene), back, 32, 32)).save(crop)
        camera = Image.Exif()
        if row % 2:
            scene = scene.transpose(Image.Transpose.ROTATE_90)
            camera[0x0112] = 6
        target = tmp_path / "photographs" / path.relative_to(people)
        target.parent.mkdir(parents=True, exist_ok=True)
        scene.save(target, exif=camera)
    Image.new("RGB", (90, 90)).save(tmp_path / "nobody.png")
    main = detection.Face(np.array([left, top, left + 32.0, top + 32.0]), 0.8, landmarks)
    passer_by = detection.Face(np.array([2, 3, 22, 23.0]), 0.99, landmarks - CORNER)

    def find(images: list, margin: float) -> list:
        return [[passer_by, main] if image.shape[:2] == SCENE else [] for image in images]

    monkeypatch.setattr(detection, "find_faces", find)
    monkeypatch.setattr(detection, "require", lambda: None)
    return tmp_path / "photographs"


def test_photographs_are_aligned_on_the_way(personae, run: Path, people: Path, photographs: Path) -> None:
    """The detector is right here, so that every answer is that to the aligned face, to the bit."""
    model, crops = load_model(run), photographs.parent / "crops"
    for path in people.rglob("*/*.png"):
        face = read_face(photographs / path.relative_to(people), model, align=True)
        assert (face.int() - read_face(path, model).int()).abs().max() <= 1  # bilinear weights are rounded down

    galleries = {crops: crops / "people.db", photographs: photographs / "people.db"}
    for source, gallery in galleries.items():
        options = ("--model", run, "--gallery", gallery, "--threshold", "0.3", *(["--align"] * (source != crops)))
        assert personae("enroll", source / "known", *options)[0] == 0
        assert personae("enroll", source / "login" / "person 0", "--name", "Zoë", *options)[0] == 0
    with Gallery.open(galleries[crops]) as one, Gallery.open(galleries[photographs]) as other:
        expected, kept = one.everybody(), other.everybody()
    assert kept.names == expected.names
    assert len(kept.vectors) == 9
    torch.testing.assert_close(kept.vectors, expected.vectors, rtol=0, atol=0)

    def answers(source: Path, *options: str) -> list[dict]:
        """Of each command, with every way that images are stored."""
        first, second = (source / "known" / "person 1" / name for name in ("3.png", "4.png"))
        known = ("--model", run, "--gallery", galleries[source], *options)
        asked = [
            ("identify", first, second, *known),
            ("verify", "person 1", first, *known),
            ("verify", first, second, "--model", run, "--threshold", "0.3", *options),
        ]
        told = [json.loads(personae(*each, "--json")[1])["matches"] for each in asked]
        return [match for matches in told for match in matches.values()]

    found = answers(photographs, "--align")
    assert found == answers(crops)
    assert [match["name"] for match in found] == ["person 1", "person 1", "person 1", None]


def test_images_without_a_face_and_machines_without_a_detector(
    personae, run: Path, people: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gallery, nobody, photograph = tmp_path / "people.db", tmp_path / "nobody.png", photographs / "login/person 0/2.png"
    options = ("--model", run, "--gallery", gallery, "--threshold", "0", "--align")
    assert personae("enroll", photograph, "--name", "Ann", *options)[0] == 0
    (tmp_path / "set" / "Bob").mkdir(parents=True)
    nobody.rename(tmp_path / "set" / "Bob" / "nobody.png")
    nobody = tmp_path / "set" / "Bob" / "nobody.png"
    cases = {
        ("identify", photograph, nobody, *options): f"1 of 2 images cannot be used, the first is {nobody} (no face was",
        ("verify", "Ann", nobody, *options): f"{nobody}: cannot be used (no face was found); give an image",
        ("verify", nobody, photograph, "--model", run, "--threshold", "0", "--align"): f"{nobody}: cannot be used",
        ("enroll", nobody, "--name", "Bob", *options): f"{nobody}: cannot be used (no face was found); give an image",
        ("enroll", tmp_path / "set", *options): "set: Bob/nobody.png: cannot be used (no face was found); give an",
        ("identify", people / "text.png", *options): "text.png: cannot be used (not a JPEG",
    }
    for arguments, text in cases.items():
        code, _, err = personae(*arguments)
        assert (code, text in err, err.count("\n")) == (3, True, 1), (arguments, err)

    model = load_model(run)
    assert read_face(photograph, model, align=True).shape == (32, 32, 3)
    with pytest.raises(DataError, match=r"200x160 pixels, and the model takes aligned faces of 32x32\); give --align"):
        read_person([photograph], model)

    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    detection._networks.cache_clear()
    options = ("--model", run, "--gallery", tmp_path / "new.db", "--align")
    for arguments in (("enroll", photographs / "known"), ("identify", photograph), ("verify", "Ann", photograph)):
        code, _, err = personae(*arguments, *options)
        assert (code, 'pip install "personae[align]"' in err, err.count("\n")) == (2, True, 1), err
    assert not (tmp_path / "new.db").exists()


def test_the_personal_model_at_login(personae, run: Path, people: Path, tmp_path: Path) -> None:
    own = ("--model", run, "--gallery", tmp_path / "own.db", "--stage", "federate", "--client", "client-001")
    evaluated = personae(
        "evaluate",
        run,
        "--stage",
        "federate",
        "--client",
        "client-001",
        "--on",
        f"known={people / 'known'}",
        "--far",
        "0.5",
        "--save",
        tmp_path / "own.json",
        "--json",
        "--resamples",
        "0",
    )
    assert evaluated[0] == 0, evaluated
    saved = json.loads((tmp_path / "own.json").read_text())
    assert saved["model"]["digest"] == load_model(run, "federate", client="client-001").digest
    assert saved["benchmarks"] == json.loads(evaluated[1])
    enrolled = personae("enroll", people / "known", *own, "--far", "0.5", "--evaluation", tmp_path / "own.json")
    assert enrolled[0] == 3  # 24 pairs of impostors
    assert "24 pairs of impostors, too few for a false accept rate of 0.5: it takes 60" in enrolled[2]
    assert personae("enroll", people / "known", *own, "--threshold", "0.2")[0] == 0
    code, out, _ = personae("identify", people / "known" / "person 2" / "6.png", *own, "--json")
    assert (code, json.loads(out)["matches"][str(people / "known" / "person 2" / "6.png")]["name"]) == (0, "person 2")
