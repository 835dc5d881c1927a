"""What a coding costs in quality, and saves in bytes: TAR by round and by bytes that crossed.

    python benchmarks/codings.py run [--rounds 24] [--seeds 0 1]
    python benchmarks/codings.py table

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
    "delta-fp16": ("delta-fp16", None),
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


def table(out: Path, seed: int) -> Iterator[str]:
    """TAR at the end, and what had crossed when it first was where the exact run ended, less two points."""
    cells = {way: json.loads(path.read_text()) for way in WAYS if (path := place(out, way, seed)).exists()}
    goal = best(cells["exact"])[-1][1] - 0.02
    yield f"| way | down in a round | up in a round | best TAR | rounds to {100 * goal:.1f}% | bytes to it: down | up |"
    yield "|---" * 7 + "|"
    for way, cell in cells.items():
        rounds = {int(number): crossed for number, crossed in cell["bytes"].items() if crossed["up"]}
        each = [rounds[1][direction] / CLIENTS / 1e6 for direction in ("down", "up")]
        reached = next((number for number, value in best(cell) if value >= goal), None)
        until = {
            way: sum(crossed[way] for number, crossed in rounds.items() if number <= (reached or 0)) / 1e6
            for way in ("down", "up")
        }
        bytes_ = f"{reached} | {until['down']:.0f} MB | {until['up']:.1f} MB" if reached else "not reached | – | –"
        yield (f"| {way} | {each[0]:.2f} MB | {each[1]:.3f} MB | {100 * best(cell)[-1][1]:.1f}% | {bytes_} |")


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
        for seed in options.seeds:
            print("\n".join(table(options.out, seed)), end="\n\n")
        return
    for seed in options.seeds:
        for way in WAYS:
            path = place(options.out, way, seed)
            if not path.exists():
                print(way, seed, flush=True)
                path.write_text(json.dumps({"way": way, **measure(way, options.rounds, seed, options.cache)}) + "\n")


if __name__ == "__main__":
    main()
