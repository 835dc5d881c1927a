"""A trained model, from a run or from a weights file, on faces of the user's choice."""

import json
from pathlib import Path

import torch
from pydantic import TypeAdapter

from personae.core.backbone import Backbone
from personae.core.embedder import Embedder
from personae.data import FaceSet, open_faces, read_pairs
from personae.errors import ConfigError, DataError
from personae.evaluation.protocols import Benchmark, BenchmarkResult, PairBenchmark
from personae.evaluation.verification import Pairs, sample_pairs
from personae.models import Network, load_weights
from personae.parts.embedding import BackboneEmbedder
from personae.progress import Progress, silent


def load_model(model: Path, stage: str | None = None, network: Network | None = None) -> tuple[Network, Backbone]:
    """The network and its trained backbone: of a run's last finished stage (or the one named), or of a weights file."""
    if model.is_dir():
        config = model / "config.json"
        if not config.is_file():
            raise ConfigError(f"{model}: this folder is no run; give a run or a weights file")
        network = TypeAdapter(Network).validate_python(json.loads(config.read_text())["network"])
        model = _finished(model, stage)
    elif stage is not None:
        raise ConfigError(f"--stage goes with a run, and {model} is none")
    network, weights = load_weights(model, network)
    module = network.build()
    module.load_state_dict(weights)
    return network, Backbone(module, network.embedding)


def evaluate_on(
    backbone: Backbone,
    network: Network,
    faces_at: Path,
    fars: tuple[float, ...],
    *,
    mirror: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> BenchmarkResult:
    """All-pairs rates and rank-1 on these faces, and 10-fold accuracy.

    The pairs are those that come with the faces; of a `.bin` they are all there is to compare. Where none come, they
    are drawn, if there are enough identities.
    """
    faces = open_faces(faces_at, height=network.height, width=network.width, progress=progress)
    embedder: Embedder = BackboneEmbedder(backbone, mirror)
    given = read_pairs(faces_at, faces)
    if given is None:
        return Benchmark(faces.name, faces.samples(), fars, _drawn(faces, seed)).evaluate(embedder)
    left, right, same = (torch.from_numpy(part) for part in (given.left, given.right, given.same))
    pairs = Pairs(left, right, same, given.folds)
    if given.named:
        return Benchmark(faces.name, faces.samples(), fars, pairs).evaluate(embedder)
    return PairBenchmark(faces.name, faces.samples(), pairs, fars).evaluate(embedder)


def _drawn(faces: FaceSet, seed: int) -> Pairs | None:
    """Folds of up to 600 pairs, as many as the identities yield; None where even small folds do not fill."""
    labels = faces.samples().labels
    for pairs_per_fold in (600, 300, 100, 50, 20):
        try:
            return sample_pairs(labels, pairs_per_fold=pairs_per_fold, seed=seed)
        except DataError:
            continue
    return None


def _finished(run: Path, stage: str | None) -> Path:
    names = [item["name"] for item in json.loads((run / "summary.json").read_text())["stages"]]
    done = [name for name in names if (run / "models" / f"{name}.safetensors").is_file()]
    if stage is not None and stage not in names:
        raise ConfigError(f"{run}: no stage is called {stage!r}; there are {', '.join(names)}")
    if not done or (stage is not None and stage not in done):
        raise ConfigError(f"{run}: {stage or 'no stage'} is finished yet; continue the run with --resume")
    return run / "models" / f"{stage or done[-1]}.safetensors"
