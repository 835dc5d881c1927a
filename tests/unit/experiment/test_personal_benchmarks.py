"""Personal models on the server's held-out people."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from personae import load_experiment, load_model, run_experiment, synthetic_faces

EXPERIMENT = """
name = "alone"
network = { height = 32, width = 32, embedding = 16 }

[data]
private = { source = "synthetic", identities = 6, images = 6 }
heldout = { source = "synthetic", first = 50, identities = 40, images = 4 }

[partition]
by = "equal"
clients = 2

[evaluation]
personal_benchmarks = true
fars = [0.1]
pairs_per_fold = 8

[[stages]]
name = "together"
algorithm = { name = "fedpe", training = { batch_size = 8 } }

[[stages]]
name = "alone"
rounds = 2
after = ""
algorithm = { name = "local", training = { batch_size = 8 } }
"""


def figures(run: Path, stage: str) -> dict[str, dict[str, float]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "personal" and line["stage"] == stage and line["round"]]
    clients: dict[str, dict[str, float]] = told[-1]["clients"]
    return clients


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "alone.toml").write_text(EXPERIMENT)
    run_experiment(load_experiment(folder / "alone.toml"), folder / "run", workers=2)
    return folder / "run"


def test_each_clients_own_model_meets_the_held_out_people(run: Path) -> None:
    told = figures(run, "alone")
    assert len(told) == 2
    faces = synthetic_faces(identities=40, images=4, first=50, seed=0, size=32).samples()
    images = faces.images(torch.arange(len(faces)))
    labels = faces.labels.numpy()
    same = labels[:, None] == labels[None, :]
    pairs = np.triu(np.ones_like(same), 1)
    for client, found in told.items():
        vectors = load_model(run, "alone", client=client).embedder(images).double().numpy()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        scores = vectors @ vectors.T
        impostors = np.sort(scores[pairs & ~same])[::-1]
        threshold = impostors[int(0.1 * len(impostors))]  # no more than a tenth of them are above it
        rate = np.mean(scores[pairs & same] > threshold)
        assert found["personal/heldout/tar@1e-01"] == pytest.approx(rate, abs=0.01)
    assert len({found["personal/heldout/tar@1e-01"] for found in told.values()}) == 2


def test_where_nobody_has_a_model_of_its_own_the_shared_one_is_evaluated_once(run: Path) -> None:
    assert not [name for found in figures(run, "together").values() for name in found if "heldout" in name]
