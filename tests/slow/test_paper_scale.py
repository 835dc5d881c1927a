"""`--scale paper` from start to verdict with every variant of its recipes in miniature: a few people, two rounds.

The plan, the estimate, the budget, a run that is killed, and records that are judged elsewhere are those of the large
runs; only the sizes are others.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from personae.errors import OutOfTime
from personae.experiment.config import Experiment, parse_experiment
from personae.experiment.execution import Execution
from personae.reproduce import reproduce as module
from personae.reproduce.claims import System
from personae.reproduce.reproduce import Reproduction, Scale, variants_of
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS

pytestmark = pytest.mark.slow

PEOPLE = {"fedgc": 1200, "fedface": 16, "fedfr": 25, "hf_maml": 8, "unsupervised": 40}  # of how many, one is left
CLIENTS = {"fedgc": 9, "fedface": 16, "fedfr": 2.5, "hf_maml": 1, "unsupervised": 1}


def miniature(system: System, experiment: Experiment) -> Experiment:
    """The same stages, with little to do in each."""
    content = experiment.resolved()
    content["network"] |= {"embedding": 16, "height": 32, "width": 32}
    for source in filter(None, content["data"].values()):
        for part in (source["parts"] or {"": source}).values():
            part |= {"identities": max(8, part["identities"] // PEOPLE[system.name]), "images": min(part["images"], 8)}
    partition = content["partition"] | {"train": 0.5, "val": 0.0, "test": 0.5}
    content["partition"] = partition
    if partition["clients"] is not None:
        partition["clients"] = max(1, round(partition["clients"] / CLIENTS[system.name]))
        private = content["data"]["private"]
        if private["parts"] is None:
            private["identities"] = max(private["identities"], partition["clients"])
    content["evaluation"] |= {"folds": 2, "pairs_per_fold": 10}
    for stage in content["stages"]:
        stage["rounds"] = min(stage["rounds"], 2)
        stage["evaluate_every"] = 1
        training, meta = stage["algorithm"].get("training"), stage["algorithm"].get("meta")
        if training:
            training |= {"batch_size": 8, "precision": "float32"}
            training |= {"iterations": 2} if training["iterations"] else {"epochs": 0.5}
        if meta:
            meta |= {"batch_size": 4, "iterations": 1}
    return parse_experiment(content, "miniature")


@pytest.fixture(autouse=True)
def in_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "variants_of", smaller)


def smaller(system: System, scale: Scale) -> dict[str, Experiment]:
    return {name: miniature(system, each) for name, each in variants_of(system, scale).items()}


def go(name: str, out: Path, cache: Path, *, budget: float | None = None, **options: Any) -> Reproduction:
    deadline = None if budget is None else time.monotonic() + budget
    runner = Runner(Execution(workers=2, cache=cache), deadline)
    return module.reproduce(SYSTEMS[name], out, scale="paper", seeds=2, runner=runner, **options)


def _endlessly(name: str, out: Path, cache: Path, resume: bool) -> None:
    module.variants_of = smaller  # type: ignore[attr-defined]
    go(name, out, cache, resume=resume)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_recipe_goes_from_start_to_verdict_in_sittings(name: str, faces_cache: Path, tmp_path: Path):
    out, told = tmp_path / "out", list[str]()
    with pytest.raises(OutOfTime):  # time ends before anything does
        go(name, out, faces_cache, budget=0, notify=told.append)
    process = multiprocessing.get_context("fork").Process(target=_endlessly, args=(name, out, faces_cache, True))
    process.start()
    while process.is_alive() and len(list(out.glob("runs/*/*/checkpoints/finished"))) < 2:
        time.sleep(0.1)
    assert process.is_alive()
    process.kill()
    process.join()
    with pytest.raises(OutOfTime):
        go(name, out, faces_cache, budget=5, resume=True)
    result = go(name, out, faces_cache, resume=True)
    assert result.findings[0].claim.id == SYSTEMS[name].leads
    assert len(result.findings) == len(SYSTEMS[name].claims)

    whole = json.loads((out / "claims.json").read_text())
    go(name, tmp_path / "judged", faces_cache, records=[out / "records.jsonl"])
    assert json.loads((tmp_path / "judged" / "claims.json").read_text()) == whole
    print(name, [(finding.claim.id, str(finding.verdict)) for finding in result.findings], file=sys.stderr)
