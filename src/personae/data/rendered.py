"""Synthetic faces as a face set: rendered once, in chunks, into the cache."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from personae.data import synthetic
from personae.data.faces import FaceSet
from personae.data.joined import join_faces
from personae.data.pixels import Append, Filled, Pixels, Recipe, cached_pixels, default_cache
from personae.data.synthetic.domains import DEFAULT, find_domain
from personae.errors import ConfigError
from personae.interrupts import deaf_children
from personae.progress import Progress, silent

_CHUNK = {"cpu": 256, "cuda": 4096}  # images of a block; a GPU is only full with many
_WORTH_WORKERS = 4000  # images; fewer are drawn before a second process has started


def synthetic_faces(
    *,
    identities: int,
    images: int,
    first: int = 0,
    domain: str | Sequence[str] = DEFAULT,
    seed: int = 0,
    size: int = 64,
    cache: str | Path | None = None,
    progress: Progress = silent,
    workers: int = 1,
    device: str = "cpu",
) -> FaceSet:
    """The people `first` .. `first + identities - 1` with `images` images each; of several domains, as many of each.

    They are drawn on the device, in as many processes as there are workers if it is the CPU.
    """
    if identities < 1 or images < 1 or first < 0 or size < 8 or workers < 1 or not domain:
        raise ConfigError(
            f"synthetic faces: {identities} identities from {first} on with {images} images of size {size} on "
            f"{workers} workers; there must be at least one of each, a domain, and a size of at least 8"
        )
    names = [domain] if isinstance(domain, str) else list(dict.fromkeys(domain))
    sittings = {name: _Sitting(first, identities, images, find_domain(name).name, seed, size) for name in names}
    folder = Path(cache or default_cache())
    sets = {name: _photographed(sitting, folder, progress, workers, device) for name, sitting in sittings.items()}
    return sets[names[0]] if len(names) == 1 else join_faces(f"synthetic {' and '.join(names)}", sets)


def _photographed(sitting: "_Sitting", cache: Path, progress: Progress, workers: int, device: str) -> FaceSet:
    kind = torch.device(device).type
    recipe = Recipe(
        name=f"synthetic_{sitting.domain}",
        source=repr(sitting) if kind == "cpu" else f"{sitting!r} on {kind}",
        state=renderer_version(),
        count=len(sitting),
        height=sitting.size,
        width=sitting.size,
    )

    def fill(append: Append) -> Filled:
        with progress("rendering faces", len(sitting), "images") as advance:
            for block in _blocks(sitting, workers, device):
                append(block)
                advance(len(block))
        # Devices may round a pixel differently, so each has a file of its own. To a run they are the same faces.
        return Filled(digest=f"{sitting!r}/{recipe.state}")

    store = cached_pixels(cache, recipe, fill)
    people, shots = sitting.rows(0, len(sitting))
    known = synthetic.attributes(people, shots, seed=sitting.seed, domain=sitting.domain).numpy()
    columns = {name: known[:, column] for column, name in enumerate(synthetic.ATTRIBUTES)}
    last = sitting.first + sitting.identities
    paths = [f"person-{person:06d}/{shot:04d}" for person, shot in zip(people.tolist(), shots.tolist(), strict=True)]
    return FaceSet(
        name=f"synthetic {sitting.domain}",
        identities=tuple(f"person-{person:06d}" for person in range(sitting.first, last)),
        identity=(people - sitting.first).numpy(),
        columns=columns | {"domain": np.full(len(sitting), sitting.domain), "path": np.array(paths)},
        pixels=store,
        stored=np.arange(len(sitting)),
    )


@lru_cache
def renderer_version() -> str:
    """A digest of the renderer's source: pixels of another renderer are never taken for those of this one."""
    digest = hashlib.sha256()
    for path in sorted(Path(synthetic.__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True)
class _Sitting:
    """Who is rendered, how often and how; rows are ordered by person, then by image."""

    first: int
    identities: int
    images: int
    domain: str
    seed: int
    size: int

    def __len__(self) -> int:
        return self.identities * self.images

    def rows(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(start, stop)
        return self.first + rows // self.images, rows % self.images

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        return ((start, min(start + size, len(self))) for start in range(0, len(self), size))

    def render(self, bounds: tuple[int, int], device: str = "cpu") -> Pixels:
        people, shots = self.rows(*bounds)
        drawn = synthetic.render(people, shots, seed=self.seed, size=self.size, domain=self.domain, device=device)
        return drawn.cpu().numpy()


def _blocks(sitting: _Sitting, workers: int, device: str) -> Iterator[Pixels]:
    kind = torch.device(device).type
    chunks = sitting.chunks(_CHUNK[kind])
    if kind != "cpu" or workers == 1 or len(sitting) < _WORTH_WORKERS:
        yield from (sitting.render(bounds, device) for bounds in chunks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        with deaf_children():
            blocks = pool.map(sitting.render, chunks)
        yield from blocks
