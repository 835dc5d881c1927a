"""Re-identification from class embeddings: is the row that a client sends as good as the person's photograph?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from personae.privacy.audit.attack import Evidence, PrivacyAttack, Unmeasurable
from personae.privacy.audit.finding import Finding
from personae.privacy.audit.naming import finding, named


@dataclass(frozen=True, kw_only=True)
class Templates(PrivacyAttack):
    """Each row is compared with photographs of everybody: the nearest person is named."""

    name: ClassVar[str] = "templates"
    has: ClassVar[str] = (
        "the server's state after the stage, or another party's copy of it, with the rows by client; and photographs "
        "of all candidates that nobody trained on"
    )
    tries: ClassVar[str] = "to say whom each row stands for, or of rows for groups, who is at which client"
    strength: ClassVar[str] = "as strong as any: a comparison by cosine is what these vectors are made for"
    figure: ClassVar[str] = "rank-1"

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.templates:
            raise Unmeasurable("no vectors of single people leave the clients")
        for kind in evidence.templates:
            named_one_by_one = evidence.rows_by_person(kind)
            if named_one_by_one:
                yield self._of_people(evidence, kind, named_one_by_one)
            else:
                yield self._of_groups(evidence, kind)

    def _of_people(self, evidence: Evidence, kind: str, by_person: Mapping[str, Tensor]) -> Finding:
        names, gallery = evidence.gallery
        rows = {person: row for person, row in by_person.items() if person in names}
        nearest = (F.normalize(torch.stack([*rows.values()]), dim=1) @ gallery.T).argmax(1).tolist()
        hits = sum(names[place] == who for place, who in zip(nearest, rows, strict=True))
        return finding(self.name, self.figure, evidence, kind, (hits, len(rows), 1 / len(names)))

    def _of_groups(self, evidence: Evidence, kind: str) -> Finding:
        """Of rows that stand for groups of people: whom is one of a client's rows nearer to than to all strangers?"""
        _, gallery = evidence.gallery
        rows = {client: F.normalize(each, dim=1) for client, each in evidence.templates[kind].items() if len(each)}
        if not rows:
            raise Unmeasurable(f"no client has sent any row of {kind}")
        scores = torch.stack([(each @ gallery.T).max(0).values for each in rows.values()])
        target = f"{kind}, who is at which client"
        return finding(self.name, self.figure, evidence, target, named(evidence, [*rows], scores))
