"""Models in ONNX: one as an embedder, and a network written as one; both need the extra `onnx`."""

import errno
import hashlib
import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personae.errors import ConfigError, DataError
from personae.files import replacing
from personae.parts.images import normalise

SUFFIX = ".onnx"
INPUT, OUTPUT = "data", "embedding"
IN_CACHE = 32
PARITY = 1e-5
"""How far a component may be from that of the network in PyTorch, as a share of the vector's length."""

_OPSET = 17
_PIXELS, _RAW, _NORMALISED = "personae.pixels", "0 to 255", "-1 to 1"


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
            features = _run(self.session, batch)
            if self.mirror:
                features = features + _run(self.session, batch.flip(3))
            found.append(F.normalize(features, dim=1))
        return torch.cat(found)


def load_onnx(path: Path, *, mirror: bool = True, raw: bool = False, size: int = 112) -> OnnxEmbedder:
    """The model takes RGB images, float32 [N, 3, height, width]; `size` counts where it does not fix theirs.

    `raw`: it wants pixels from 0 to 255. A model of `save_onnx` says so itself.
    """
    try:
        if not path.is_file():  # a device or a pipe never ends
            raise FileNotFoundError(errno.ENOENT, "no such file")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of an ONNX model") from error
    beside = _beside(path, content)
    session = _session(path, str(path))  # by its path, since weights may lie in files beside it
    digest = hashlib.sha256(content)
    for weights in beside:
        digest.update(weights.read_bytes())
    try:
        takes, told = session.get_inputs(), session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:  # what a damaged file calls them is no text
        raise DataError(f"{path}: what it says of itself is no text ({error.reason}); export it again") from error
    if len(takes) != 1 or takes[0].type != "tensor(float)" or len(takes[0].shape) != 4 or takes[0].shape[1] != 3:
        described = ", ".join(f"{each.name} {each.type} {each.shape}" for each in takes)
        raise DataError(f"{path}: takes {described}; one input of float32 [N, 3, height, width] is expected")
    raw = raw or told.get(_PIXELS) == _RAW
    count, _, height, width = (side if isinstance(side, int) else 0 for side in takes[0].shape)
    digest.update(repr((mirror, raw)).encode())
    return OnnxEmbedder(session, height or size, width or size, count or IN_CACHE, mirror, raw, digest.hexdigest())


def save_onnx(
    network: nn.Module, path: Path, height: int, width: int, *, raw: bool = False, unit: bool = False
) -> float:
    """Write a network that takes float32 images [N, 3, height, width], RGB, for any N; gives how far it is off at most.

    With `raw`, the file takes pixels from 0 to 255 and brings them to -1 to 1 itself; with `unit`, it gives vectors of
    length one. The file runs before it is written, and is not written if it is further off than `PARITY`.
    """
    onnx = _extra(path, "onnx")
    module = _Deployed(network, raw, unit).eval()
    images = _trial(height, width, raw)
    with replacing(path) as temporary, warnings.catch_warnings(), torch.no_grad():
        # PyTorch's newer exporter takes two more packages and writes the paths of this machine into the file. Of this
        # one, warnings are of its age and of sizes it takes for fixed; that these are not is seen below.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (images,),
            temporary,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "N"}, OUTPUT: {0: "N"}},
            opset_version=_OPSET,
            dynamo=False,
        )
        model = onnx.load(temporary)
        model.metadata_props.add(key=_PIXELS, value=_RAW if raw else _NORMALISED)
        onnx.save(model, temporary)
        session = _session(path, str(temporary))
        off = max(_difference(module(part), _run(session, part)) for part in (images[:1], images[1:]))
        if not off <= PARITY:
            raise DataError(
                f"{path}: not written: in ONNX Runtime the model differs from the one in PyTorch by {off:.1e} of a"
                f" vector's length, and {PARITY:.0e} is allowed; report this with the network's name"
            )
    return off


class _Deployed(nn.Module):
    """A network with what the file is to do before and after it."""

    def __init__(self, network: nn.Module, raw: bool, unit: bool) -> None:
        super().__init__()
        self.network, self.raw, self.unit = network, raw, unit

    def forward(self, data: Tensor) -> Tensor:
        vectors: Tensor = self.network(data / 127.5 - 1 if self.raw else data)
        return F.normalize(vectors, dim=1) if self.unit else vectors


def _trial(height: int, width: int, raw: bool) -> Tensor:
    """Images to compare by: black, white, plain noise, and smooth shapes with a little of it, as faces are."""
    random = torch.Generator().manual_seed(0)
    shapes = torch.rand(6, 3, 7, 7, generator=random).mul_(255)
    smooth = F.interpolate(shapes, size=(height, width), mode="bicubic", align_corners=False)
    noise = torch.rand(8, 3, height, width, generator=random).mul_(255)
    pixels = torch.cat([0.9 * smooth + 0.1 * noise[:6], noise[6:], noise[:1] * 0, noise[:1] * 0 + 255])
    pixels = pixels.clamp_(0, 255).round_()
    return pixels if raw else pixels / 127.5 - 1


def _difference(wanted: Tensor, found: Tensor) -> float:
    """The largest difference of a component; a vector that is not finite is infinitely far off."""
    lengths = wanted.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return float(((found - wanted) / lengths).abs().nan_to_num(torch.inf, torch.inf).max())


def _run(session: Any, batch: Tensor) -> Tensor:
    name = session.get_inputs()[0].name
    return torch.from_numpy(session.run(None, {name: batch.contiguous().numpy()})[0]).float().flatten(1)


def _session(path: Path, model: str) -> Any:
    """The model ready to run; `path` is how it is called in messages."""
    onnxruntime = _extra(path, "onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        # Without a fallback: it would try the same again, and print that it does.
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # whatever the runtime raises for a file that is no model
        raise DataError(
            f"{path}: not a model that onnxruntime can run ({type(error).__name__}); export it again"
        ) from error


def _beside(path: Path, content: bytes) -> list[Path]:
    """The files that hold weights of the model, where these are not in it: plain files in its folder, or below.

    A runtime would open whatever the model names: other files of this machine, devices, pipes that never end.
    """
    try:
        model = _extra(path, "onnx").load_model_from_string(content)
    except ConfigError:
        raise
    except Exception as error:  # whatever a parser raises for bytes that are no model
        raise DataError(
            f"{path}: not a model that onnxruntime can run ({type(error).__name__}); export it again"
        ) from error
    notes = (note for tensor in _tensors(model) for note in tensor.external_data if note.key == "location")
    found, folder = [], path.parent.resolve()
    for location in sorted({note.value for note in notes}):
        file = (folder / location).resolve()
        if not (file.is_relative_to(folder) and file.is_file()):
            raise DataError(
                f"{path}: has weights in {location[:100]!r}, which is no plain file beside the model; export it again"
            )
        found.append(file)
    return found


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor of a model, wherever it is: among the weights, in an attribute, in a part of a graph."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.name == "TensorProto":
                yield each
            else:
                yield from _tensors(each)


def _extra(path: Path, package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{path}: ONNX models need {package}; install it with: pip install 'personae[onnx]'"
        ) from error
