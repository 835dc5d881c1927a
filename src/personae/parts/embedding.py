"""A backbone as an embedder."""

import copy
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.core.folding import Folded
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.core.threads import torch_threads
from personae.parts.images import normalise

IN_CACHE = 1 << 17  # pixels of images that a core embeds at once: the maps of more do not fit into its cache


@dataclass(frozen=True)
class BackboneEmbedder:
    """Vectors of length one from a backbone; with `mirror`, of an image and its mirror image together."""

    backbone: Backbone
    mirror: bool = True
    cores: int = 1  # of a CPU, which embed a block of images each; vectors do not depend on how many there are

    @property
    def device(self) -> torch.device:
        resident = self.backbone.acceleration.resident
        return self.backbone.device if resident else torch.device("cpu")

    @property
    def fingerprint(self) -> str:
        """Another for other weights, another architecture, another arithmetic or another handling of mirror images."""
        content = repr((str(self.backbone.module), self.mirror, self._folds, IN_CACHE)).encode()
        return hashlib.sha256(content + self.backbone.flat.cpu().numpy().tobytes()).hexdigest()

    def __call__(self, images: Tensor) -> Tensor:
        network, device = self._network(), self.backbone.device
        if device.type != "cpu":
            return self._embedded(network, _filled(images.to(device)))[: len(images)].cpu()
        height, width = images.shape[1:3]
        blocks = torch.split(images.cpu(), max(1, IN_CACHE // (height * width)))
        with torch_threads(1):  # sums depend on it; threads that begin in here have one, too
            if self.cores == 1 or len(blocks) == 1:
                return torch.cat([self._embedded(network, block) for block in blocks])
            with ThreadPoolExecutor(self.cores) as threads:
                return torch.cat(list(threads.map(partial(self._embedded, network), blocks)))

    @property
    def _folds(self) -> bool:
        return self.backbone.acceleration.folding and self.backbone.device.type == "cpu"

    def _network(self) -> nn.Module:
        """The backbone's, in evaluation mode and with its weights as they are now."""
        if not self._folds:
            return self.backbone.module.eval()
        if "folded" not in self.backbone.prepared:
            self.backbone.prepared["folded"] = Folded(self.backbone.module)
        folded: Folded = self.backbone.prepared["folded"]
        return folded.refreshed()

    @torch.no_grad()
    def _embedded(self, network: nn.Module, images: Tensor) -> Tensor:
        batch = normalise(images)
        features: Tensor = network(batch)
        if self.mirror:
            features = features + network(batch.flip(3))
        return F.normalize(features.float(), dim=1)


def _filled(images: Tensor) -> Tensor:
    """With black images up to a power of two: for every new size of a batch, a GPU's libraries choose kernels again."""
    room = (1 << (len(images) - 1).bit_length()) - len(images)
    return torch.cat([images, images.new_zeros(room, *images.shape[1:])]) if room else images


def class_features(backbone: Backbone, samples: Samples, batch: int = 256) -> Tensor:
    """The mean direction of each class's features [classes, D], on the backbone's device."""
    embedder = BackboneEmbedder(backbone, mirror=False)
    total: Tensor | None = None
    for start in range(0, len(samples), batch):
        positions = torch.arange(start, min(start + batch, len(samples)))
        features = embedder(samples.images(positions.to(embedder.device)))
        if total is None:
            total = features.new_zeros(samples.classes, features.shape[1])
        total.index_add_(0, samples.labels[positions], features)
    if total is None:
        raise ValueError("there are no samples")
    return F.normalize(total, dim=1).to(backbone.device)


def copied(backbone: Backbone, model: ModelState) -> nn.Module:
    """A network of its own with these weights. The backbone holds them afterwards, too."""
    return copy.deepcopy(backbone.load(model))


def still(backbone: Backbone, model: ModelState, role: str) -> nn.Module:
    """A second network, with these weights, to compare with in training: it is in evaluation mode and not trained.

    There is one for each role, and it lasts as long as the backbone: whoever asks for the role next changes its
    weights. (A captured training step knows networks by their address.)
    """
    if ("still", role) not in backbone.prepared:
        spare = Backbone(copy.deepcopy(backbone.module), backbone.width, backbone.device, backbone.acceleration)
        spare.module.requires_grad_(False).eval()
        backbone.prepared["still", role] = spare
    known: Backbone = backbone.prepared["still", role]
    return known.load(model)
