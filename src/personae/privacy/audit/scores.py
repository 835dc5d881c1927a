"""Scores: how many answers give a template away?

A score is a cosine with the template that is kept. Whoever knows the vectors of their own photographs has one linear
equation for each answer, and solves them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from personae.privacy.audit.acceptance import enrolled
from personae.privacy.audit.attack import Evidence, PrivacyAttack, Unmeasurable
from personae.privacy.audit.finding import Finding, share_interval

BUDGETS = (10, 20, 50, 100, 200, 500, 1000, 2000)


@dataclass(frozen=True, kw_only=True)
class Scores(PrivacyAttack):
    """Least squares from the answers to photographs of shadow people."""

    name: ClassVar[str] = "scores"
    has: ClassVar[str] = "the model, photographs of other people, and the answers of `personae verify` to them"
    tries: ClassVar[str] = "to compute a vector that passes for the person, at a false accept rate of 1%"
    strength: ClassVar[str] = (
        "strong for scores: least squares needs about as many as a vector has numbers; weak for plain answers, where "
        "it only asks about strangers and does not search for a first match"
    )
    figure: ClassVar[str] = "accepted after 100 answers"

    answers: int = 100

    def measure(self, evidence: Evidence) -> Iterator[Finding]:
        known = enrolled(evidence)
        photos = torch.cat([person.photos for person in evidence.shadows])
        if len(photos) < self.answers:
            raise Unmeasurable(f"it takes {self.answers} photographs of shadow people; there are {len(photos)}")
        order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(evidence.seed))
        asked = evidence.embedder()(photos[order]).double()
        exact = asked @ known.kept.double().T  # [photographs, people]
        for target, answers, step in (
            ("scores with 4 digits", (exact * 1e4).round() / 1e4, 1e-4),
            ("scores in tenths", (exact * 10).round() / 10, 0.1),
            ("yes or no", (exact >= known.threshold).double(), 1.0),
        ):
            rates = {
                budget: known.accepted(_solved(asked[:budget], answers[:budget], step).float(), known.kept)
                for budget in sorted({*BUDGETS, self.answers})
                if budget <= len(asked)
            }
            hits, trials = int(rates[self.answers].sum()), len(known.people)
            low, high = share_interval(hits, trials)
            details = {f"accepted after {budget}": float(each.float().mean()) for budget, each in rates.items()}
            enough = [budget for budget, each in rates.items() if float(each.float().mean()) >= 0.95]
            details |= {"answers for 95%": enough[0]} if enough else {}
            vectors = _solved(asked[: self.answers], answers[: self.answers], step).float()
            yield Finding(
                attack=self.name,
                stage=evidence.stage,
                target=target,
                figure=self.figure,
                value=hits / trials,
                chance=max(0.01, known.accepted_as_others(vectors, known.kept)),
                low=low,
                high=high,
                trials=trials,
                details=details,
            )


def _solved(asked: Tensor, answers: Tensor, step: float) -> Tensor:
    """For each person, the likeliest vector [people, width] behind answers that are rounded to a step."""
    count, width = asked.shape
    ridge = max(1e-9, width * step * step / 12)  # the variance of rounding, over that of a number of a unit vector
    gram = asked @ asked.T + ridge * torch.eye(count, dtype=asked.dtype)
    solved: Tensor = asked.T @ torch.linalg.solve(gram, answers)
    return solved.T
