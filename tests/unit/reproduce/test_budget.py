"""A reproduction in several sittings: what it says before it starts, and how it stops and goes on."""

import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from killing import results
from personae import cli
from personae.commands import reproducing  # noqa: F401 - its help lists systems, and must not be made with one more
from personae.errors import ConfigError, OutOfTime
from personae.experiment.execution import Execution
from personae.reproduce.claims import Above, Claim, System
from personae.reproduce.estimate import estimate, training_images
from personae.reproduce.plan import Job, Plan
from personae.reproduce.quantities import figure
from personae.reproduce.reproduce import reproduce, variants_of
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS

RECIPE = """
name = "tiny"
network = { name = "small", embedding = 8, height = 32, width = 32 }
data.public = { identities = 6, images = 4 }
data.private = { first = 6, identities = 8, images = 6 }
data.heldout = { first = 14, identities = 12, images = 3 }
partition = { clients = 4, train = 0.5, val = 0.0, test = 0.5 }
evaluation = { folds = 2, pairs_per_fold = 8 }

[[stages]]
name = "start"
rounds = 2
algorithm = { name = "pretrain", training.batch_size = 8 }

[[stages]]
name = "train"
rounds = 3
algorithm = { name = "fedpe", training = { lr = 0.02, batch_size = 4, batches = "full" } }

[variants]
pretrained.until = "start"
fedpe = {}
half.stages.train = { selection = { name = "share", share = 0.5 }, rounds = 4 }
steps.stages.train.algorithm.training.iterations = 5
central.stages.train.algorithm = { name = "central", training = { batch_size = 6, epochs = 2 } }
meta.stages.train.algorithm = { name = "hf_maml", meta = { batch_size = 4, iterations = 5 } }
newcomers = { partition.new_clients = 1, stages.train.algorithm.training.iterations = 5 }
hard.stages.train.algorithm = { name = "fedfr", training = { batch_size = 4, batches = "full" } }

[variants.all.stages.train.algorithm]
name = "fedfr"
sampling.threshold = -1.0
training = { batch_size = 4, batches = "full" }
"""
CLAIM = Claim("T-1", "fedpe > start", "", (Above(figure("fedpe", "fedpe"), figure("start", "pretrained")),))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    recipes = tmp_path_factory.mktemp("recipes")
    (recipes / "tiny").mkdir()
    (recipes / "tiny" / "paper-scale.toml").write_text(RECIPE)
    return System("tiny", "Nobody, Nothing", (CLAIM,), recipes=recipes)


@pytest.fixture
def jobs(system: System) -> dict[str, Job]:
    return {job.folder: job for job in Plan.of(variants_of(system, "paper")).jobs}


# --------------------------------------------------------------------------------------------------------- the estimate


@pytest.mark.parametrize(
    ("variant", "images"),
    [
        ("pretrained", 2 * 24),  # two epochs of six people with four images each
        ("fedpe", 3 * 4 * 8),  # 24 images of all clients, six of each, in batches of four: two steps
        ("half", 4 * 2 * 8),
        ("steps", 3 * 4 * 5 * 4),
        ("central", 3 * 2 * 24),
        ("meta", 3 * 4 * 5 * 4 * 4),  # four passes in a meta step
        ("newcomers", 3 * 3 * 5 * 4),
        ("hard", 3 * 4 * 8),  # six images and a tenth of 24 public ones
        ("all", 3 * 4 * 32),  # six images and 24
    ],
)
def test_images_are_counted_as_often_as_they_are_trained_on(jobs: dict[str, Job], variant: str, images: int):
    assert jobs[variant].begin == (None if variant == "pretrained" else "pretrained")
    assert training_images(jobs[variant]) == images


def test_a_whole_chain_counts_where_nothing_is_taken_over(jobs: dict[str, Job]):
    alone = Job("fedpe", jobs["fedpe"].experiment)
    assert training_images(alone) == training_images(jobs["pretrained"]) + training_images(jobs["fedpe"])


