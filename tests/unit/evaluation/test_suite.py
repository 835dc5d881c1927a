"""One call for a list of protocols, the cache of vectors, groups, distractors, and models in ONNX."""

import fcntl
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import personae
from personae import cli
from personae.core.backbone import Backbone
from personae.data import open_faces
from personae.errors import ConfigError, DataError
from personae.evaluation import embeddings as cached
from personae.evaluation.comparisons import identified
from personae.evaluation.distractors import among_distractors
from personae.evaluation.embeddings import HEADER, embeddings
from personae.evaluation.fairness import group_rates
from personae.evaluation.pairs import sample_pairs
from personae.evaluation.protocols import Benchmark, DistractorBenchmark, GroupBenchmark, PairBenchmark
from personae.evaluation.suite import Evaluation, evaluate
from personae.evaluation.verification import ten_fold
from personae.experiment.benchmarks import Setting, open_protocol
from personae.experiment.model import load_model
from personae.models import Network
from personae.parts.embedding import BackboneEmbedder
from personae.report.evaluation_page import evaluation_page


class Pictures:
    """Pictures of identities, each a colour with noise; with a fingerprint, and a count of those asked for."""

    def __init__(self, identities: int, images: int, seed: int, fingerprint: str | None) -> None:
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(identities).repeat(images)
        centres = torch.randint(60, 200, (identities, 2, 2, 3), generator=torch.Generator().manual_seed(9))
        noise = torch.randint(-50, 51, (len(self.labels), 2, 2, 3), generator=random)
        self.pixels = (centres[self.labels] + noise).to(torch.uint8)
        self.classes, self.fingerprint, self.asked = identities, fingerprint, 0

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Tensor) -> Tensor:
        self.asked += len(positions)
        return self.pixels[positions]


def pictures(identities=20, images=6, seed=0, fingerprint="colours") -> Pictures:
    return Pictures(identities, images, seed, fingerprint)


@dataclass
class Flat:
    fingerprint: str = "flat"
    calls: list[int] = field(default_factory=list)

    def __call__(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return F.normalize(images.flatten(1).float() - 127.5)


def benchmarks(samples):
    pairs = sample_pairs(samples.labels, folds=5, pairs_per_fold=12)
    return [
        Benchmark("all", samples, fars=(0.1, 0.01), pairs=pairs, resamples=30),
        PairBenchmark("pairs", samples, pairs, fars=(0.1,), named=True, resamples=30),
    ]


def test_one_call_gives_a_table(tmp_path):
    samples, embedder = pictures(), Flat()
    found = evaluate(embedder, benchmarks(samples), cache=tmp_path)
    assert isinstance(found, Evaluation)
    assert found.metrics == ("accuracy", "accuracy_std", "tar@1e-01", "tar@1e-02", "rank1")
    vectors = Flat()(samples.pixels)
    pairs = benchmarks(samples)[1].pairs
    folds = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same, 5)
    assert found.results["pairs"].metrics["accuracy"] == folds.accuracy
    rows = found.rows()
    assert rows[0] == ["", *found.metrics]
    assert rows[2] == ["pairs", f"{100 * folds.accuracy:.2f}", f"{100 * folds.deviation:.2f}", rows[2][3], "–", "–"]
    text = str(found).splitlines()
    assert len(text) == 3
    assert len({len(line) for line in text}) == 1
    for result in found.results.values():
        for name, interval in result.intervals.items():
            assert interval.low <= result.metrics[name] <= interval.high
        assert {"accuracy", "tar@1e-01"} <= result.intervals.keys()
    assert personae.evaluate is evaluate
    assert sum(embedder.calls) == len(samples)  # once, though two benchmarks use them


def test_two_protocols_of_one_name():
    embedder = Flat()
    with pytest.raises(ConfigError, match="2 protocols are called 'all'"):
        evaluate(embedder, [*benchmarks(pictures())[:1]] * 2)
    assert not embedder.calls


