"""Held-out people of several populations: how evenly a model's errors are spread over them, in its card."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from personae.core.embedder import embed
from personae.experiment.config import load_experiment
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.experiment.run import run_experiment
from personae.recognition.export import export_model

EXPERIMENT = """
name = "two-populations"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 2, train = 0.5, val = 0.0, test = 0.5 }
evaluation = { folds = 2, pairs_per_fold = 20, fars = [0.2] }

[data.private]
identities = 4
images = 4

[data.heldout.parts]
valley = { people = "valley", capture = "counter", first = 50, identities = 12, images = 4 }
islands = { people = "islands", capture = "counter", first = 50, identities = 12, images = 4 }

[[stages]]
name = "train"
algorithm = { name = "fedpe", training = { iterations = 1 } }
"""


def test_the_card_tells_the_worst_group_ratios_and_gini_coefficients(
    tmp_path: Path, faces_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    experiment, run = load_experiment(tmp_path / "x.toml"), tmp_path / "run"
    run_experiment(experiment, run, cache=faces_cache)
    export_model(run, tmp_path / "model.safetensors", resamples=5)
    found = json.loads((tmp_path / "model.card.json").read_text())["benchmarks"]["heldout/populations"]

    [benchmark] = Materials(experiment).final_benchmarks()
    vectors = embed(load_model(run, "train").embedder, benchmark.samples).double()
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    scores, same = {}, {}
    for name, pairs in benchmark.groups.items():
        domains = {
            benchmark.samples.identities[label].partition("/")[0] for label in benchmark.samples.labels[pairs.left]
        }
        assert len(domains) == 1  # nobody is compared with somebody of another population
        scores[name], same[name] = (vectors[pairs.left] * vectors[pairs.right]).sum(1), pairs.same
    impostors = torch.cat([scores[name][~same[name]] for name in scores]).sort(descending=True).values
    bound = impostors[int(0.2 * len(impostors))]  # what is above it is accepted: a fifth of all impostors
    fmr = [float((scores[name][~same[name]] > bound).double().mean()) for name in scores]
    fnmr = [float((scores[name][same[name]] <= bound).double().mean()) for name in scores]
    assert [found["groups"][name]["fmr@2e-01"] for name in scores] == pytest.approx(fmr)
    assert [found["groups"][name]["fnmr@2e-01"] for name in scores] == pytest.approx(fnmr)
    assert found["metrics"]["fmr_ratio@2e-01"] == pytest.approx(max(fmr) / min(fmr))
    assert found["metrics"]["fnmr_gini@2e-01"] == pytest.approx(abs(fnmr[0] - fnmr[1]) / sum(fnmr))
    accuracies = [found["groups"][name]["accuracy"] for name in scores]
    assert found["metrics"]["accuracy_worst"] == min(accuracies)
    assert np.isclose(found["metrics"]["accuracy_gap"], max(accuracies) - min(accuracies))
    page = (tmp_path / "model.card.md").read_text()
    assert f"{max(fmr) / min(fmr):.2f}x" in page
    assert "| valley |" in page


def test_people_of_one_domain_are_no_groups(faces_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    head, _, tail = EXPERIMENT.partition("[data.heldout.parts]")
    text = head.replace("[data.private]", "[data.heldout]\nfirst = 50\nidentities = 12\nimages = 4\n\n[data.private]")
    (tmp_path / "x.toml").write_text(text + tail[tail.index("[[stages]]") :])
    assert Materials(load_experiment(tmp_path / "x.toml")).final_benchmarks() == []