def test_the_estimate_goes_by_the_runs_that_are_finished(jobs: dict[str, Job], tmp_path: Path):
    left = [jobs["fedpe"], jobs["half"]]
    assert estimate(left, [], tmp_path, 2, "cpu") == (
        "2 runs to go, 160 training images: about a minute at the speed of a usual core"
    )
    done = tmp_path / "pretrained"
    done.mkdir()
    (done / "config.json").write_text("{}")
    lines = [{"stage": "start", "round": round_, "seconds": 480.0} for round_ in (1, 2)]  # 48 images in 960 seconds
    (done / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = estimate(left, [jobs["pretrained"]], tmp_path, 2, "cpu")
    assert told == "2 runs to go, 160 training images: about 27 minutes at the speed of those finished here"
    assert "about 53 minutes" in estimate(left, [jobs["pretrained"]], tmp_path, 1, "cpu")
    assert estimate([jobs["fedpe"]], [], tmp_path, 1, "cpu").startswith("1 run to go, ")


# ----------------------------------------------------------------------------------------------------------- the budget


def test_a_run_that_is_cut_off_ends_with_the_bits_of_one_that_is_not(system: System, faces_cache: Path, tmp_path: Path):
    reproduce(system, tmp_path / "whole", scale="paper", seeds=1, runner=Runner(Execution(cache=faces_cache)))
    out, sittings = tmp_path / "parts", 0
    while True:
        seconds = 0.0 if sittings == 0 else 4.0 * sittings
        runner = Runner(Execution(cache=faces_cache), deadline=time.monotonic() + seconds)
        try:
            reproduce(system, out, scale="paper", seeds=1, runner=runner, resume=sittings > 0)
            break
        except OutOfTime:
            sittings += 1
            assert not (out / "claims.json").exists()
            assert sittings < 20
    assert sittings >= 1  # without any time nothing is begun
    assert (out / "claims.json").read_bytes() == (tmp_path / "whole" / "claims.json").read_bytes()
    for name in ("pretrained", "fedpe"):
        assert results(out / "runs" / "seed-0" / name) == results(tmp_path / "whole" / "runs" / "seed-0" / name)


def command(*arguments: object) -> int | str | None:
    sys.argv = ["personae", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_the_command_says_how_to_go_on(
    system: System,
    faces_cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(SYSTEMS, "tiny", system)
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    out = tmp_path / "out"
    options = ("reproduce", "tiny", "--scale", "paper", "--seeds", 1, "--claims", "T-1", "--workers", 1, "--out", out)
    assert command(*options, "--budget", 0) == 5
    told = " ".join(capsys.readouterr().err.split())
    assert "2 runs to go, 144 training images: about a minute" in told
    hint = f"personae reproduce tiny --scale paper --seeds 1 --out {out} --device cpu --resume --claims T-1 --budget 0"
    hint += " --workers 1"
    assert told.endswith(f"the 0 minutes are spent; what is done is in {out}; continue with: {hint}")
    assert not list((tmp_path / "cache").rglob("*.*"))  # no face is rendered for an estimate
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    assert command(*options, "--resume", "--budget", 5) == 0
    assert (out / "claims.json").is_file()


# ---------------------------------------------------------------------------------------------------- the paper's scale


def test_fedgc_at_the_scale_of_its_paper():
    system = SYSTEMS["fedgc"]
    experiments = variants_of(system, "paper")
    needed = {variant for claim in system.claims for variant in claim.variants} | set(system.pictured)
    assert needed <= experiments.keys()
    for name in ("fedgc", "fedpe", "oracle"):
        experiment = experiments[name]
        assert experiment.data.private is not None
        assert (experiment.partition.clients, experiment.data.private.identities) == (36, 36 * 294)
        assert experiment.recipe[-1].rounds == 48
        assert experiment.network.embedding == 512
    margins = {name: experiments[f"fedgc-{name}"].recipe[-1].algorithm.margin for name in ("cosface", "arcface")}  # type: ignore[attr-defined]
    assert margins["cosface"].margin == 0.35
    assert (margins["arcface"].scale, margins["arcface"].margin) == (64, 0.5)


def test_a_paper_without_such_a_recipe_is_one_clear_line(tmp_path: Path):
    system = replace(SYSTEMS["hf_maml"], recipes=tmp_path)
    with pytest.raises(ConfigError, match=r"hf_maml has no recipe for --scale paper: there is no paper-scale\.toml"):
        variants_of(system, "paper")
