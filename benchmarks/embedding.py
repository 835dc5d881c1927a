"""Embedding faces: personae, the network as PyTorch runs it, and ONNX Runtime, on the same cores in turn.

    python benchmarks/embedding.py [--weights FILE] [--faces PATH] [--images 256] [--repeats 5] [--cores 2]

Without weights, the network is a MobileFaceNet with random ones; without faces, images are noise: neither changes the
time. All embed each image with its mirror image. Rounds are interleaved; figures are medians. Read the ratios, which
are to ONNX Runtime with one thread: by the clock, and of processor time. Its threads spin while they wait for each
other, which counts as processor time, so it runs with several threads as it comes and without that.
With `--faces`, all of these are embedded once more at the end, as `personae evaluate` would, with everything counted:
decoding (the first time), reading and embedding.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from personae.core.acceleration import Acceleration
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, embed
from personae.core.threads import available_cores
from personae.data import open_faces
from personae.models import Network, load_weights
from personae.parts.embedding import BackboneEmbedder
from personae.parts.onnx import load_onnx, save_onnx

MODEL, ORT = "model.onnx", "ONNX Runtime, 1 thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=available_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.cores)
    network = Network(name="mobilefacenet", embedding=128, height=112, width=112)
    module = network.build()
    if options.weights:
        network, weights = load_weights(options.weights, None)
        module = network.build()
        module.load_state_dict(weights)
    backbone = Backbone(module, network.embedding)
    apart = Backbone(network.build(), network.embedding, acceleration=Acceleration(folding=False))
    apart.load(backbone.state())
    with tempfile.TemporaryDirectory() as folder:
        save_onnx(backbone.module, Path(folder) / MODEL, network.height, network.width)
        exported = load_onnx(Path(folder) / MODEL)
        contenders: dict[str, Embedder] = {
            f"personae, {options.cores} cores": BackboneEmbedder(backbone, cores=options.cores),
            "personae, 1 core": BackboneEmbedder(backbone),
            "  without folding, 1 core": BackboneEmbedder(apart),
            f"PyTorch, batches of 32, {options.cores} threads": plain(backbone),
            ORT: replace(exported, session=session(folder, 1)),
            f"ONNX Runtime, {options.cores} threads": replace(exported, session=session(folder, options.cores)),
            "  without spinning": replace(exported, session=session(folder, options.cores, spinning=False)),
        }
        if options.faces:
            began = time.perf_counter()
            samples = open_faces(options.faces, height=network.height, width=network.width).samples()
            opened = time.perf_counter() - began
            images = samples.images(torch.arange(min(options.images, len(samples))))
        else:
            images = torch.randint(0, 256, (options.images, network.height, network.width, 3), dtype=torch.uint8)
        compare(contenders, images, options.repeats)
    if options.faces:
        began = time.perf_counter()
        vectors = embed(BackboneEmbedder(backbone, cores=options.cores), samples)
        took = time.perf_counter() - began
        print(
            f"\nall of {options.faces.name}: {len(vectors):,} images opened in {opened:.1f} s, embedded in {took:.1f} s"
        )


def session(folder: str, threads: int, *, spinning: bool = True) -> onnxruntime.InferenceSession:
    """The exported model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return onnxruntime.InferenceSession(str(Path(folder) / MODEL), options, providers=["CPUExecutionProvider"])


def plain(backbone: Backbone) -> Callable[[Tensor], Tensor]:
    """What anybody would write."""

    @torch.no_grad()
    def embedded(images: Tensor) -> Tensor:
        found = []
        for part in images.split(32):
            batch = part.permute(0, 3, 1, 2).float() / 127.5 - 1
            features = backbone.module.eval()(batch) + backbone.module(batch.flip(3))
            found.append(torch.nn.functional.normalize(features, dim=1))
        return torch.cat(found)

    return embedded


def compare(contenders: dict[str, Embedder], images: Tensor, repeats: int) -> None:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    vectors = {}
    for repeat in range(repeats + 1):
        for name, embedder in contenders.items():
            began, cpu = time.perf_counter(), time.process_time()
            vectors[name] = embedder(images)
            if repeat:  # in the first round, libraries prepare themselves
                seconds[name].append((time.perf_counter() - began, time.process_time() - cpu))
    medians = {
        name: tuple(statistics.median(each) for each in zip(*taken, strict=True)) for name, taken in seconds.items()
    }
    print(f"{'':38}{'s':>8}{'images/s':>10}{'ratio':>7}{'CPU s':>8}{'ratio':>7}{'spread':>8}{'off at most':>13}")
    for name, taken in seconds.items():
        wall, cpu = medians[name]
        spread = max(each for each, _ in taken) / min(each for each, _ in taken)
        off = float((vectors[name] - vectors["  without folding, 1 core"]).norm(dim=1).max())
        speed, (their_wall, their_cpu) = len(images) / wall, medians[ORT]
        ratios = their_wall / wall, their_cpu / cpu
        print(f"{name:38}{wall:8.2f}{speed:10.0f}{ratios[0]:7.2f}{cpu:8.2f}{ratios[1]:7.2f}{spread:8.2f}{off:13.1e}")


if __name__ == "__main__":
    main()
