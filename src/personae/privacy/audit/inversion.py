"""Inversion: from a template back to a face that passes for the person."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from personae.core.rng import generator
from personae.files import replacing
from personae.parts.images import normalise
from personae.privacy.audit.acceptance import FAR, Enrolled, enrolled
from personae.privacy.audit.attack import Evidence, PrivacyAttack
from personae.privacy.audit.finding import Finding
from personae.privacy.audit.naming import finding

SHOWN = 12  # people on the contact sheet


@dataclass(frozen=True, kw_only=True)
class Inversion(PrivacyAttack):
    """A decoder that was trained on shadow people draws a face for each template."""

    name: ClassVar[str] = "inversion"
    has: ClassVar[str] = "the model, templates of people (class embeddings, or those of a gallery), and shadow people"
    tries: ClassVar[str] = "to draw faces that the model accepts for these people, at a false accept rate of 1%"
    strength: ClassVar[str] = (
        "weak to moderate: a small decoder, trained for minutes; it may fool the model without a likeness for people, "
        "which the contact sheet shows"
    )
    figure: ClassVar[str] = "accepted"

    steps: int = 400  # of the decoder's training
    batch: int = 64
    lr: float = 2e-3

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        known = enrolled(evidence)
        decoder = self._trained(evidence)
        targets, groups = {"a template of a gallery": known.kept}, list[str]()
        for kind in evidence.templates:
            rows = evidence.rows_by_person(kind)
            if not rows:
                groups.append(kind)
            elif all(person.name in rows for person in known.people):
                targets[kind] = torch.stack([rows[person.name] for person in known.people])
        for target, templates in targets.items():
            drawn = _drawn(decoder, templates, evidence)
            yield self._of_people(evidence, target, known, evidence.embedder()(drawn))
            if evidence.made_up and evidence.folder is not None:
                _show(evidence.folder / f"audit-faces-{evidence.stage}.png", known, drawn)
        for kind in groups:
            yield from self._of_groups(evidence, kind, known, decoder)

    def _of_people(self, evidence: Evidence, target: str, known: Enrolled, vectors: Tensor) -> Finding:
        hits, trials = int(known.accepted(vectors, known.fresh).sum()), len(known.people)
        chance = max(FAR, known.accepted_as_others(vectors, known.fresh))
        found = finding(self.name, self.figure, evidence, target, (hits, trials, chance))
        own = float(known.accepted(known.kept, known.fresh).float().mean())
        return replace(found, details={"accepted of the person's own": own})

    def _of_groups(self, evidence: Evidence, kind: str, known: Enrolled, decoder: nn.Module) -> Iterator[Finding]:
        """Of rows that stand for groups of people: is what is drawn accepted for anybody at that client?

        By chance it would be as often as for anybody at another.
        """
        sent = {client: rows for client, rows in evidence.templates[kind].items() if len(rows)}
        if not sent:
            return
        clients = [client for client, rows in sent.items() for _ in rows]
        vectors = evidence.embedder()(_drawn(decoder, torch.cat([*sent.values()]), evidence))
        passed = vectors @ known.fresh.T >= known.threshold
        at = {client: torch.tensor([person.client == client for person in known.people]) for client in evidence.rows}
        by_client = torch.stack([(passed & held).any(1) for held in at.values()], dim=1)
        own = torch.tensor([[name == client for name in at] for client in clients])
        chance = max(FAR, float(by_client[~own].float().mean()))
        result = int(by_client[own].sum()), len(clients), chance
        yield finding(self.name, self.figure, evidence, f"{kind}, as anybody at the client", result)

    def _trained(self, evidence: Evidence) -> nn.Module:
        random = generator(evidence.seed, "inversion")
        photos = torch.cat([person.photos for person in evidence.shadows])
        vectors = evidence.embedder()(photos)
        device = evidence.backbone.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(1 << 31, (), generator=random)))
            decoder = Decoder(vectors.shape[1], photos.shape[1], photos.shape[2]).to(device)
        optimiser = torch.optim.Adam(decoder.parameters(), self.lr)
        with _embedding(evidence) as embed:
            for step in range(self.steps):
                for group in optimiser.param_groups:
                    group["lr"] = self.lr * (1 - step / self.steps)
                chosen = torch.randint(len(photos), (self.batch,), generator=random)
                wanted, given = normalise(photos[chosen].to(device)), vectors[chosen].to(device)
                drawn = decoder(given)
                loss = F.l1_loss(drawn, wanted) + (1 - (F.normalize(embed(drawn), dim=1) * given).sum(1)).mean()
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
        return decoder.eval()


class Decoder(nn.Module):
    """A vector to pixels in [-1, 1]."""

    def __init__(self, width: int, height: int, length: int, channels: int = 32) -> None:
        super().__init__()
        self.size = height, length
        self.first = nn.Sequential(nn.Linear(width, channels * 16), nn.ReLU())
        blocks: list[nn.Module] = []
        for _ in range(max(1, (min(height, length) // 4).bit_length() - 1)):
            blocks += [nn.Upsample(scale_factor=2), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        self.rest = nn.Sequential(*blocks, nn.Conv2d(channels, 3, 3, padding=1), nn.Tanh())

    def forward(self, vectors: Tensor) -> Tensor:
        small = self.first(vectors).reshape(len(vectors), -1, 4, 4)
        return F.interpolate(self.rest(small), self.size, mode="bilinear", align_corners=False)


@contextmanager
def _embedding(evidence: Evidence) -> Iterator[Callable[[Tensor], Tensor]]:
    """The model as a function of pixels that can be differentiated; its weights are left alone."""
    evidence.embedder()
    module = evidence.backbone.module.eval()
    trained = [each for each in module.parameters() if each.requires_grad]
    for each in trained:
        each.requires_grad_(False)
    try:
        if evidence.mirror:
            yield lambda batch: module(batch) + module(batch.flip(3))
        else:
            yield module
    finally:
        for each in trained:
            each.requires_grad_(True)


def _drawn(decoder: nn.Module, templates: Tensor, evidence: Evidence) -> Tensor:
    with torch.no_grad():
        return _pixels(decoder(F.normalize(templates, dim=1).to(evidence.backbone.device)))


def _pixels(batch: Tensor) -> Tensor:
    """uint8 [N, H, W, 3]: a photograph has no more than that."""
    return batch.add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()


def _show(path: Path, known: Enrolled, drawn: Tensor) -> None:
    """Photographs above, what was drawn from the templates below."""
    above = torch.cat([person.photos[0] for person in known.people[:SHOWN]], dim=1)
    below = torch.cat(list(drawn[:SHOWN]), dim=1)
    with replacing(path) as temporary:
        Image.fromarray(torch.cat([above, below]).numpy()).save(temporary, format="png")
