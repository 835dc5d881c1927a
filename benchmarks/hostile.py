"""What damaged files and messages, and kills at any moment, do: by the thousand, and from a seed.

    python benchmarks/hostile.py                          # all rows
    python benchmarks/hostile.py --rows gallery --tries 100000 --seed 1

A try takes one file, damages it (a bit, a byte, a cut, blocks that are swapped, blanked or doubled, the content of
another file), and has it read as usual. It must end in one of these ways:

- refused: one line that names the file, and one of the exit codes for it; of a message, its sender has failed;
- unchanged: to the bit what the whole file gives;
- read as another: a file of the same kind with other content. Only formats without a digest may do that.

Everything else is a fault: a traceback, a process that ends, more than LIMIT seconds, another result of a file with a
digest. No try gets more than CEILING bytes of memory. The faults are printed, and the exit code is then 1. A try
depends on its number and the seed, and on the files, some of which tell the time. The table of docs/concepts/faults.md
is made of docs/results/hostile.json.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from personae.core import wire
from personae.core.algorithm import ClientInfo
from personae.core.events import Event, TrainingRound
from personae.core.message import Record
from personae.data import open_faces
from personae.errors import PersonaeError
from personae.experiment.assembly import checkpoints_of, federation_of, layout_of
from personae.experiment.config import Experiment, load_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.experiment.result import StopRun
from personae.experiment.run import run_experiment
from personae.files import write_text
from personae.models import Network
from personae.parts.onnx import save_onnx
from personae.recognition.gallery import Gallery
from personae.recognition.threshold import by_hand
from personae.report.html import page
from personae.report.records import read_run
from personae.runtime import frames
from personae.runtime.checkpoint import Checkpoints
from personae.runtime.host import ClientHost
from personae.runtime.store import PrivateStore
from personae.runtime.transport import TRAIN, Failure, Request

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "hostile.json", DOCS / "concepts" / "faults.md"
BEGIN, END = "<!-- table: hostile tries -->", "<!-- end -->"
LIMIT = 60.0  # seconds for a try, on a machine that is busy
CEILING = 1 << 30  # bytes of memory, besides what the process has before
RESUMED, KILLS = "run, resumed", "run, killed"
NETWORK = Network(height=32, width=32, embedding=8)
RARELY = 20  # so many tries at other files are one at a whole run
LAST = 300  # bytes at either end of a file, which half of the damage is done to: headers and indices are there

EXPERIMENT = """
name = "tiny"
network = { height = 32, width = 32, embedding = 8 }
partition = { clients = 3 }
evaluation = { folds = 2, pairs_per_fold = 10 }

[data]
private = { identities = 9, images = 6 }
heldout = { first = 9, identities = 8, images = 4 }

