"""Runs judged elsewhere, from the one file of their records."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from personae.errors import ConfigError, DataError
from personae.experiment.execution import Execution
from personae.reproduce.claims import Above, Claim, System
from personae.reproduce.confusion import confused_pairs
from personae.reproduce.quantities import average, figure
from personae.reproduce.reproduce import reproduce
from personae.reproduce.runner import Runner
from personae.reproduce.statistics import Verdict

RECIPE = """
name = "tiny"
network = { name = "small", embedding = 8, height = 32, width = 32 }
data.private = { identities = 8, images = 6 }
data.heldout = { first = 8, identities = 8, images = 3 }
partition = { clients = 2, train = 0.6, val = 0.0, test = 0.4 }
evaluation = { folds = 2, pairs_per_fold = 8 }

[[stages]]
name = "train"
rounds = 1
algorithm = { name = "fedgc", strength = 0.1, training = { lr = 0.02, batch_size = 8 } }

[variants]
fedgc = {}
fedpe.stages.train.algorithm.regulariser = "none"
longer.stages.train.rounds = 2
"""
PE, GC = figure("FedPE", "fedpe"), figure("FedGC", "fedgc")
PERSONAL = figure("FedGC, clients", "fedgc", "clients/global/tar@1e-01")
FROM_RECORDS = Claim("T-1", "FedGC > FedPE", "1 > 0", (Above(GC, PE),), beside=(PERSONAL,))
FROM_MODELS = Claim(
    "T-2",
    "pairs drop",
    "Figure 3",
    (Above(confused_pairs("in FedPE", "fedpe", "fedpe"), confused_pairs("in FedGC", "fedpe", "fedgc")),),
)
LONGER = Claim("T-3", "longer > FedGC", "1 > 0", (Above(figure("longer", "longer"), GC),))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    recipes = tmp_path_factory.mktemp("recipes")
    (recipes / "tiny").mkdir()
    (recipes / "tiny" / "small.toml").write_text(RECIPE)
    return System("tiny", "Nobody, Nothing", (FROM_RECORDS, FROM_MODELS, LONGER), recipes=recipes)


@pytest.fixture(scope="module")
def done(system: System, faces_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done") / "out"
    reproduce(system, out, claims=("T-1", "T-2"), seeds=2, runner=Runner(Execution(cache=faces_cache)))
    return out


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, lines: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_records_alone_give_the_same_findings(done: Path, system: System, tmp_path: Path):
    told: list[str] = []
    records = [shutil.copy(done / "records.jsonl", tmp_path / "r.jsonl")]
    found = reproduce(system, tmp_path / "out", seeds=2, records=records, notify=told.append)
    assert (tmp_path / "out" / "claims.json").read_bytes() == (done / "claims.json").read_bytes()
    assert [finding.claim.id for finding in found.findings] == ["T-1", "T-2"]
    assert any("T-3 is left out: 2 runs not in the records, such as seed-0/longer" in line for line in told)
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_claim_that_needs_models_is_unmeasured_without_its_figures(done: Path, system: System, tmp_path: Path):
    kept = [line for line in lines_of(done / "records.jsonl") if "figure" not in line]
    assert len(kept) == 4
    file = written(tmp_path / "r.jsonl", kept)
    first, second = reproduce(system, tmp_path / "out", seeds=2, claims=("T-1", "T-2"), records=[file]).findings
    assert second.verdict is Verdict.MISSING
    assert first.verdict is not Verdict.MISSING


def test_a_run_that_diverged_elsewhere_leaves_its_claims_unmeasured(done: Path, system: System, tmp_path: Path):
    kept = [line for line in lines_of(done / "records.jsonl") if line.get("run") != "seed-1/fedgc"]
    file = written(tmp_path / "r.jsonl", [*kept, {"run": "seed-1/fedgc", "problem": "the loss is nan"}])
    (finding,) = reproduce(system, tmp_path / "out", seeds=2, claims=("T-1",), records=[file]).findings
    assert finding.verdict is Verdict.MISSING


def test_records_of_another_experiment_or_damaged_ones_are_refused(done: Path, system: System, tmp_path: Path):
    lines = lines_of(done / "records.jsonl")
    other = [{**line, "config": {**line["config"], "seed": 7}} if "config" in line else line for line in lines]
    with pytest.raises(ConfigError, match="seed-0/fedgc: the record is of another experiment"):
        reproduce(system, tmp_path / "a", seeds=2, records=[written(tmp_path / "o.jsonl", other)])
    older = [{**line, "config": {**line["config"], "sead": 7}} if "config" in line else line for line in lines]
    with pytest.raises(ConfigError, match=r"the record of seed-0/fedgc.*sead"):
        reproduce(system, tmp_path / "e", seeds=2, records=[written(tmp_path / "w.jsonl", older)])
    with pytest.raises(DataError, match=r"r\.jsonl: line 2 is not a record"):
        reproduce(system, tmp_path / "b", records=[written(tmp_path / "r.jsonl", [lines[0], {"run": "x"}])])
    with pytest.raises(ConfigError, match=r"no\.jsonl: there is no such file"):
        reproduce(system, tmp_path / "c", records=[tmp_path / "no.jsonl"])
    with pytest.raises(ConfigError, match="have not all runs of any claim"):
        reproduce(system, tmp_path / "d", seeds=3, records=[done / "records.jsonl"])


def test_what_ended_unwritten_is_written_when_the_work_goes_on(
    done: Path, system: System, faces_cache: Path, tmp_path: Path
):
    out = tmp_path / "out"
    shutil.copytree(done, out)
    whole = lines_of(out / "records.jsonl")
    written(out / "records.jsonl", [line for line in whole if line.get("run") != "seed-0/fedpe"])
    runner = Runner(Execution(cache=faces_cache))
    reproduce(system, out, claims=("T-1",), seeds=2, resume=True, runner=runner)
    runs = {line["run"]: line for line in lines_of(out / "records.jsonl") if "run" in line}
    assert runs == {line["run"]: line for line in whole if "run" in line}


def test_a_quantity_made_of_others_needs_models_where_one_of_them_does():
    pairs = confused_pairs("pairs", "fedpe", "fedpe")
    assert not (GC - PE).needs_models
    assert not average("mean", GC, PE).needs_models
    assert (GC - pairs).needs_models
    assert average("mean", GC, pairs).needs_models
