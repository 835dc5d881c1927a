"""A whole reproduction of a made-up paper: shared beginnings, resuming, workers, and what it writes."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from killing import results
from personae import cli
from personae.console import output
from personae.core.embedder import embed
from personae.data import synthetic_faces
from personae.errors import ConfigError, DataError
from personae.experiment.config import load_experiment, load_variants
from personae.experiment.execution import Execution
from personae.experiment.model import load_model
from personae.experiment.run import conduct
from personae.reproduce import confusion, strangers
from personae.reproduce.claims import Above, Claim, Near, Rising, System
from personae.reproduce.plan import Job, Plan
from personae.reproduce.quantities import Outcome, Outcomes, average, figure
from personae.reproduce.reevaluated import evaluated_again
from personae.reproduce.reproduce import Reproduction, choose_claims, find_system, reproduce, variants_of
from personae.reproduce.runner import Runner
from personae.reproduce.systems import SYSTEMS

RECIPE = """
name = "tiny"
network = { name = "small", embedding = 8, height = 32, width = 32 }
data.public = { identities = 6, images = 4 }
data.private = { first = 6, identities = 8, images = 6 }
data.heldout = { first = 14, identities = 12, images = 3 }
partition = { clients = 4, train = 0.6, val = 0.0, test = 0.4 }
evaluation = { folds = 2, pairs_per_fold = 8 }

[[stages]]
name = "start"
rounds = 2
algorithm = { name = "pretrain", training.batch_size = 8 }

[[stages]]
name = "train"
rounds = 2
evaluate_every = 1
algorithm = { name = "fedgc", strength = 0.1, training = { lr = 0.02, batch_size = 8 } }