def test_vectors_are_computed_once_for_a_model_and_images(tmp_path):
    samples = pictures()
    embedder = Flat()
    first = embeddings(embedder, samples, cache=tmp_path)
    assert torch.equal(first, Flat()(samples.pixels))
    again = embeddings(Flat(), samples, cache=tmp_path)
    assert torch.equal(first, again)
    assert samples.asked == len(samples)
    for other_model, other_images in (("another", "colours"), ("flat", "others")):
        embeddings(Flat(other_model), pictures(fingerprint=other_images), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert not list(tmp_path.glob(".*"))
    again += 1  # a private copy
    assert torch.equal(embeddings(Flat(), samples, cache=tmp_path), first)


def test_without_fingerprint_or_folder_nothing_is_kept(tmp_path):
    samples = pictures()
    embeddings(Flat(fingerprint=None), samples, cache=tmp_path)
    samples.fingerprint = None
    embeddings(Flat(), samples, cache=tmp_path)
    embeddings(Flat(), pictures())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-4],
        lambda content: content + b"more",
        lambda content: content[:100],
        lambda content: b"",
        lambda content: b"x" * len(content),
        lambda content: content[:HEADER] + bytes([content[HEADER] ^ 1]) + content[HEADER + 1 :],
        lambda content: b"[]".ljust(HEADER) + content[HEADER:],
        lambda content: (
            json.dumps(json.loads(content[:HEADER]) | {"rows": 7}).encode().ljust(HEADER) + content[HEADER:]
        ),
        lambda content: (
            json.dumps(json.loads(content[:HEADER]) | {"key": "other"}).encode().ljust(HEADER) + content[HEADER:]
        ),
        lambda content: (
            json.dumps(json.loads(content[:HEADER]) | {"columns": "x"}).encode().ljust(HEADER) + content[HEADER:]
        ),
    ],
)
def test_a_damaged_file_is_computed_anew(tmp_path, damage):
    samples = pictures()
    expected = embeddings(Flat(), samples, cache=tmp_path).clone()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    embedder = Flat()
    assert torch.equal(embeddings(embedder, samples, cache=tmp_path), expected)
    assert embedder.calls
    assert file.read_bytes() == whole


