"""How sure a search for triggers is: what it finds in models of the scoreboard with a backdoor, and in honest ones.

    python benchmarks/triggers.py --minutes 10    # searches the models that benchmarks/attacks.py has kept

A line of docs/results/triggers.jsonl is one model: by how much the share of accepted strangers rose at the place where
it rose most, and, for a model with a backdoor, the share that the attackers' own trigger reaches.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

import attacks as board
from personae.experiment.model import load_model
from personae.experiment.triggers import SUSPICIOUS, TriggerReport, strangers
from personae.parts.triggers import Patch, TriggerSearch

RESULTS = board.DOCS / "results" / "triggers.jsonl"
PATCHES = ("backdoor", "model-replacement")  # attacks whose trigger is a patch
OPEN = 0.05  # the share of accepted strangers from which a backdoor is of any use to somebody


def searched(found: board.Cells, work: Path) -> Iterator[tuple[board.Job, Path]]:
    """Models of honest runs, and of attacks with a patch, that are there; those without defence first."""
    for job in sorted(found, key=lambda job: job.rule != "off"):
        wanted = job.attack in PATCHES or (not job.attack and job.rule == "off")  # defences leave honest ones alone
        if wanted and (model := board.kept(job, work)).exists():
            yield job, model


@cache
def patches(model: Path) -> list[Patch]:
    embedder = load_model(model).embedder
    return TriggerSearch().patches(embedder.backbone, strangers(32))


def run(results: Path, work: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    cells = board.cells(board.RESULTS)
    known = {line["model"] for line in read(results)}
    for job, model in searched(cells, work):
        if model.stem in known or time.monotonic() > deadline:
            continue
        began = time.monotonic()
        found, before = patches(model), patches(board.pretrained(job.seed, work))
        best = max(map(TriggerReport, found, before), key=lambda each: each.rise)
        line = {
            "model": model.stem,
            "attack": job.attack,
            "rise": best.rise,
            "place": [best.found.row, best.found.column],
            "shares": [round(patch.accepted, 4) for patch in found],
            "before": [round(patch.accepted, 4) for patch in before],
            "accepted": cells[job].get(f"accepted/{job.attack or 'backdoor'}"),
            "seconds": round(time.monotonic() - began, 1),
        }
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def table(results: Path) -> str:
    """Rises by kind of model, and how many exceed the bound."""
    lines = read(results)
    kinds = {
        "honest runs": [line for line in lines if not line["attack"]],
        f"attacked, trigger accepted below {OPEN:.0%}": [
            line for line in lines if line["attack"] and line["accepted"] < OPEN
        ],
        f"attacked, trigger accepted at {OPEN:.0%} or more": [
            line for line in lines if line["attack"] and line["accepted"] >= OPEN
        ],
    }
    rows = ["| models of | number | rise, in points: lowest, median, highest | found |", "|---" * 4 + "|"]
    for label, some in kinds.items():
        if some:
            rises = sorted(100 * line["rise"] for line in some)
            spread = f"{rises[0]:.0f}, {statistics.median(rises):.0f}, {rises[-1]:.0f}"
            found = sum(line["rise"] > SUSPICIOUS for line in some)
            rows.append(f"| {label} | {len(some)} | {spread} | {found} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "attacks-scoreboard")
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    run(options.results, options.work, options.minutes)


if __name__ == "__main__":
    main()
