"""Does training leave a strong model as good as it was? Every algorithm from published weights, on photographs.

    python benchmarks/strong_start.py run --faces FACES.zip --weights WEIGHTS --out starts.jsonl --work FOLDER
    python benchmarks/strong_start.py table starts.jsonl

FACES.zip holds aligned images of 112x112 pixels, and `labels.csv` with the columns `path` and `identity`. A line of the
result is one algorithm after three rounds, for clients of 1, 5 or 20 people. It has the true accept rate at a false
accept rate of 0.1% on people whom nobody trains on, before and after, and what the difference is on resampled people.
Own people are a client's people among everybody's test images at 1%: by the model that it began with, and by the one
that it uses in the end. Settings are chosen with seed 100 and judged on 0, 1 and 2. Lines that are in the file already
are not repeated. `--defaults scratch` takes each algorithm's own defaults, which are for training from scratch, in
place of those that an experiment with weights has; `--set` changes single settings.
"""

import argparse
import csv
import io
import json
import random
import shutil
import statistics
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from personae.algorithms import ALGORITHMS
from personae.core.events import PersonalEvaluation, events
from personae.errors import PersonaeError
from personae.evaluation.bootstrap import tar_resamples
from personae.evaluation.verification import all_pairs, operating_points
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.model import load_model
from personae.experiment.overrides import apply
from personae.experiment.run import conduct

FAR = 1e-3
ROUNDS = 3
CLIENTS = {1: (6, 12), 5: (3, 12), 20: (2, 7)}  # by people of a client: how many clients, and images of each person
HELD_OUT, PUBLIC = (300, 4), (20, 4)  # people, and images of each
OWN = "1:1 tar@1e-02"  # a client's people among everybody's test images
LEFT_OUT = {"cluster", "dan", "dann"}  # the first trains nothing, the others adapt between domains in one place
FEWER_STEPS = {"hf_maml": "meta", "hf_maml_global": "meta", "unsupervised": "training"}  # their 50 and 100 take hours
STEPS = 5
Line = dict[str, Any]


def prepare(archive: Path, left_out: Sequence[str], people: int, seed: int, folder: Path) -> None:
    """Folders of people who are held out, public and private, drawn by the seed. No person is in two of them."""
    if (folder / "complete").exists():
        return
    with zipfile.ZipFile(archive) as images:
        paths = defaultdict(list)
        for row in csv.DictReader(io.StringIO(images.read("labels.csv").decode())):
            paths[row["identity"]].append(row["path"])
        draw = random.Random(seed)
        order = sorted(set(paths) - set(left_out))
        draw.shuffle(order)
        clients, each = CLIENTS[people]
        for role, (count, needed) in {
            "heldout": HELD_OUT,
            "public": PUBLIC,
            "private": (clients * people, each),
        }.items():
            chosen = [identity for identity in order if len(paths[identity]) >= needed][:count]
            order = [identity for identity in order if identity not in chosen]
            for identity in chosen:
                (folder / role / identity).mkdir(parents=True)
                for path in draw.sample(paths[identity], needed):
                    (folder / role / identity / Path(path).name).write_bytes(images.read(f"images/{path}"))
    (folder / "complete").touch()


def experiment(algorithm: Line, people: int, seed: int, weights: Path, faces: Path) -> Line:
    """One stage from the weights. Where one client has labels, the public people are its."""
    private: Line = {"source": str(faces / "private")}
    partition: Line = {"by": "equal", "clients": CLIENTS[people][0]}
    if algorithm["name"] == "unsupervised":
        private = {"parts": {"source": {"source": str(faces / "public")}, "target": private}}
        partition |= {"by": "domain", "source": "source"}
    return {
        "name": algorithm["name"],
        "seed": seed,
        "weights": str(weights.absolute()),
        "network": {"name": "mobilefacenet", "embedding": 128, "height": 112, "width": 112},
        "data": {"private": private, "public": {"source": str(faces / "public")}},
        "partition": {**partition, "train": 0.7, "val": 0.0, "test": 0.3},
        "evaluation": {"mirror": False, "client_fars": [1e-1], "personalized": {"fars": [1e-2], "fpirs": [1e-1]}},
        "firewall": {"enabled": False},
        "stages": [{"name": "train", "rounds": ROUNDS, "algorithm": algorithm}],
    }


def settings(name: str, defaults: str) -> Line:
    """What the stage says of its algorithm: its name, or all of its own defaults."""
    own = asdict(ALGORITHMS[name]()) if defaults == "scratch" else {}  # type: ignore[call-overload]
    own.pop("terms", None)
    given = {"name": name, **own}
    if part := FEWER_STEPS.get(name):
        given[part] = {**given.get(part, {}), "iterations": STEPS}
    return given


def pixels(folder: Path) -> tuple[Tensor, Tensor]:
    paths = sorted(folder.rglob("*.jpg"))
    numbers = {name: number for number, name in enumerate(sorted({path.parent.name for path in paths}))}
    images = torch.stack([torch.from_numpy(np.array(Image.open(path).convert("RGB"))) for path in paths])
    return images, torch.tensor([numbers[path.parent.name] for path in paths])