def test_an_embedder_that_fails_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cached, "BATCH", 50)

    class Failing(Flat):
        def __call__(self, images: Tensor) -> Tensor:
            if len(self.calls) == 1:
                raise RuntimeError("out of memory")
            return super().__call__(images)

    with pytest.raises(RuntimeError, match="out of memory"):
        embeddings(Failing(), pictures(), cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    samples = pictures()
    embeddings(Flat(), samples, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    dead, alive, other = (tmp_path / f".{name}.tmp" for name in (f"{file.name}.7", f"{file.name}.8", "another.9"))
    for path in (dead, alive, other):
        path.write_bytes(b"half of it")
    with alive.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        embeddings(Flat(), samples, cache=tmp_path)
    assert {*tmp_path.iterdir()} == {file, alive, other}


def test_the_fingerprint_of_a_backbone_is_of_weights_and_mirror():
    network = Network(name="small", embedding=8, height=32, width=32)
    backbone = Backbone(network.build(), 8)
    prints = {BackboneEmbedder(backbone, mirror).fingerprint for mirror in (True, False)}
    assert len(prints) == 2
    assert BackboneEmbedder(Backbone(network.build(), 8)).fingerprint in prints
    backbone.flat[0] += 1
    assert BackboneEmbedder(backbone).fingerprint not in prints


def test_the_fingerprint_of_faces_is_of_images_and_their_order(tmp_path):
    for number in range(4):
        path = tmp_path / "faces" / f"p{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 40 + number).convert("RGB").save(path)
    faces = open_faces(tmp_path / "faces", height=16, width=16, cache=tmp_path / "cache")
    again = open_faces(tmp_path / "faces", height=16, width=16, cache=tmp_path / "elsewhere")
    larger = open_faces(tmp_path / "faces", height=18, width=16, cache=tmp_path / "cache")
    first = faces.samples().fingerprint
    assert again.samples().fingerprint == first
    assert len({first, larger.samples().fingerprint, faces.samples(np.array([1, 0, 2, 3])).fingerprint}) == 3


def test_groups(tmp_path):
    samples = pictures(identities=40)
    of_group = {"a": samples.labels < 20, "b": samples.labels >= 20}
    groups = {}
    for name, which in of_group.items():
        rows = torch.nonzero(which).flatten()
        pairs = sample_pairs(samples.labels[rows], folds=5, pairs_per_fold=12)
        groups[name] = type(pairs)(rows[pairs.left], rows[pairs.right], pairs.same, 5)
    result = GroupBenchmark("rfw", samples, groups, fars=(0.1,), resamples=20).evaluate(Flat())
    vectors = Flat()(samples.pixels)
    accuracies = {}
    for name, pairs in groups.items():
        accuracies[name] = ten_fold(vectors[pairs.left], vectors[pairs.right], pairs.same, 5).accuracy
        assert result.groups[name]["accuracy"] == accuracies[name]
    scores = {name: identified(vectors, pairs, samples.labels) for name, pairs in groups.items()}
    rates = group_rates(scores, 0.1)
    assert result.groups["b"]["fmr@1e-01"] == rates.groups["b"].fmr
    assert result.groups["b"]["fnmr@1e-01"] == rates.groups["b"].fnmr
    assert result.metrics == {
        "accuracy": pytest.approx(sum(accuracies.values()) / 2),
        "accuracy_worst": min(accuracies.values()),
        "accuracy_gap": max(accuracies.values()) - min(accuracies.values()),
        "fmr_gap@1e-01": rates.fmr_gap,
        "fnmr_gap@1e-01": rates.fnmr_gap,
        "fmr_ratio@1e-01": rates.fmr_ratio,
        "fnmr_ratio@1e-01": rates.fnmr_ratio,
        "fmr_gini@1e-01": rates.fmr_gini,
        "fnmr_gini@1e-01": rates.fnmr_gini,
    }
    assert {"a/accuracy", "b/fmr@1e-01", "a/fnmr@1e-01"} <= result.intervals.keys()
    assert (result.genuine_pairs, result.impostor_pairs) == (60, 60)
    page = evaluation_page("model <b>", Evaluation({"rfw": result}))
    assert "model &lt;b&gt;" in page
    assert "fnmr@1e-01" in page
    assert f"{rates.fnmr_ratio:.2f}x" in page
    assert "false reject rate" in page


def test_distractors_are_images_or_vectors():
    probes, others = pictures(), pictures(identities=300, images=1, seed=3, fingerprint="others")
    others.pixels = torch.randint(0, 256, others.pixels.shape, dtype=torch.uint8)
    of_images = evaluate(Flat(), [DistractorBenchmark("megaface", probes, others, fprs=(0.01,), ranks=(1, 5))])
    of_vectors = evaluate(
        Flat(), [DistractorBenchmark("megaface", probes, Flat()(others.pixels), fprs=(0.01,), ranks=(1, 5))]
    )
    assert of_images.results == of_vectors.results
    result = of_images.results["megaface"]
    found = among_distractors(Flat()(probes.pixels), probes.labels, Flat()(others.pixels), fprs=(0.01,), ranks=(1, 5))
    assert result.metrics == {"rank1": found.rank[1], "rank5": found.rank[5], "tar@1e-02": found.tpr[0.01]}
    assert (result.genuine_pairs, result.impostor_pairs) == (20 * 15, 120 * 300)
    assert result.roc is None
    with pytest.raises(DataError, match="have 5 dimensions and those of the probes 12"):
        evaluate(Flat(), [DistractorBenchmark("megaface", probes, torch.ones(3, 5))])
    assert "rank5" in evaluation_page("model", of_images)


def megaface(root: Path, *, features: bool) -> Path:
    for name, paths in (
        ("facescrub", [f"p{at % 4}/{at}.png" for at in range(12)]),
        ("megaface", [f"{at % 3}/{at}/{at}.png" for at in range(9)]),
    ):
        for at, path in enumerate(paths):
            file = root / f"{name}_images" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((20, 20), 30 + at).convert("RGB").save(file)
        (root / f"{name}_lst").write_text("\n".join(paths) + "\n")
    if features:
        np.save(root / "megaface.npy", np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32))
    return root


@pytest.mark.parametrize("features", [False, True])
def test_megaface_from_its_folder(tmp_path, features):
    megaface(tmp_path, features=features)
    network = Network(name="small", embedding=8, height=32, width=32)
    embedder = BackboneEmbedder(Backbone(network.build(), 8))
    protocol = open_protocol("MegaFace", tmp_path, Setting(height=32, width=32))
    result = evaluate(embedder, [protocol], cache=tmp_path / "cache").results["MegaFace"]
    assert (result.genuine_pairs, result.impostor_pairs) == (4 * 3, 12 * (50 if features else 9))
    assert list(result.metrics) == ["rank1", "tar@1e-06"]
    assert protocol.probes.labels.tolist() == [0, 1, 2, 3] * 3


def test_megaface_that_is_wrong(tmp_path):
    megaface(tmp_path, features=True)
    setting = Setting(height=32, width=32)
    np.save(tmp_path / "megaface.npy", np.ones((3, 4)))
    with pytest.raises(DataError, match=r"float64 .* it should be float32"):
        open_protocol("megaface", tmp_path, setting)
    np.save(tmp_path / "megaface.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="holds no array"):
        open_protocol("megaface", tmp_path, setting)
    (tmp_path / "megaface.npy").unlink()
    for text, message in (
        ("a b\n", "line 1: not a path"),
        ("../x.png\n", "leaves the folder"),
        ("", "lists no images"),
    ):
        (tmp_path / "megaface_lst").write_text(text)
        with pytest.raises(DataError, match=message):
            open_protocol("megaface", tmp_path, setting)
    with pytest.raises(DataError, match="no such folder"):
        open_protocol("megaface", tmp_path / "nowhere", setting)


def onnx_model(path: Path, *, batch: int | str = "N", side: int | str = 32) -> nn.Module:
    """A convolution and the highest of each map, as an ONNX graph and as the same module."""
    onnx = pytest.importorskip("onnx", reason="ONNX models are an extra")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 5, stride=4)
    weights = [
        numpy_helper.from_array(layer.weight.detach().numpy(), "weight"),
        numpy_helper.from_array(layer.bias.detach().numpy(), "bias"),
    ]
    nodes = [
        helper.make_node("Conv", ["data", "weight", "bias"], ["maps"], strides=[4, 4], kernel_shape=[5, 5]),
        helper.make_node("GlobalMaxPool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "embedder",
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, [batch, 8])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return nn.Sequential(layer, nn.AdaptiveMaxPool2d(1), nn.Flatten())


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("batch", ["N", 1])
def test_a_model_in_onnx_embeds_as_in_torch(tmp_path, mirror, batch):
    pytest.importorskip("onnxruntime", reason="ONNX models are an extra")
    module = onnx_model(tmp_path / "model.onnx", batch=batch)
    loaded = load_model(tmp_path / "model.onnx", mirror=mirror)
    assert (loaded.height, loaded.width) == (32, 32)
    images = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8)
    with torch.no_grad():
        batch_ = images.permute(0, 3, 1, 2).float() / 127.5 - 1
        features = module(batch_) + (module(batch_.flip(3)) if mirror else 0)
        raw = module(images.permute(0, 3, 1, 2).float())
    assert torch.allclose(loaded.embedder(images), F.normalize(features), atol=1e-5)
    of_pixels = load_model(tmp_path / "model.onnx", mirror=False, raw=True)
    assert torch.allclose(of_pixels.embedder(images), F.normalize(raw), atol=1e-5)
    assert of_pixels.embedder.fingerprint != loaded.embedder.fingerprint


def test_a_model_in_onnx_on_the_command_line(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="ONNX models are an extra")
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    onnx_model(tmp_path / "model.onnx")
    for number in range(12):
        path = tmp_path / "faces" / f"p{number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 40 + number).convert("RGB").save(path)
    arguments = [
        "evaluate",
        str(tmp_path / "model.onnx"),
        "--on",
        f"x={tmp_path / 'faces'}",
        "--json",
        "--resamples",
        "0",
    ]
    ended = CliRunner().invoke(cli.app, arguments)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)["x"]
    model = load_model(tmp_path / "model.onnx")
    protocol = open_protocol("x", tmp_path / "faces", Setting(height=32, width=32))
    assert found["metrics"] == evaluate(model.embedder, [protocol]).results["x"].metrics


