"""What a coding costs in quality, and saves in bytes: TAR by round and by bytes that crossed.

    python benchmarks/codings.py run [--rounds 24] [--seeds 0 1 2]
    python benchmarks/codings.py table [--seeds 0 1 2]

FedPE on synthetic people, in one process: every request and every answer is written and read again in the coding, as
over a network, and bytes are those of the ledger. Each way is a file in `--out`. One that is there is not run again.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.runtime import frames
from personae.runtime.coding import CODINGS, Coding
from personae.runtime.federation import Federation
from personae.runtime.inprocess import SameProcess
from personae.runtime.transport import Answer, Failure, Request

WAYS: dict[str, tuple[str, float | None]] = {  # -> the coding, and the share of the layer top-k
    "exact": ("exact", None),
    "fp16": ("fp16", None),
    "bf16": ("bf16", None),
    "delta-fp16": ("delta-fp16", None),
    "delta-bf16": ("delta-bf16", None),
    "delta-int8": ("delta-int8", None),
    "top-k, 10%": ("changed", 0.1),
    "top-k, 1%": ("changed", 0.01),
}
CLIENTS = 8
FIGURE = "heldout/tar@1e-01"


class Coded(SameProcess):
    """The same process, with everything written and read in between, and counted."""

    def __init__(self, federation: Federation, coding: Coding) -> None:
        super().__init__(federation)
        self._federation, self._coding = federation, coding
        self._layout = federation.backbone().layout
        self.bytes: dict[int, dict[str, int]] = {}

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        for request in requests:
            counted = self.bytes.setdefault(request.round, {"down": 0, "up": 0})
            content = frames.of_request(request, self._coding)
            received = frames.to_request(content, self._federation, self._layout, self._coding)
            (answer,) = super().exchange([received])
            assert isinstance(answer, Answer), answer
            written = frames.of_answer(answer.message, received, self._coding)
            if request.task == "train":
                counted["down"] += sum(self._coding.bytes(request.down).values())
                counted["up"] += sum(self._coding.bytes(answer.message, received.down).values())
            yield frames.to_answer(written, request, self._federation, self._layout, self._coding)


def experiment(way: str, rounds: int, seed: int) -> dict[str, Any]:
    _, share = WAYS[way]
    return {
        "name": "codings",
        "seed": seed,
        "network": {"name": "small", "embedding": 64, "height": 48, "width": 48},
        "data": {
            "private": {"identities": 96, "images": 12},
            "heldout": {"first": 5000, "identities": 100, "images": 8},
        },
        "partition": {"by": "equal", "clients": CLIENTS},
        "evaluation": {"folds": 5, "pairs_per_fold": 800},
        "stages": [
            {
                "name": "federate",
                "rounds": rounds,
                "evaluate_every": 2,
                "layers": [] if share is None else [{"name": "top-k", "share": share}],
                "algorithm": {"name": "fedpe", "training": {"batch_size": 16, "epochs": 2, "lr": 0.05}},
            }
        ],
    }


def measure(way: str, rounds: int, seed: int, cache: Path) -> dict[str, Any]:
    made: list[Coded] = []

    def transport(federation: Federation, *_: object) -> Coded:
        made.append(Coded(federation, CODINGS[WAYS[way][0]]))
        return made[-1]

    with tempfile.TemporaryDirectory(prefix="codings-") as folder:
        known = parse_experiment(experiment(way, rounds, seed), "benchmark")
        conduct(known, Path(folder) / "run", Execution(cache=cache), connect=transport)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    found = {event["round"]: event["metrics"] for event in events if event["event"] == "global"}
    return {"figures": found, "bytes": made[0].bytes}


def place(out: Path, way: str, seed: int) -> Path:
    return out / f"codings-{way.replace(', ', '-').replace('%', '')}-{seed}.json"


def table(out: Path, seeds: list[int]) -> Iterator[str]:
    """The best TAR, and what had crossed when it first was where the exact run of its seed ended, less two points."""
    found = {
        (way, seed): json.loads(place(out, way, seed).read_text())
        for way in WAYS
        for seed in seeds
        if place(out, way, seed).exists()
    }
    exact = {seed: best(found["exact", seed])[-1][1] for seed in seeds}
    yield "| way | a client, a round: down | up | best TAR | beside exact | rounds to the goal | all bytes to it: up |"
    yield "|---" * 7 + "|"
    for way in WAYS:
        cells = {seed: found[way, seed] for seed in seeds if (way, seed) in found}
        crossed = [
            cells[seeds[0]]["bytes"]["1"][direction] / CLIENTS / 1e6 for direction in ("down", "up")
        ]  # every round has as many, up to the values that `changed` sends
        tars = [best(cell)[-1][1] for cell in cells.values()]
        beside = [best(cell)[-1][1] - exact[seed] for seed, cell in cells.items()]
        reached = [reaching(cell, exact[seed] - 0.02) for seed, cell in cells.items()]
        yield (
            f"| {way} | {crossed[0]:.2f} MB | {crossed[1]:.3f} MB | {listed(f'{100 * each:.1f}' for each in tars)} | "
            f"{100 * sum(beside) / len(beside):+.1f} | "
            f"{listed(str(each[0]) if each else '–' for each in reached)} | "
            f"{listed(f'{each[1] / 1e6:.0f}' if each else '–' for each in reached)} MB |"
        )


def listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def reaching(cell: dict[str, Any], goal: float) -> tuple[int, int] | None:
    """The first round whose figure is as good, and the bytes that had gone up by then."""
    for number, value in best(cell):
        if value >= goal:
            return number, sum(each["up"] for round_, each in cell["bytes"].items() if int(round_) <= number)
    return None


def best(cell: dict[str, Any]) -> list[tuple[int, float]]:
    """By round, the best figure so far: the last one that was evaluated may be a poor one."""
    found, most = [], 0.0
    for number, figures in sorted((int(number), figures) for number, figures in cell["figures"].items()):
        most = max(most, figures[FIGURE])
        found.append((number, most))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "codings-cache")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results" / "network")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "table":
        print("\n".join(table(options.out, options.seeds)))
        return
    for seed in options.seeds:
        for way in WAYS:
            path = place(options.out, way, seed)
            if not path.exists():
                print(way, seed, flush=True)
                path.write_text(json.dumps({"way": way, **measure(way, options.rounds, seed, options.cache)}) + "\n")


if __name__ == "__main__":
    main()
