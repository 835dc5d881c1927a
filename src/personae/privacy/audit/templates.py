"""Re-identification from class embeddings: is the row that a client sends as good as the person's photograph?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from personae.privacy.audit.attack import Evidence, PrivacyAttack, Unmeasurable
from personae.privacy.audit.finding import Finding, wilson


@dataclass(frozen=True, kw_only=True)
class Templates(PrivacyAttack):
    """Each row is compared with photographs of everybody: the nearest person is named."""

    name: ClassVar[str] = "templates"
    has: ClassVar[str] = (
        "the server's state after the stage, or another party's copy of it, with the rows by client; and photographs "
        "of all candidates that nobody trained on"
    )
    tries: ClassVar[str] = "to say whom each row stands for"
    strength: ClassVar[str] = "as strong as any: a comparison by cosine is what these vectors are made for"
    figure: ClassVar[str] = "rank-1"

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.templates:
            raise Unmeasurable("no vectors of single people leave the clients")
        names, gallery = evidence.gallery
        for kind in evidence.templates:
            rows = {person: row for person, row in evidence.rows_by_person(kind).items() if person in names}
            if not rows:
                raise Unmeasurable(f"the rows of {kind} do not stand for single people")
            nearest = (F.normalize(torch.stack([*rows.values()]), dim=1) @ gallery.T).argmax(1).tolist()
            hits, trials = sum(names[place] == who for place, who in zip(nearest, rows, strict=True)), len(rows)
            low, high = wilson(hits, trials)
            yield Finding(
                attack=self.name,
                stage=evidence.stage,
                target=kind,
                figure=self.figure,
                value=hits / trials,
                chance=1 / len(names),
                low=low,
                high=high,
                trials=trials,
                details={"candidates": len(names)},
            )