@pytest.mark.parametrize("place", ["/dev/zero", "pipe", "../secret", "link", "absent", "/etc/hostname", "."])
@pytest.mark.parametrize("used", [True, False])
def test_weights_are_read_from_plain_files_beside_a_model_alone(tmp_path, place, used):
    """A device would fill the memory, a pipe would never end, and other files are none of a model's business."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / "secret").write_bytes(bytes(48))
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "secret")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    away = onnx.TensorProto(name="away", data_type=floats, dims=[12], data_location=onnx.TensorProto.EXTERNAL)
    away.external_data.add(key="location", value=place)
    nodes = [helper.make_node("Flatten", ["data"], ["embedding"])]
    if not used:  # in an attribute, where no list of weights has it
        nodes.append(helper.make_node("Constant", [], ["unused"], value=away))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("data", floats, ["N", 3, 2, 2])],
        [helper.make_tensor_value_info("embedding", floats, ["N", 12])],
        [away] if used else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(DataError, match=r"model\.onnx: has weights in .* no plain file beside the model"):
        load_model(folder / "model.onnx")
    os.mkfifo(folder / "pipe.onnx")
    with pytest.raises(DataError, match=r"pipe\.onnx: cannot be read"):
        load_model(folder / "pipe.onnx")


def test_weights_beside_a_model_in_onnx_count_as_its_own(tmp_path):
    pytest.importorskip("onnxruntime", reason="ONNX models are an extra")
    onnx_model(tmp_path / "model.onnx")
    onnx = pytest.importorskip("onnx")
    model, weights = onnx.load(tmp_path / "model.onnx"), tmp_path / "weights.bin"
    onnx.save(model, tmp_path / "parted.onnx", save_as_external_data=True, location=weights.name, size_threshold=0)
    first = load_model(tmp_path / "parted.onnx").digest
    assert load_model(tmp_path / "parted.onnx").digest == first
    content = bytearray(weights.read_bytes())
    content[2] ^= 1
    weights.write_bytes(content)
    assert load_model(tmp_path / "parted.onnx").digest != first


def test_onnx_files_that_cannot_be_used(tmp_path):
    pytest.importorskip("onnxruntime", reason="ONNX models are an extra")
    onnx_model(tmp_path / "free.onnx", side="S")
    assert load_model(tmp_path / "free.onnx", size=48).height == 48
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(DataError, match="not a model that onnxruntime can run"):
        load_model(tmp_path / "broken.onnx")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(tmp_path / "free.onnx")
    model.metadata_props.add(key="written by", value="somebody")
    (tmp_path / "letters.onnx").write_bytes(model.SerializeToString().replace(b"somebody", b"some\xbd\xbf\xffy"))
    with pytest.raises(DataError, match=r"letters\.onnx: .*export it again"):
        load_model(tmp_path / "letters.onnx")
    with pytest.raises(DataError, match="cannot be read"):
        load_model(tmp_path / "missing.onnx")
    with pytest.raises(ConfigError, match="neither --stage nor --backbone"):
        load_model(tmp_path / "free.onnx", stage="federate")


def test_the_extra_that_is_missing_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"install it with: pip install 'personae\[onnx\]'"):
        load_model(tmp_path / "model.onnx")
