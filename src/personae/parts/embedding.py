"""A backbone as an embedder."""

import copy
import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personae.core.backbone import Backbone
from personae.core.payload import ModelState
from personae.core.samples import Samples
from personae.parts.images import normalise

IN_CACHE = 32  # images a CPU embeds at once: the maps of more do not fit into its cache


@dataclass(frozen=True)
class BackboneEmbedder:
    """Vectors of length one from a backbone; with `mirror`, of an image and its mirror image together."""

    backbone: Backbone
    mirror: bool = True

    @property
    def device(self) -> torch.device:
        resident = self.backbone.acceleration.resident
        return self.backbone.device if resident else torch.device("cpu")

    @property
    def fingerprint(self) -> str:
        """Another for other weights, another architecture, or another handling of mirror images."""
        content = repr((str(self.backbone.module), self.mirror)).encode()
        return hashlib.sha256(content + self.backbone.flat.cpu().numpy().tobytes()).hexdigest()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        module, device = self.backbone.module.eval(), self.backbone.device
        at_once = IN_CACHE if device.type == "cpu" else len(images)
        found = []
        for start in range(0, len(images), at_once):
            part = images[start : start + at_once].to(device)
            batch = normalise(part if device.type == "cpu" else _filled(part))
            features = module(batch)
            if self.mirror:
                features = features + module(batch.flip(3))
            found.append(F.normalize(features[: len(part)].float(), dim=1).cpu())
        return torch.cat(found)


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