[variants]
pretrained.until = "start"
fedgc = {}
fedpe.stages.train.algorithm.regulariser = "none"
two.partition.clients = 2
wild.stages.train.algorithm = { strength = 1e38, lr = 100.0 }
"""
START, GC, PE = figure("start", "pretrained"), figure("FedGC", "fedgc"), figure("FedPE", "fedpe", "heldout/rank1")
CLAIMS = (
    Claim("T-1", "FedGC > start", "1 > 0", (Above(GC, START),)),
    Claim("T-2", "a rise", "0, 1, 2", (Rising((START, GC, PE)), Near(GC, PE - START, within=1000)), beside=(START,)),
)
WILD = Claim("T-3", "it diverges", "", (Above(GC, figure("wild", "wild")),))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    recipes = tmp_path_factory.mktemp("recipes")
    (recipes / "tiny").mkdir()
    (recipes / "tiny" / "small.toml").write_text(RECIPE)
    return made_up(recipes)


def made_up(recipes: Path) -> System:
    return System("tiny", "Nobody, Nothing", (*CLAIMS, WILD), recipes=recipes)


def go(system: System, out: Path, cache: Path, *, workers: int = 1, **options: object) -> Reproduction:
    wanted = {"claims": ("T-1", "T-2"), "seeds": 2, **options}
    return reproduce(system, out, runner=Runner(Execution(workers=workers, cache=cache)), **wanted)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(system: System, faces_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done") / "out"
    go(system, out, faces_cache)
    return out


def test_each_run_is_made_once_and_only_what_the_claims_need(done: Path):
    for seed in ("seed-0", "seed-1"):
        assert {path.name for path in (done / "runs" / seed).iterdir()} == {"pretrained", "fedgc", "fedpe"}
        for variant in ("fedgc", "fedpe"):
            lines = (done / "runs" / seed / variant / "metrics.jsonl").read_text().splitlines()
            assert {json.loads(line)["stage"] for line in lines} == {"train"}  # the start was taken over


def test_a_shared_beginning_gives_the_very_bits_of_a_run_in_one_piece(
    done: Path, system: System, faces_cache: Path, tmp_path: Path
):
    path = Path(str(system.recipes)) / "tiny" / "small.toml"
    conduct(load_experiment(path, ["seed=1"], "fedgc"), tmp_path / "whole", Execution(cache=faces_cache))
    whole, shared = results(tmp_path / "whole"), results(done / "runs" / "seed-1" / "fedgc")
    for name in ("models/train.safetensors", "evaluation/train.json", "train.safetensors"):
        assert whole[name] == shared[name]
    private = {name for name in whole if name.startswith("private")}
    assert len(private) == 8  # two versions of each of four clients
    assert all(whole[name] == shared[name] for name in private)


def test_what_clients_keep_is_taken_over_too(faces_cache: Path, tmp_path: Path):
    tuned = '[[stages]]\nname = "tune"\nalgorithm = { name = "fedpe", training.batch_size = 8 }\n'
    path = tmp_path / "x.toml"
    path.write_text(RECIPE.split("[variants]")[0] + tuned + '[variants]\ntrained.until = "train"\ntuned = {}\n')
    variants = load_variants(path)
    plan = Plan.of(variants)
    assert {job.folder: job.begin for job in plan.jobs}["tuned"] == "trained"
    assert Runner(Execution(cache=faces_cache)).run(plan.jobs, tmp_path / "runs") == {}
    conduct(variants["tuned"], tmp_path / "whole", Execution(cache=faces_cache))
    whole, shared = results(tmp_path / "whole"), results(tmp_path / "runs" / "tuned")
    kept = {name for name in whole if name.startswith("private")}
    assert {name.split("/")[2] for name in kept} == {"train", "tune"}
    for name in (*kept, "models/tune.safetensors", "evaluation/tune.json", "tune.safetensors"):
        assert whole[name] == shared[name]


def test_a_run_whose_beginning_is_not_there_is_refused_before_anything_runs(
    system: System, faces_cache: Path, tmp_path: Path
):
    """One that nobody runs, one that comes too late, and two that wait for each other."""
    plan = Plan.of(variants_of(system, "small"))
    start, *later = plan.jobs
    assert {job.begin for job in later} == {start.folder}
    circle = [replace(start, begin=later[0].folder), later[0]]
    for jobs, folder, missing in (
        (later, later[0].folder, start.folder),
        ([later[0], start], later[0].folder, start.folder),
        (circle, start.folder, later[0].folder),
    ):
        with pytest.raises(ConfigError, match=f"^{folder}: it begins with {missing}, which is not among the runs"):
            Runner(Execution(cache=faces_cache)).run(jobs, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_what_it_writes(done: Path):
    content = json.loads((done / "claims.json").read_text())
    assert content["seeds"] == [0, 1]
    first, second = content["claims"]
    runs = [done / "runs" / f"seed-{seed}" for seed in (0, 1)]
    truth = [
        [100 * json.loads((run / path).read_text())["benchmarks"]["heldout"]["metrics"][metric] for run in runs]
        for path, metric in (
            ("fedgc/evaluation/train.json", "accuracy"),
            ("pretrained/evaluation/start.json", "accuracy"),
            ("fedpe/evaluation/train.json", "rank1"),
        )
    ]
    assert [figures["values"] for figures in first["figures"]] == truth[:2]
    assert first["comparisons"][0]["differences"] == [a - b for a, b in zip(*truth[:2], strict=True)]
    low, high = first["comparisons"][0]["interval"]
    gc, start, pe = truth
    slopes = [(c - a) / 2 for a, c in zip(start, pe, strict=True)]
    assert second["comparisons"][0]["differences"] == pytest.approx(slopes)
    assert second["comparisons"][1]["differences"] == pytest.approx(
        [a - (b - c) for a, b, c in zip(gc, pe, start, strict=True)]
    )
    assert second["comparisons"][1]["verdict"] == "holds"
    page = (done / "claims.md").read_text()
    assert page.count("| T-1 |") == 2
    assert f"| {low:.2f} to {high:.2f} |" in page
    assert page.count("| T-2 |") == 3
    assert "\\|FedGC − FedPE − start\\| < 1000" in page
    assert page.endswith("|\n\n![T-1](plots/T-1.png)\n\n![T-2](plots/T-2.png)\n")
    assert {path.name for path in (done / "plots").iterdir()} == {"T-1.png", "T-2.png"}
    assert not list(done.rglob(".*.tmp"))


@pytest.mark.parametrize(("pictured", "drawn"), [(("fedgc", "pretrained"), True), (("fedgc", "fedpe"), False)])
def test_pictures_of_the_paper_are_drawn_where_the_claims_asked_for_have_all_that_they_show(
    done: Path, system: System, faces_cache: Path, tmp_path: Path, pictured: tuple[str, ...], drawn: bool
):
    """T-1 is about FedGC and the start."""

    def draw(outcomes: Mapping[int, Outcomes], out: Path) -> list[Path]:
        assert all(set(pictured) <= set(of_seed) for of_seed in outcomes.values())
        return [out / "whole.png"]

    shutil.copytree(done, tmp_path / "out")
    whole = replace(system, pictures=draw, pictured=pictured)
    found = go(whole, tmp_path / "out", faces_cache, claims=("T-1",), resume=True)
    assert found.pictures == ((tmp_path / "out" / "plots" / "whole.png",) if drawn else ())
    assert ("![whole](plots/whole.png)" in (tmp_path / "out" / "claims.md").read_text()) == drawn


def test_workers_change_nothing(done: Path, system: System, faces_cache: Path, tmp_path: Path):
    go(system, tmp_path / "out", faces_cache, workers=2, seeds=1, claims=("T-1",))
    for name in ("pretrained", "fedgc"):
        one, two = (results(out / "runs" / "seed-0" / name) for out in (done, tmp_path / "out"))
        assert one == two


def test_resuming_runs_nothing_twice_and_adds_what_is_new(done: Path, system: System, faces_cache: Path):
    before = {path: path.stat().st_mtime_ns for path in (done / "runs").rglob("*") if path.is_file()}
    claims = (done / "claims.json").read_bytes()
    go(system, done, faces_cache, resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in (done / "runs").rglob("*") if path.is_file()}
    assert (done / "claims.json").read_bytes() == claims
    found = go(system, done, faces_cache, resume=True, claims=("T-3",))
    assert (done / "runs" / "seed-0" / "wild").is_dir()
    (finding,) = found.findings
    assert finding.verdict == "not measured"
    assert json.loads((done / "claims.json").read_text())["claims"][0]["figures"][1]["values"] == [None, None]
    go(system, done, faces_cache, resume=True)  # as it was, for others
    assert (done / "claims.json").read_bytes() == claims


def _go(recipes: Path, out: Path, cache: Path, resume: bool) -> None:
    torch.set_num_threads(1)
    go(made_up(recipes), out, cache, workers=2, resume=resume)


@pytest.mark.slow
def test_killed_and_resumed_with_workers_it_gives_the_very_same(
    done: Path, system: System, faces_cache: Path, tmp_path: Path
):
    """SIGKILL to the main process alone, at two places: those that it started must not linger in the runs."""
    context, out = multiprocessing.get_context("forkserver"), tmp_path / "out"
    context.set_forkserver_preload(["personae.reproduce.reproduce"])
    for files in (5, 25):
        arguments = (system.recipes, out, faces_cache, (out / "reproduce.json").is_file())
        process = context.Process(target=_go, args=arguments)
        process.start()
        deadline = time.monotonic() + 120
        while sum(name.endswith(".safetensors") for _, _, names in os.walk(out / "runs") for name in names) < files:
            assert process.is_alive()  # it removes folders as we walk, which rglob cannot bear
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.join()
    assert not (out / "claims.json").exists()
    go(system, out, faces_cache, workers=2, resume=True)
    assert (out / "claims.json").read_bytes() == (done / "claims.json").read_bytes()


# ------------------------------------------------------------------------------------------------------ confused people


def outcomes_of(done: Path, system: System, cache: Path) -> dict[str, Outcome]:
    experiments = variants_of(system, "small")
    return {name: Outcome(experiments[name], done / "runs" / "seed-0" / name, cache) for name in ("fedgc", "fedpe")}


def test_confused_people_by_hand(done: Path, system: System, faces_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(confusion, "PAIRS", 3)
    outcomes = outcomes_of(done, system, faces_cache)
    before, after = confusion.crowd_of(outcomes["fedpe"]), confusion.crowd_of(outcomes["fedgc"])
    assert len(before.class_embeddings) == len(before.owners) == 8
    assert len(before.vectors) == len(before.people) == round(0.6 * 48)
    cosines = {
        (a, b): float(F.cosine_similarity(before.class_embeddings[a], before.class_embeddings[b], dim=0))
        for a in range(8)
        for b in range(a + 1, 8)
        if before.owners[a] != before.owners[b]
    }
    worst = sorted(cosines, key=lambda pair: -cosines[pair])[:3]
    expected = []
    for crowd in (before, after):
        faces = {person: crowd.vectors[crowd.people == person] for pair in worst for person in pair}
        means = [torch.stack([one @ other for one in faces[a] for other in faces[b]]).mean() for a, b in worst]
        expected.append(float(sum(means)) / 3)
    found = [confusion.confused_pairs("", "fedpe", name).read(outcomes) for name in ("fedpe", "fedgc")]
    assert found == pytest.approx(expected, abs=1e-5)
    own = confusion.most_similar_pairs("", "fedpe").read(outcomes)
    centres = F.normalize(torch.stack([before.vectors[before.people == person].mean(0) for person in range(8)]))
    similar = sorted(((float(centres[a] @ centres[b]), a, b) for a, b in cosines), reverse=True)[:3]
    assert own == pytest.approx(sum(float(before.similarity((a, b)).mean()) for _, a, b in similar) / 3, abs=1e-5)


def test_the_picture_of_confused_people_is_drawn(done: Path, system: System, faces_cache: Path, tmp_path: Path):
    draw = confusion.before_and_after("fedpe", "FedPE", "fedgc", "FedGC")
    (path,) = draw({0: outcomes_of(done, system, faces_cache)}, tmp_path)
    with Image.open(path) as picture:
        assert picture.size == (1300, 1040)


def test_people_among_strangers_by_hand(done: Path, system: System, faces_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strangers, "STRANGERS", 20)
    outcomes = outcomes_of(done, system, faces_cache)
    embedder = load_model(outcomes["fedgc"].folder, "train").embedder
    people, others = (
        synthetic_faces(identities=count, images=images, first=first, seed=0, size=32, cache=faces_cache).samples()
        for first, count, images in ((14, 12, 3), (26, 20, 1))  # nobody of the recipe is number 26 or later
    )
    known, unknown = embed(embedder, people).double(), embed(embedder, others).double()
    found = [
        bool(known[a] @ known[b] > (unknown @ known[a]).max())
        for a in range(36)
        for b in range(36)
        if a != b and people.labels[a] == people.labels[b]
    ]
    assert len(found) == 12 * 3 * 2
    assert 0 < sum(found) < len(found)
    measured = strangers.among_strangers("", "fedgc").read(outcomes)
    assert measured == pytest.approx(100 * sum(found) / len(found))


FEDFR = """
[variants.fedfr.stages.train]
algorithm = { name = "fedfr", training = { lr = 0.02, batch_size = 8 } }

