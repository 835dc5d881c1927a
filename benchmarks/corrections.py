"""The server's corrections beside naive autograd and beside the two matrix products that nobody can do without.

    python benchmarks/corrections.py [--classes 1000 10000 50000] [--repeats 5] [--naive-up-to 10000] [--part 2048]

C class embeddings of 512 numbers, ten to a client. The floor is the bare products, C x D by D x C and C x C by C x D,
in the same blocks. Naive autograd holds the C x C similarities and what it needs to differentiate them. Times are
medians of interleaved repeats on one thread; read the ratios, not the seconds. Memory is the peak of a process of its
own, less what that process holds before it begins.

With `--part`, only so many rows are gone through, of floor and regularisers alike: time grows with their number, and
memory does not, so that it gives the ratio and the peak of sizes for which all would take too long. (Spreadout over a
part takes a third product, which the sum over all has no need of; its ratio is to be read against 1.5.)

Then the same with anchors drawn at random instead of all: how much of the time is left, and how far the gradient is
from the exact one. Its mean over draws is exact; a single draw is not. In a crowd, ten people each look alike.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from personae import Margin
from personae.parts.corrections import BLOCK, drawn, softmax_regulariser, spreadout

WIDTH, CLIENT = 512, 10
COSFACE, SPREAD = Margin(kind="cosface", scale=30.0, margin=0.4), 0.7


def floor(rows: Tensor, owners: Tensor, part: Tensor | None) -> Tensor:  # noqa: ARG001
    gradient = torch.empty_like(rows)
    similarities = torch.empty(min(BLOCK, len(rows)), len(rows))
    for start in range(0, len(rows if part is None else part), BLOCK):
        part = rows[start : start + BLOCK]
        z = torch.mm(part, rows.T, out=similarities[: len(part)])
        torch.mm(z, rows, out=gradient[start : start + BLOCK])
    return gradient


def naive_softmax(rows: Tensor, owners: Tensor, part: Tensor | None) -> Tensor:  # noqa: ARG001
    live, itself = rows.clone().requires_grad_(), torch.eye(len(rows), dtype=torch.bool)
    z = COSFACE.scale * (F.normalize(rows) @ F.normalize(live).T - COSFACE.margin * itself)
    z = z.masked_fill((owners[:, None] == owners) & ~itself, -math.inf)
    F.cross_entropy(z, torch.arange(len(rows)), reduction="sum").backward()
    return live.grad


def naive_spreadout(rows: Tensor, owners: Tensor, part: Tensor | None) -> Tensor:  # noqa: ARG001
    live = rows.clone().requires_grad_()
    unit = F.normalize(live)
    excess = F.relu(SPREAD - (1 - unit @ unit.T))
    (excess.square().sum() - excess.diagonal().square().sum()).backward()
    return live.grad


CONTENDERS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "two products (floor)": floor,
    "softmax regulariser": lambda rows, owners, part: softmax_regulariser(rows, owners, COSFACE, anchors=part).gradient,
    "spreadout": lambda rows, _, part: spreadout(rows, SPREAD, anchors=part).gradient,
    "softmax, autograd": naive_softmax,
    "spreadout, autograd": naive_spreadout,
}
OURS = {"softmax, autograd": "softmax regulariser", "spreadout, autograd": "spreadout"}


def crowd(classes: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(classes, WIDTH, generator=source)), torch.arange(classes) // CLIENT


def show_drawn(classes: int, draws: int = 5) -> None:
    """Time and error of a part of the anchors: the length of the difference over that of the exact gradient."""
    source = torch.Generator().manual_seed(1)
    rows, owners = crowd(classes)
    looks = F.normalize(torch.randn(classes // 10, WIDTH, generator=source)).repeat(10, 1)[:classes]
    crowded = F.normalize(looks + 0.7 * rows)
    regularisers = {
        "softmax regulariser": lambda **how: softmax_regulariser(crowded, owners, COSFACE, **how).gradient,
        "spreadout": lambda **how: spreadout(crowded, SPREAD, **how).gradient,
    }
    print(f"\n{classes} classes x {WIDTH}, drawn{'anchors':>12}{'x exact time':>14}{'error':>8}{'of 5 rounds':>13}")
    for name, regulariser in regularisers.items():
        began = time.perf_counter()
        exact = regulariser()
        whole = time.perf_counter() - began
        for share in (2, 4, 10):
            found, seconds = [], []
            for _ in range(draws):
                anchors = drawn(classes // share, rows, source)
                began = time.perf_counter()
                found.append(regulariser(anchors=anchors))
                seconds.append(time.perf_counter() - began)
            alone = statistics.mean(float((each - exact).norm() / exact.norm()) for each in found)
            mean = float((torch.stack(found).mean(0) - exact).norm() / exact.norm())
            ratio = statistics.median(seconds) / whole
            print(f"{name:28}{classes // share:8}{ratio:14.2f}{alone:8.2f}{mean:13.2f}")


def show(classes: int, repeats: int, names: list[str], part: int | None) -> None:
    rows, owners = crowd(classes)
    chosen = None if part is None else torch.arange(part)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats + 1):
        for name in names:
            began = time.perf_counter()
            CONTENDERS[name](rows, owners, chosen)
            if repeat or repeats == 1:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    base = statistics.median(seconds["two products (floor)"]) or math.nan
    print(f"\n{classes} classes x {WIDTH}{'median s':>16}{'x floor':>10}{'x ours':>10}{'peak MB':>10}")
    for name, values in seconds.items():
        median = statistics.median(values)
        ours = f"{median / statistics.median(seconds[OURS[name]]):.2f}" if name in OURS else ""
        print(f"{name:24}{median:14.3f}{median / base:10.2f}{ours:>10}{peak_of(name, classes, part):10}")
    unmeasured = [name for name in OURS if name not in names]
    for name in unmeasured:  # the similarities and their gradient alone take as much
        print(f"{name:24}{'out of reach: more than':>27} {2 * 4 * classes**2 / 2**30:.0f} GB")


def peak_of(name: str, classes: int, part: int | None) -> int:
    command = [sys.executable, __file__, "--memory-of", name, "--classes", str(classes)]
    command += [] if part is None else ["--part", str(part)]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def memory_of(name: str, classes: int, part: int | None) -> None:
    """Megabytes on top of the rows and of what a small problem takes."""
    CONTENDERS[name](*crowd(CLIENT), None)
    rows, owners = crowd(classes)
    chosen = None if part is None else torch.arange(part)
    before = high_water()
    CONTENDERS[name](rows, owners, chosen)
    print(json.dumps((high_water() - before) // 1024))


def high_water() -> int:
    """Peak of the resident memory in kB, from Linux itself: `getrusage` starts from the peak of the parent process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--part", type=int, help="go through so many rows only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--naive-up-to", type=int, default=10_000, help="classes that autograd has memory for")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        memory_of(options.memory_of, options.classes[0], options.part)
        return
    for classes in options.classes:
        naive = options.part is None and classes <= options.naive_up_to
        show(classes, options.repeats, [name for name in CONTENDERS if naive or name not in OURS], options.part)
        if options.part is None:
            show_drawn(classes)


if __name__ == "__main__":
    main()