def rate(model: Path, images: Tensor, labels: Tensor) -> tuple[float, list[float]]:
    """The true accept rate of a model, and on resampled people, who are the same for every model."""
    embedder = load_model(model, mirror=False).embedder
    vectors = torch.cat([embedder(images[at : at + 64]) for at in range(0, len(images), 64)])
    pairs = all_pairs(vectors, labels)
    return operating_points(pairs, [FAR])[FAR].tar, tar_resamples(pairs, [FAR], 200)[FAR]


def own_people(run: Path) -> tuple[float | None, float | None]:
    """Means over clients: of the model that they began with, and of the one that they use in the end."""
    path = run / "metrics.jsonl"
    found = [
        event for event in events(path.read_bytes().splitlines(True), path) if isinstance(event, PersonalEvaluation)
    ]
    before = [figures.get(f"global/{OWN}") for figures in found[0].clients.values()]
    after = [figures.get(f"personal/{OWN}") for figures in found[-1].clients.values()]
    return _mean(before), _mean(after)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    begin = time.monotonic()
    known = {_key(line) for line in lines(options.out)}
    for seed in options.seeds:
        for people in options.people:
            faces = options.work / f"faces-{seed}-{people}"
            prepare(options.faces, options.leave_out, people, seed, faces)
            images, labels = pixels(faces / "heldout")
            start: tuple[float, list[float]] | None = None
            for name in options.algorithms:
                line: Line = {"seed": seed, "people": people, "algorithm": name, "defaults": options.defaults}
                line["changed"] = options.set
                if _key(line) in known:
                    continue
                if time.monotonic() - begin > 60 * options.minutes:
                    return
                raw = experiment(settings(name, options.defaults), people, seed, options.weights, faces)
                for change in options.set:
                    apply(raw, f"stages.train.algorithm.{change}")
                folder = options.work / "run"
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    conduct(parse_experiment(raw, name), folder, Execution())
                    start = start or rate(options.weights, images, labels)
                    end = rate(folder / "models" / "train.safetensors", images, labels)
                    change = [after - before for after, before in zip(end[1], start[1], strict=True)]
                    line |= {"start": start[0], "end": end[0], "resampled": [round(each, 6) for each in change]}
                    line["own"] = own_people(folder)
                except PersonaeError as error:
                    line["error"] = str(error)
                with options.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print({name: value for name, value in line.items() if name != "resampled"}, flush=True)


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _key(line: Line) -> str:
    return json.dumps([line[name] for name in ("seed", "people", "algorithm", "defaults", "changed")])


def table(options: argparse.Namespace) -> None:
    """A row for each algorithm and its defaults, and for each number of people the mean change over seeds."""
    groups: dict[tuple[str, str, str], dict[int, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines(options.out):
        if line["seed"] not in options.seeds:
            continue
        key = line["algorithm"], line["defaults"], ", ".join(line["changed"])
        groups[key][line["people"]].append(line)
    heads = [f"{people} per client" for people in CLIENTS]
    print(f"| algorithm | defaults | {' | '.join(heads)} | own people |\n|---|---|{'---|' * (len(heads) + 1)}")
    for (name, defaults, changed), found in groups.items():
        cells = [change(found.get(people, [])) for people in CLIENTS]
        print(f"| {name} | {defaults}{' ' if changed else ''}{changed} | {' | '.join(cells)} | {own(found.values())} |")


def change(found: Sequence[Line]) -> str:
    """`-0.4 (-1.1 to 0.2; 3 seeds)`: the mean over seeds, each of which has people of its own."""
    done = [line for line in found if "end" in line]
    if not done:
        return found[0]["error"] if found else "not run"
    mean = 100 * statistics.mean(line["end"] - line["start"] for line in done)
    resampled = 100 * np.mean([line["resampled"] for line in done], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}; {len(done)} seed{'s' * (len(done) > 1)})"


def own(groups: Iterable[Sequence[Line]]) -> str:
    """The models that clients use, on their own people, before and after."""
    pairs = [line["own"] for found in groups for line in found if "end" in line and None not in line["own"]]
    if not pairs:
        return "–"
    before, after = (100 * statistics.mean(column) for column in zip(*pairs, strict=True))
    return f"{before:.1f} -> {after:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    for name in ("faces", "weights", "out", "work"):
        running.add_argument(f"--{name}", type=Path, required=True)
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    running.add_argument("--people", type=int, nargs="+", default=[*CLIENTS], choices=[*CLIENTS])
    usual = [name for name in ALGORITHMS if name not in LEFT_OUT]
    running.add_argument("--algorithms", nargs="+", default=usual, choices=usual)
    running.add_argument("--defaults", choices=["weights", "scratch"], default="weights")
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    running.add_argument(
        "--leave-out", nargs="*", default=[], help="identities, such as one of two that are one person"
    )
    running.add_argument("--minutes", type=float, default=10)
    running.set_defaults(do=run)
    showing = commands.add_parser("table")
    showing.add_argument("out", type=Path)
    showing.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="100 is the one for choices")
    showing.set_defaults(do=table)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
