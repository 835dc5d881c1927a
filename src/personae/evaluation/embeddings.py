"""The vectors of all samples, computed once: a cache by model and images, whole and checked or not there at all."""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from personae.core.embedder import Embedder
from personae.core.samples import Samples
from personae.files import private_folder, replacing
from personae.progress import Progress, silent

BATCH = 256
HEADER = 4096  # bytes before the vectors, so that they can be mapped into memory
_FORMAT = 1
_CHUNK = 2**24


def embeddings(
    embedder: Embedder, samples: Samples, *, cache: Path | None = None, progress: Progress = silent, name: str = "faces"
) -> Tensor:
    """float32 [N, D], in the order of the samples.

    They are kept in the folder `cache` if embedder and samples have a `fingerprint`, a text that is another when the
    weights, the handling of mirror images, or the images are. A file there that is damaged counts for nothing.
    """
    prints = [getattr(side, "fingerprint", None) for side in (embedder, samples)]
    if cache is None or None in prints:
        return torch.cat(list(_batches(embedder, samples, progress, name)))
    key = hashlib.sha256(" ".join(map(str, prints)).encode()).hexdigest()
    file = private_folder(cache) / f"{key}.f32"
    found = _stored(file, key, len(samples))
    if found is None:
        _store(file, key, _batches(embedder, samples, progress, name))
        found = _stored(file, key, len(samples))
        assert found is not None
    return found


def _batches(embedder: Embedder, samples: Samples, progress: Progress, name: str) -> Iterator[Tensor]:
    device = getattr(embedder, "device", torch.device("cpu"))
    with progress(f"embedding {name}", len(samples), "images") as advance:
        for start in range(0, len(samples), BATCH):
            positions = torch.arange(start, min(start + BATCH, len(samples)), device=device)
            yield embedder(samples.images(positions)).float().cpu()
            advance(len(positions))


def _store(file: Path, key: str, batches: Iterator[Tensor]) -> None:
    digest, rows, columns = hashlib.sha256(), 0, 0
    _tidy(file)
    with replacing(file) as temporary, temporary.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(bytes(HEADER))
        for vectors in batches:
            content = vectors.contiguous().numpy().astype("<f4", copy=False).tobytes()
            digest.update(content)
            stream.write(content)
            rows, columns = rows + len(vectors), vectors.shape[1]
        header = {"format": _FORMAT, "key": key, "rows": rows, "columns": columns, "digest": digest.hexdigest()}
        stream.seek(0)
        stream.write(json.dumps(header).encode().ljust(HEADER))


def _tidy(file: Path) -> None:
    """Remove what processes that were killed while they wrote the file have left; it may be gigabytes."""
    for leftover in file.parent.glob(f".{file.name}.*.tmp"):
        with suppress(OSError), leftover.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            leftover.unlink()


def _stored(file: Path, key: str, rows: int) -> Tensor | None:
    """What is in the file, if that is all of it and nothing else; as a private copy that is read when it is used."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(HEADER))
            expected = {"format": _FORMAT, "key": key, "rows": rows}
            if not expected.items() <= header.items():
                return None
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != header["digest"]:
            return None
        mapped = np.memmap(file, dtype="<f4", mode="c", offset=HEADER, shape=(rows, int(header["columns"])))
        return torch.from_numpy(mapped.view(np.ndarray))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
