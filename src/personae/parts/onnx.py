"""A model in ONNX as an embedder; it needs `onnxruntime`, the extra `onnx`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.errors import ConfigError, DataError
from personae.parts.images import normalise

SUFFIX = ".onnx"
IN_CACHE = 32


@dataclass(frozen=True, eq=False)
class OnnxEmbedder:
    """Vectors of length one from the first output of a model; with `mirror`, of an image and its mirror image."""

    session: Any
    height: int
    width: int
    at_once: int
    mirror: bool
    raw: bool
    """Whether the model wants pixels from 0 to 255, and not from -1 to 1."""
    fingerprint: str

    def __call__(self, images: Tensor) -> Tensor:
        found = []
        for start in range(0, len(images), self.at_once):
            part = images[start : start + self.at_once]
            batch = part.permute(0, 3, 1, 2).float() if self.raw else normalise(part)
            features = self._run(batch)
            if self.mirror:
                features = features + self._run(batch.flip(3))
            found.append(F.normalize(features, dim=1))
        return torch.cat(found)

    def _run(self, batch: Tensor) -> Tensor:
        name = self.session.get_inputs()[0].name
        output = torch.from_numpy(self.session.run(None, {name: batch.contiguous().numpy()})[0]).float()
        return output.flatten(1)


def load_onnx(path: Path, *, mirror: bool = True, raw: bool = False, size: int = 112) -> OnnxEmbedder:
    """The model takes RGB images, float32 [N, 3, height, width]; `size` counts where it does not fix theirs."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"{path}: ONNX models need onnxruntime; install it with: pip install 'personae[onnx]'"
        ) from error
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of an ONNX model") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        # By its path, since weights may lie in files beside it.
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever the runtime raises for a file that is no model
        raise DataError(
            f"{path}: not a model that onnxruntime can run ({type(error).__name__}); export it anew"
        ) from error
    takes = session.get_inputs()
    if len(takes) != 1 or takes[0].type != "tensor(float)" or len(takes[0].shape) != 4 or takes[0].shape[1] != 3:
        described = ", ".join(f"{each.name} {each.type} {each.shape}" for each in takes)
        raise DataError(f"{path}: takes {described}; one input of float32 [N, 3, height, width] is expected")
    count, _, height, width = (side if isinstance(side, int) else 0 for side in takes[0].shape)
    fingerprint = hashlib.sha256(content + repr((mirror, raw)).encode()).hexdigest()
    return OnnxEmbedder(session, height or size, width or size, count or IN_CACHE, mirror, raw, fingerprint)