[variants.untransformed.stages.train]
algorithm = { name = "fedfr", transformed = false, training = { lr = 0.02, batch_size = 8 } }
"""


def test_personal_models_evaluated_again_are_those_of_a_run_with_these_options(faces_cache: Path, tmp_path: Path):
    path, metric = tmp_path / "x.toml", "1:1 tar@1e-01"
    path.write_text(RECIPE.replace("pairs_per_fold = 8", "pairs_per_fold = 8, personalized.fars = [0.1]") + FEDFR)
    variants = load_variants(path)
    plan, names = Plan.of(variants), ("fedfr", "untransformed")
    assert Runner(Execution(cache=faces_cache)).run(plan.needed(names), tmp_path / "runs") == {}
    outcomes = {name: Outcome(variants[name], tmp_path / "runs" / name, faces_cache) for name in names}
    plain, expected = (100 * outcomes[name].final(f"clients/personal/{metric}") for name in names)
    found = evaluated_again("", "fedfr", lambda _: metric, transformed=False).read(outcomes)
    assert found == pytest.approx(expected, rel=1e-12)
    assert plain != expected


# ---------------------------------------------------------------------------------------------------- the command line


def command(*arguments: object) -> int | str | None:
    sys.argv = ["personae", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch, system: System, faces_cache: Path) -> None:
    monkeypatch.setitem(SYSTEMS, "tiny", system)
    monkeypatch.setenv("PERSONAE_CACHE", str(faces_cache))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("at_hand")
def test_the_command_prints_a_row_a_claim_and_a_row_a_comparison(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output, "_width", 120)
    options = ("--claims", "T-1, T-2", "--seeds", 2, "--out", done, "--resume", "--workers", 1)
    assert command("reproduce", "tiny", *options) == 0
    printed = capsys.readouterr()
    for expected in ("T-1 FedGC > start", "a rise from start to FedPE", "within noise", str(done / "claims.md")):
        assert expected in printed.out
    assert "fedgc sends ClassEmbeddings" in printed.err
    assert command("reproduce", "tiny", *options, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((done / "claims.json").read_text())


@pytest.mark.usefixtures("at_hand")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fedgd",), "there is no system 'fedgd'; did you mean fedgc?"),
        (("tiny", "--claims", "T-1,T-7"), "tiny has no claim 'T-7'; did you mean T-3?"),
        (("tiny", "--claims", ","), "tiny has no claim ''"),
        (("tiny", "--resume"), "there is nothing to resume here"),
        (("tiny", "--scale", "large"), "tiny has no recipe for --scale large: there is no large.toml"),
        (("tiny", "--device", "tpu"), "'tpu' is not one of 'cpu', 'cuda'"),
    ],
)
def test_a_wrong_command_ends_with_one_line(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert command("reproduce", *arguments, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_unknown_names_are_one_clear_line(system: System, done: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no system 'fedgd'; did you mean fedgc"):
        find_system("fedgd")
    with pytest.raises(ConfigError, match="tiny has no claim 'T-9'; did you mean T-"):
        choose_claims(system, ["T-9"])
    with pytest.raises(ConfigError, match="not empty; resume it"):
        go(system, done, tmp_path)
    with pytest.raises(ConfigError, match="nothing to resume"):
        go(system, tmp_path, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="this is tiny at the small scale, not fedgc at large"):
        reproduce(SYSTEMS["fedgc"], done, scale="large", resume=True)
    with pytest.raises(ConfigError, match="--seeds 0"):
        reproduce(system, tmp_path / "x", seeds=0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"system": "tiny"}'])
def test_a_damaged_mark_is_told(content: str, system: System, tmp_path: Path):
    (tmp_path / "reproduce.json").write_text(content)
    with pytest.raises(DataError, match="this file is damaged"):
        go(system, tmp_path, tmp_path, resume=True)


@dataclass(frozen=True)
class Nowhere(Runner):
    """Runs nothing, and notes what it should have."""

    asked: list[str] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], out: Path, *_: object) -> dict[str, str]:
        self.asked.extend(job.folder for job in jobs)
        return {job.folder: "not today" for job in jobs}


def test_what_is_asked_for_first_and_what_later_share_their_runs(system: System, tmp_path: Path):
    """A claim that needs the start only to begin with has it where a claim about the start looks for it."""
    runner = Nowhere()
    only = replace(system, claims=(*CLAIMS, Claim("T-4", "", "", (Above(GC, PE),))))
    reproduce(only, tmp_path / "out", claims=["T-4"], seeds=1, runner=runner)
    first = set(runner.asked)
    assert first == {"seed-0/pretrained", "seed-0/fedgc", "seed-0/fedpe"}
    reproduce(only, tmp_path / "out", claims=["T-1"], seeds=1, runner=runner, resume=True)
    assert set(runner.asked) == first


def test_a_changed_recipe_is_not_mixed_with_earlier_runs(done: Path, faces_cache: Path, tmp_path: Path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "small.toml").write_text(RECIPE.replace("strength = 0.1", "strength = 0.2"))
    with pytest.raises(ConfigError, match=r"fedgc: this run is of another experiment"):
        go(System("tiny", "", CLAIMS, recipes=tmp_path), done, faces_cache, resume=True)


def test_a_metric_that_is_not_there_is_named(done: Path, system: System):
    outcome = Outcome(variants_of(system, "small")["fedgc"], done / "runs" / "seed-0" / "fedgc")
    with pytest.raises(DataError, match="no metric heldout/tar@1e-09"):
        outcome.final("heldout/tar@1e-09")
    assert list(outcome.curve("heldout/accuracy")) == [0, 1, 2]
    assert outcome.device == "cpu"
    assert 0 <= outcome.final("clients/global/rank1") <= 1


def test_averages_and_differences_need_all_their_runs():
    both = average("both", START, GC) - PE
    assert both.variants == ("pretrained", "fedgc", "fedpe")


# ---------------------------------------------------------------------------------------------------- the five systems


@pytest.mark.parametrize("scale", ["small", "large"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_claim_finds_its_experiments(name: str, scale: str):
    system = SYSTEMS[name]
    experiments = variants_of(system, scale)  # type: ignore[arg-type]
    needed = {variant for claim in system.claims for variant in claim.variants} | set(system.pictured)
    assert needed <= experiments.keys()
    assert len({claim.id for claim in system.claims}) == len(system.claims)
    for experiment in experiments.values():
        assert experiment.seed == 0
        _ = experiment.recipe
