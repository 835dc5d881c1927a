"""Rounds on one GPU: how fast with all optimisations, with each switched off, and with one to 32 streams.

    python benchmarks/gpu.py [--out gpu.json] [--repeats 5] [--networks mobilefacenet,small] [--brief]

A figure is of whole rounds of FedPE through the engine: 40 clients, transport, private state on disk, firewall and
averaging; "ten epochs" are ten local epochs instead of one. The figure with evaluation has each round followed by one
of 4,000 faces with their mirror images, over all pairs. Agreement is how far one round's step is from that of the plain
path, and how far two runs of the plain path are from each other. `--brief` leaves out what each optimisation is worth.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from crowd import MARGIN, NETWORKS, Crowd, Rounds, random_pixels, training
from personae.core.acceleration import Acceleration
from personae.evaluation.protocols import Benchmark
from personae.runtime.inprocess import LANES, STREAMS

CLIENTS, IMAGES, BATCH = 40, 128, 32
PLAIN = Acceleration().without(["channels_last", "resident", "graphs", "padding"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--networks", default="mobilefacenet,small")
    parser.add_argument("--brief", action="store_true")
    options = parser.parse_args()
    found: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "code": _code_version(),
        "clients": CLIENTS,
        "images": IMAGES,
        "batch": BATCH,
    }
    with tempfile.TemporaryDirectory() as name:
        for network in options.networks.split(","):
            found[network] = measure(Path(name), network, options.repeats, options.brief)
            options.out.write_text(json.dumps(found, indent=1))


def measure(folder: Path, network: str, repeats: int, brief: bool) -> dict[str, object]:
    plan = NETWORKS[network]
    crowd = Crowd(random_pixels(folder, plan.height), CLIENTS, IMAGES)
    full, half = training(BATCH), training(BATCH, precision="bfloat16")
    everything = Acceleration()
    usual = f"{STREAMS} streams, bf16"
    variants = {f"{streams} streams, bf16": (half, streams, everything) for streams in (1, LANES, 8, STREAMS, 32)}
    variants |= {f"{usual}, ten epochs": (replace(half, epochs=10), STREAMS, everything), "plain": (full, 1, PLAIN)}
    if not brief:
        variants |= {f"{STREAMS} streams, fp32": (full, STREAMS, everything)}
        variants |= {
            f"{usual}, without {name}": (half, STREAMS, everything.without([name]))
            for name in ("channels_last", "resident", "graphs", "padding")
        }
        variants |= {"1 stream, bf16, without graphs": (half, 1, everything.without(["graphs"]))}
    rounds = {
        name: Rounds(folder / network / str(number), crowd, plan, options, streams, "cuda", acceleration)
        for number, (name, (options, streams, acceleration)) in enumerate(variants.items())
    }
    result: dict[str, object] = {"ceiling": {batch: _ceiling(plan, batch) for batch in (32, 256, 1024)}}
    print(network, "batches alone, bf16, images/s:", result["ceiling"], flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    first: dict[str, float] = {}
    for repeat in range(repeats + 2):
        for name, each in rounds.items():
            began = time.perf_counter()
            each.round()
            took = time.perf_counter() - began
            if repeat >= 2:  # the first rounds capture, and choose kernels
                seconds[name].append(took)
            else:
                first[name] = first.get(name, 0.0) + took
    trained = {name: CLIENTS * IMAGES * int(each.training.epochs or 1) for name, each in rounds.items()}
    result["rounds"] = {
        name: {"images/s": round(trained[name] / statistics.median(values)), "first two rounds s": first[name]}
        for name, values in seconds.items()
    }
    for name, figures in result["rounds"].items():  # type: ignore[attr-defined]
        print(f"{network:14} {name:40}{figures['images/s']:8} images/s", flush=True)
    result["with evaluation"] = _with_evaluation(rounds[usual], repeats)
    print(network, "with evaluation", result["with evaluation"], flush=True)
    result["agreement"] = _agreement(folder / network, crowd, plan, full)
    print(network, "agreement", result["agreement"], flush=True)
    for each in rounds.values():
        each.transport.close()
    return result


def _with_evaluation(rounds: Rounds, repeats: int) -> dict[str, float]:
    """Images trained a second when every round is followed by an evaluation of as many images."""
    faces = rounds.crowd.of(rounds.crowd.clients[0]).train
    everybody = replace(
        faces,
        labels=torch.arange(4000) // 10,
        stored=torch.arange(4000).numpy(),
        identities=tuple(map(str, range(400))),
    )
    benchmark = Benchmark("all", everybody)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        rounds.round()
        rounds.backbone.load(rounds.state.model)
        benchmark.evaluate(rounds.federation.embedder(rounds.backbone))
        seconds.append(time.perf_counter() - began)
    return {"images/s": round(CLIENTS * IMAGES / statistics.median(seconds)), "evaluated": 4000}


def _agreement(folder: Path, crowd: Crowd, plan: object, options: object) -> dict[str, float]:
    """Relative distance of one round's step: all optimisations against the plain path, and that against itself."""
    ends = []
    for number, (streams, acceleration) in enumerate([(1, PLAIN), (1, PLAIN), (STREAMS, Acceleration())]):
        rounds = Rounds(folder / f"agree-{number}", crowd, plan, options, streams, "cuda", acceleration)  # type: ignore[arg-type]
        layout = rounds.state.model.layout
        begin = torch.cat([view.flatten() for view in layout.views(rounds.state.model.flat).values()])
        rounds.round()
        end = torch.cat([view.flatten() for view in layout.views(rounds.state.model.flat).values()])
        ends.append(end - begin)
        rounds.transport.close()
    plain, again, fast = ends
    return {
        "plain against itself": float((plain - again).norm() / plain.norm()),
        "all optimisations against plain": float((plain - fast).norm() / plain.norm()),
    }


def _ceiling(plan: object, batch: int) -> int:
    """Images a second of forward, backward and nothing else, on batches that are there."""
    module = plan.build().cuda().to(memory_format=torch.channels_last).train()  # type: ignore[attr-defined]
    images = torch.randn(batch, 3, plan.height, plan.width, device="cuda")  # type: ignore[attr-defined]
    images = images.contiguous(memory_format=torch.channels_last)
    labels, rows = torch.zeros(batch, dtype=torch.long, device="cuda"), torch.randn(8, plan.embedding, device="cuda")  # type: ignore[attr-defined]
    for repeat in range(13):
        if repeat == 3:
            torch.cuda.synchronize()
            began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(MARGIN.logits(module(images), rows, labels), labels)
        loss.backward()
    torch.cuda.synchronize()
    return round(10 * batch / (time.perf_counter() - began))


def _code_version() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


if __name__ == "__main__":
    main()
