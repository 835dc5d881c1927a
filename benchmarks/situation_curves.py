"""How good is the shared model after how many visits to clients, how many rounds, and how many bytes?

    python benchmarks/situation_curves.py run --minutes 10   # runs what is missing in docs/results/curves.jsonl
    python benchmarks/situation_curves.py draw               # draws docs/images/recommended-curves.svg from that file

A line of the file is one run of the usual situation of `situations.py`, with ten evaluations on the way. They change
nothing in the training, so a run ends where the same run of that file ends. The figure has means over the
seeds that all methods have, and shades a standard deviation on both sides. Pooled training visits no clients: a level
line is where it ended.
"""

import argparse
import json
import statistics
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

import situations
from personae.experiment.config import parse_experiment
from personae.experiment.execution import Execution
from personae.experiment.run import conduct
from personae.files import write_text
from personae.report.plots import SMALL, Key, Line, curves
from personae.report.records import read_run

RESULTS, IMAGE = situations.DOCS / "results" / "curves.jsonl", situations.DOCS / "images" / "recommended-curves.svg"
METHODS = ("fedpe", "recommended", "one")
EVALUATIONS = 10
COSTS = {"visits": "visits to clients", "rounds": "rounds", "megabytes": "MB that clients have sent"}
COLOURS = ("#1467a8", "#c8432b", "#1f8a57", "#4c5866")  # of a report's page, which this picture is no part of
INK, GRID = "#1d2630", "#c9d1d9"
POOLED = Key("pooled, at its end", 3, 1)
Lines = dict[tuple[str, int], dict[str, Any]]  # by method and seed


def job_of(method: str, seed: int) -> situations.Job:
    return "usual", method, seed


def tried(method: str, seed: int) -> dict[str, Any]:
    """What had been spent, and how good the model was on new people, at each evaluation."""
    plan = situations.plan_of(job_of(method, seed))
    (stage,) = plan["stages"]
    stage["evaluate_every"] = stage["rounds"] // EVALUATIONS
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        conduct(parse_experiment(plan, "curves"), out, Execution())
        record = read_run(out).records[stage["name"]]
    rounds = range(record.last_round + 1)
    visits, sent = (list(accumulate(spent[at] for at in rounds)) for spent in (record.visits, record.traffic["up"]))
    at = [each for each in sorted(record.benchmarks) if each]
    return {
        "method": method,
        "seed": seed,
        "settings": situations.settings_of(job_of(method, seed)),
        "rounds": at,
        "visits": [visits[each] for each in at],
        "megabytes": [sent[each] / 1e6 for each in at],
        "heldout": [record.benchmarks[each][f"heldout/{situations.TAR}"] for each in at],
    }


def known(results: Path) -> Lines:
    lines = map(json.loads, results.read_text().splitlines()) if results.exists() else ()
    found = {(line["method"], line["seed"]): line for line in lines}
    return {key: line for key, line in found.items() if line["settings"] == situations.settings_of(job_of(*key))}


def run(results: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * minutes
    there = known(results)
    for seed in situations.SEEDS:
        for method in METHODS:
            if (method, seed) in there:
                continue
            if time.monotonic() > deadline:
                return
            line = json.dumps(tried(method, seed))
            with results.open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)


def draw(results: Path) -> None:
    there, ends = known(results), situations.known(situations.RESULTS)
    seeds = [seed for seed in situations.SEEDS if all((name, seed) in there for name in METHODS)]
    pooled = statistics.mean(ends[job_of("pooled", seed)]["heldout"] for seed in seeds)
    keys = {name: Key(situations.METHODS[name].label, series) for series, name in enumerate(METHODS)}
    panels = []
    for cost, title in COSTS.items():
        lines = [mean_of([there[name, seed] for seed in seeds], cost, key) for name, key in keys.items()]
        end = max(line.x[-1] for line in lines)
        lines.append(Line(POOLED, [0, end], [pooled] * 2))
        panels.append(curves(lines, "TAR @ 1%, new people", percent=True, xlabel=title, whole=cost != "megabytes"))
    write_text(IMAGE, in_a_row(panels, [*keys.values(), POOLED]))


def mean_of(found: list[dict[str, Any]], cost: str, key: Key) -> Line:
    """Every seed has spent as much at the same evaluation."""
    columns = list(zip(*(line["heldout"] for line in found), strict=True))
    deviation = [*map(statistics.stdev, columns)] if len(found) > 1 else None
    return Line(key, found[0][cost], [*map(statistics.mean, columns)], deviation)


def in_a_row(panels: list[str], keys: list[Key]) -> str:
    """One picture, with a legend above, which looks the same wherever it is shown."""
    width, height = SMALL
    top, step = 30, 230
    parts = [
        f'<svg x="{at * width:g}" y="{top}" width="{width:g}" height="{height:g}" {panel.removeprefix("<svg ")}'
        for at, panel in enumerate(panels)
    ]
    for at, key in enumerate(keys):
        left = 40 + at * step
        parts.append(f'<path d="M{left} 15H{left + 28}" style="{key.stroke}"/>')
        parts.append(f'<text x="{left + 34}" y="19" style="font-size: 12px; fill: {INK}">{key.label}</text>')
    whole = "\n".join(parts).replace("var(--ink)", INK).replace("var(--grid)", GRID)
    for number, colour in enumerate(COLOURS, 1):
        whole = whole.replace(f"var(--series-{number})", colour)
    size = f"{len(panels) * width:g} {height + top:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{whole}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "draw"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    if options.what == "run":
        run(options.results, options.minutes)
    else:
        draw(options.results)


if __name__ == "__main__":
    main()