[[stages]]
name = "federate"
rounds = 4
algorithm = { name = "fedpe", training = { epochs = 1, lr = 0.01 } }
"""


@dataclass(frozen=True)
class Target:
    """Files of one kind, one of which is damaged, and what is made of them."""

    files: tuple[Path, ...]
    use: Callable[[], Any]
    """The same for the same content; a `Failure` where a message fails its sender."""
    digest: bool = False
    """Whether the files have one, so that another result is a fault."""
    also: tuple[Any, ...] = ()
    """Results that are as good as that of the whole files."""
    names: tuple[str, ...] = ()
    """What a refusal may name instead of the file."""


@dataclass
class Row:
    """How the tries at one kind of file ended."""

    tries: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    codes: set[int] = field(default_factory=set)
    megabytes: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def note(self, number: int, found: dict[str, Any]) -> None:
        self.tries += 1
        self.ended[found["ended"]] += 1
        self.codes |= {found["code"]} if "code" in found else set()
        self.megabytes = max(self.megabytes, found.get("megabytes", 0))
        self.seconds = max(self.seconds, found.get("seconds", 0.0))
        if found["ended"] == "fault":
            self.faults.append(f"try {number}: {found['why']}")


# ----------------------------------------------------------------------------------------------------- what is damaged


def damaged(whole: bytes, others: Sequence[bytes], chance: random.Random) -> tuple[str, bytes]:
    """Another content, and how it came about."""
    while True:
        kind = chance.choice(("bit", "byte", "cut", "swapped", "blanked", "doubled", "another"))
        size = len(whole)
        place = chance.randrange(size)
        if chance.random() < 0.5 and size > 2 * LAST:
            place = chance.choice((chance.randrange(LAST), size - 1 - chance.randrange(LAST)))
        length = min(1 << chance.randrange(10), size)
        content = bytearray(whole)
        match kind:
            case "bit":
                content[place] ^= 1 << chance.randrange(8)
            case "byte":
                content[place] = chance.randrange(256)
            case "cut":
                del content[place:]
            case "swapped":
                other = chance.randrange(size)
                first, second = sorted((place, other))
                length = min(length, second - first, size - second)
                a, b = content[first : first + length], content[second : second + length]
                content[first : first + length], content[second : second + length] = b, a
            case "blanked":
                content[place : place + length] = bytes(len(content[place : place + length]))
            case "doubled":
                content[place:place] = content[place : place + length]
            case "another" if others:
                content = bytearray(chance.choice(others))
        if content != whole:
            return f"{kind} at {place} of {size}", bytes(content)


def targets(folder: Path) -> dict[str, Target]:
    """Of every kind of file, small ones."""
    plan, run = folder / "plan.toml", folder / "run"
    plan.write_text(EXPERIMENT)
    experiment = load_experiment(plan)
    run_experiment(experiment, run)
    resumed = begun(folder, experiment)
    known = folder / "people.db"
    with Gallery.create(known, "a model", 16, by_hand(0.5)) as gallery:
        for seed, name in enumerate(("Ada", "Grace")):
            gallery.add(name, F.normalize(torch.randn(3, 16, generator=torch.Generator().manual_seed(seed)), dim=1))
    model = folder / "model.onnx"
    save_onnx(experiment.network.build(), model, 32, 32)
    return {
        **of_run(folder, run, experiment),
        "gallery": Target((known,), partial(_everybody, known), digest=True),
        "experiment (TOML)": Target((plan,), lambda: load_experiment(plan).resolved()),
        **faces(folder),
        "model (ONNX)": Target((model,), partial(_vectors, model)),
        RESUMED: resumed,
    }


def of_run(folder: Path, run: Path, experiment: Experiment) -> dict[str, Target]:
    """What a run keeps, and the messages of one more round of it."""
    stage, materials = experiment.recipe[-1], Materials(experiment, Execution(cache=folder / "cache"))
    speed = materials.execution.acceleration
    layout = layout_of(experiment, speed)
    checkpoints = checkpoints_of(experiment, run, materials.digest(), speed)
    latest, before = (run / "checkpoints" / f"{name}.safetensors" for name in ("latest", "before"))

    def stand(of: Checkpoints) -> Any:
        found = of.latest()
        assert found is not None
        return found[0], _digest(found[1])

    alone = folder / "alone" / latest.name
    alone.parent.mkdir()
    shutil.copy(latest, alone)
    single = replace(checkpoints, folder=alone.parent)
    shutil.copy(before, latest)
    earlier = stand(checkpoints)
    shutil.copy(alone, latest)
    clients = sorted(path.name for path in (run / "private").iterdir() if path.is_dir())

    def kept() -> list[str]:
        stores = [PrivateStore.of(run / "private", name) for name in clients]
        found = [store.load(stage.name, stage.algorithm.types.private, layout) for store in stores]
        return [_digest(each) for each in found if each is not None]

    states = sorted((run / "private").glob(f"*/{stage.name}/{stage.rounds:06d}.safetensors"))
    written = ("metrics.jsonl", "ledger.jsonl", "timing.jsonl", "config.json", "summary.json", "environment.json")
    weights = run / "models" / f"{stage.name}.safetensors"

    federation = federation_of(experiment, materials.clients, folder / "private")
    down = stage.algorithm.types.down(model=federation.backbone().state())
    request = Request(TRAIN, stage.name, 1, ClientInfo(clients[0], 0), down)
    asked, answered = folder / "request", folder / "answer"
    asked.write_bytes(frames.of_request(request))
    answered.write_bytes(frames.of_answer(ClientHost(federation).handle(request).message, request))

    def request_read() -> Any:
        found = frames.to_request(asked.read_bytes(), federation, layout)
        return found.task, found.stage, found.round, found.client, _digest(found.down)

    def answer_read() -> Any:
        found = frames.to_answer(answered.read_bytes(), request, federation, layout)
        return found if isinstance(found, Failure) else _digest(found.message)

    return {
        "checkpoint, the only one": Target((alone,), partial(stand, single), digest=True),
        "checkpoints, the last two": Target(
            (latest, before), partial(stand, checkpoints), digest=True, also=(earlier,)
        ),
        "private states": Target(tuple(states), kept, digest=True),
        "records of a run": Target(tuple(run / name for name in written), lambda: page(read_run(run))),
        "weights": Target((weights,), partial(_vectors, weights)),
        "requests": Target((asked,), request_read),
        "answers": Target((answered,), answer_read),
    }


def begun(folder: Path, experiment: Experiment) -> Target:
    """Everything in the folder of a run that stopped half-way, which is then resumed."""
    half, resumed = folder / "half", folder / "resumed"

    def stop(event: Event) -> None:
        if isinstance(event, TrainingRound) and event.round == 2:
            raise StopRun

    def ended() -> dict[str, bytes]:
        shutil.rmtree(resumed, ignore_errors=True)
        shutil.copytree(half, resumed)
        run_experiment(experiment, resumed, resume=True)
        return results(resumed)

    run_experiment(experiment, half, callbacks=[stop])
    files = tuple(path for path in sorted(half.rglob("*")) if path.is_file() and path.stat().st_size)
    return Target(files, ended, digest=True, names=(str(resumed),))


def faces(folder: Path) -> dict[str, Target]:
    """Six images of two people, in the formats of others."""
    import pyarrow
    import pyarrow.parquet

    source = np.random.default_rng(0)
    pictures = [Image.fromarray(source.integers(0, 256, (4, 4, 3), np.uint8)).resize((16, 16)) for _ in range(6)]
    people = ["ann", "ann", "ann", "bob", "bob", "bob"]
    for kind in ("jpg", "png"):
        for number, (picture, person) in enumerate(zip(pictures, people, strict=True)):
            path = folder / kind / person / f"{number}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
    images = sorted((folder / "jpg").rglob("*.jpg"))
    with zipfile.ZipFile(folder / "faces.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        lines = [f"{path.name},{path.parent.name}" for path in images]
        archive.writestr("labels.csv", "\n".join(["path,identity", *lines, ""]))
        for path in images:
            archive.write(path, f"images/{path.name}")
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in images]
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": people}), folder / "faces.parquet")
    return {
        "JPEG": Target(tuple(images), partial(_pixels, folder, folder / "jpg")),
        "PNG": Target(tuple(sorted((folder / "png").rglob("*.png"))), partial(_pixels, folder, folder / "png")),
        "zip": Target((folder / "faces.zip",), partial(_pixels, folder, folder / "faces.zip")),
        "Parquet": Target((folder / "faces.parquet",), partial(_pixels, folder, folder / "faces.parquet")),
    }


def _pixels(folder: Path, path: Path) -> Any:
    """As they are read the first time."""
    cache = folder / "decoded"
    shutil.rmtree(cache, ignore_errors=True)
    found = open_faces(path, height=16, width=16, cache=cache, as_they_are=True)
    samples = found.samples()
    content = samples.images(torch.arange(len(samples)))
    return found.identities, samples.labels.tolist(), hashlib.sha256(content.numpy().tobytes()).hexdigest()


def _vectors(model: Path) -> str:
    network = NETWORK if model.suffix == ".safetensors" else None
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return hashlib.sha256(load_model(model, network=network).embedder(images).numpy().tobytes()).hexdigest()


def _everybody(path: Path) -> Any:
    with Gallery.open(path) as known:
        everybody = known.everybody()
        return known.model, known.threshold, everybody.names, everybody.vectors.tolist(), everybody.person.tolist()


def _digest(record: Record) -> str:
    return hashlib.sha256(wire.to_bytes(wire.encode(record))).hexdigest()


# ------------------------------------------------------------------------------------------------------- how tries end


def campaign(name: str, target: Target, seed: int, tries: int) -> Row:
    """Tries in a process of its own, which is begun again where one ends it."""
    row, number = Row(), 0
    context = multiprocessing.get_context("fork")
    while number < tries:
        ours, theirs = context.Pipe()
        process = context.Process(target=_tries, args=(theirs, name, target, seed, range(number, tries)))
        process.start()
        theirs.close()
        while number < tries:
            try:
                if not ours.poll(LIMIT):
                    row.note(number, {"ended": "fault", "why": f"more than {LIMIT:g} seconds"})
                    process.kill()
                    break
                row.note(number, ours.recv())
            except EOFError:
                process.join()
                row.note(number, {"ended": "fault", "why": f"the process ended with {process.exitcode}"})
                break
            finally:
                number += 1
        process.join()
    return row


def _tries(connection: Connection, name: str, target: Target, seed: int, numbers: Sequence[int]) -> None:
    """Each is told as soon as it has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries print there
    whole = {path: path.read_bytes() for path in target.files}
    good = (target.use(), *target.also)
    held = _kilobytes("VmData") * 1024 + CEILING
    resource.setrlimit(resource.RLIMIT_DATA, (held, held))
    for number in numbers:
        chance = random.Random(f"{seed} {name} {number}")
        path = chance.choice(target.files)
        how, content = damaged(whole[path], [each for each in whole.values() if each != whole[path]], chance)
        path.write_bytes(content)
        Path("/proc/self/clear_refs").write_text("5")  # peaks count from here
        before, began = _kilobytes("VmRSS"), time.monotonic()
        found = _ended(path, target, good)
        found |= {"seconds": time.monotonic() - began, "megabytes": (_kilobytes("VmHWM") - before) // 1024}
        if "why" in found:
            found["why"] = f"{path.name}, {how}: {found['why']}"
        connection.send(found)
        for each, content in whole.items():
            each.write_bytes(content)
    connection.close()


def _ended(path: Path, target: Target, good: Sequence[Any]) -> dict[str, Any]:
    try:
        found = target.use()
    except wire.WireError:  # of a request, which a client cannot understand
        return {"ended": "failed"} if path.name == "request" else {"ended": "fault", "why": traceback.format_exc()}
    except PersonaeError as error:
        told = str(error)
        if "\n" in told or not any(name in told for name in (path.name, *target.names)):
            return {"ended": "fault", "why": f"this is not one line that names the file: {told}"}
        return {"ended": "refused", "code": error.exit_code}
    except BaseException:
        return {"ended": "fault", "why": traceback.format_exc()}
    if isinstance(found, Failure):
        return {"ended": "failed"}
    if found in good:
        return {"ended": "unchanged"}
    return {"ended": "fault", "why": "another result"} if target.digest else {"ended": "another"}


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


# -------------------------------------------------------------------------------------------------------------- kills


def killed(folder: Path, seed: int, kills: int) -> Row:
    """Runs that are killed at any moment, and resumed until they end: the result is that of one that nobody killed."""
    row, plan = Row(), folder / "plan.toml"
    began = time.monotonic()
    subprocess.run(_command(plan, folder / "undisturbed", 1), check=True, capture_output=True)
    lasts, chance = time.monotonic() - began, random.Random(f"{seed} kills")
    undisturbed = results(folder / "undisturbed")
    while row.tries < kills:
        out, workers = folder / "killed", chance.choice((1, 2))
        shutil.rmtree(out, ignore_errors=True)
        hits = 0
        while True:
            process = subprocess.Popen(
                _command(plan, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.2, 1) * lasts if hits < 4 else LIMIT + 10 * lasts)
            over = process.poll() is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            told = process.communicate()[1].decode(errors="replace")
            if over:
                break
            hits += 1
        right = process.returncode == 0 and results(out) == undisturbed
        for number in range(row.tries, row.tries + hits):
            why = f"exit code {process.returncode}, or another result: {told[-500:]}"
            row.note(number, {"ended": "unchanged"} if right else {"ended": "fault", "why": why})
    return row


def _command(plan: Path, out: Path, workers: int) -> list[str]:
    options = ["--out", str(out), "--workers", str(workers), "--resume"]
    return [sys.executable, "-m", "personae", "run", str(plan), *options]


def results(out: Path) -> dict[str, bytes]:
    """What must not depend on the clock or on the number of attempts."""
    parts = [path for part in ("private", "models", "evaluation") for path in (out / part).rglob("*.*")]
    parts += [out / name for name in ("metrics.jsonl", "ledger.jsonl", "config.json", "summary.json")]
    return {str(path.relative_to(out)): path.read_bytes() for path in parts if not path.name.startswith(".")}


# -------------------------------------------------------------------------------------------------------------- a page


def table(rows: dict[str, Any]) -> str:
    """In Markdown."""
    head = "| damaged | tries | refused | exit codes | its client failed | unchanged | read as another | faults |"
    lines = [head, "|---" * 8 + "|"]
    for name, row in rows.items():
        ended, codes = row["ended"], ", ".join(map(str, row["codes"])) or "–"
        counts = [str(ended.get(kind, 0)) for kind in ("failed", "unchanged", "another", "fault")]
        lines.append(
            f"| {name} | {row['tries']:,} | {ended.get('refused', 0)} | {codes} | " + " | ".join(counts) + " |"
        )
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """The page with its table anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(json.loads(RESULTS.read_text()))}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, default=1000, help="of each kind of file")
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--rows", nargs="+", help="only these; the others stay as they are")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"PERSONAE_GALLERY_KEY": str(folder / "gallery.key"), "PERSONAE_CACHE": str(folder / "cache")}
        works = {
            kind: partial(campaign, kind, target, options.seed, options.tries // (RARELY if kind == RESUMED else 1))
            for kind, target in targets(folder).items()
        } | {KILLS: partial(killed, folder, options.seed, options.kills)}
        for kind, work in works.items():
            if options.rows is None or kind in options.rows:
                row = work()
                faults += [f"{kind}, {fault}" for fault in row.faults]
                record(options.results, kind, options.seed, row, list(works))
    print(*faults, sep="\n")
    if options.results == RESULTS:
        write_text(PAGE, filled(PAGE.read_text()))
    sys.exit(bool(faults))


def record(results: Path, kind: str, seed: int, row: Row, order: Sequence[str]) -> None:
    """Add a row to those that are there, without what depends on the machine."""
    rows = json.loads(results.read_text()) if results.exists() else {}
    rows[kind] = {
        "seed": seed,
        "tries": row.tries,
        "ended": dict(sorted(row.ended.items())),
        "codes": sorted(row.codes),
    }
    print(f"{kind}: {rows[kind]}, {row.seconds:.1f} s and {row.megabytes} MB at most", flush=True)
    write_text(results, json.dumps({name: rows[name] for name in order if name in rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
