"""The people of all clients as one model sees them: who is recognised, who is taken for whom, and pictures of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from torch import Tensor

from personae.core.embedder import embed
from personae.core.layout import Layout
from personae.core.threads import torch_threads
from personae.errors import DataError
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.experiment.model import load_model
from personae.reproduce.claims import Pictures
from personae.reproduce.pages import save
from personae.reproduce.quantities import Outcome, Outcomes, Quantity
from personae.runtime.store import PrivateStore

PAIRS = 20  # pairs that a figure is the mean over
SHOWN = 4  # pairs in a picture, as in Figure 3 of FedGC


@dataclass(frozen=True, eq=False)
class Crowd:
    """The training faces of all clients as one model sees them, people of one client after those of another."""

    vectors: Tensor  # of length one
    people: Tensor  # per face, 0 .. C - 1
    owners: Tensor  # per person, whose client it is
    class_embeddings: Tensor  # per person, the class embedding that its client keeps

    def of(self, person: int) -> Tensor:
        return self.vectors[self.people == person]

    def similarity(self, pair: tuple[int, int]) -> Tensor:
        """The cosine of every face of one person with every face of the other."""
        return (self.of(pair[0]) @ self.of(pair[1]).T).flatten()

    def closest(self, points: Tensor, count: int) -> list[tuple[int, int]]:
        """The pairs of people at different clients whose `points` have the largest cosines, the largest first."""
        cosines = F.normalize(points) @ F.normalize(points).T
        apart = (self.owners[:, None] != self.owners).triu(1)
        found = cosines.masked_fill(~apart, -2).flatten().topk(min(count, int(apart.sum()))).indices
        return [(int(place) // len(points), int(place) % len(points)) for place in found]

    @property
    def centres(self) -> Tensor:
        """Per person, the mean of its faces."""
        return torch.zeros(len(self.owners), self.vectors.shape[1]).index_add_(0, self.people, self.vectors)


@lru_cache(maxsize=8)
def crowd_of(outcome: Outcome) -> Crowd:
    """Only a simulation can look into all clients like this. With one thread, as everything whose bits matter."""
    with torch_threads(1):
        return _crowd_of(outcome)


def _crowd_of(outcome: Outcome) -> Crowd:
    materials = Materials(outcome.experiment, Execution(cache=outcome.cache))
    stage = outcome.experiment.recipe[-1]
    mirror = outcome.experiment.evaluation.mirror
    embedder = load_model(outcome.folder, stage.name, mirror=mirror, device=outcome.device).embedder
    layout = Layout.of(outcome.experiment.network.layout())
    vectors: list[Tensor] = []
    people: list[Tensor] = []
    owners: list[Tensor] = []
    rows: list[Tensor] = []
    for index, client in enumerate(materials.partition.trained):
        faces = materials.clients.of(client).train
        store = PrivateStore.of(outcome.folder / "private", client)
        kept: Any = store.load(stage.name, stage.algorithm.types.private, layout)
        if kept is None:
            raise DataError(f"{outcome.folder}: {client} never took part, so that it has no class embeddings")
        rows.append(kept.class_embeddings)
        vectors.append(embed(embedder, faces).cpu())
        people.append(faces.labels + sum(len(known) for known in owners))
        owners.append(torch.full((faces.classes,), index))
    return Crowd(torch.cat(vectors), torch.cat(people), torch.cat(owners), torch.cat(rows))


def confused_pairs(label: str, chosen_by: str, variant: str) -> Quantity:
    """How alike the people are to `variant` whose class embeddings are closest in `chosen_by`."""

    def read(outcomes: Outcomes) -> float:
        chosen = crowd_of(outcomes[chosen_by])
        return _mean(crowd_of(outcomes[variant]), chosen.closest(chosen.class_embeddings, PAIRS))

    return Quantity(label, tuple(dict.fromkeys((chosen_by, variant))), read, "cosine", needs_models=True)


def most_similar_pairs(label: str, variant: str) -> Quantity:
    """How alike those people are to `variant` that it finds most alike itself.

    Pairs chosen by one model are less alike in any other, even if it is no better: the extremes of one draw are not
    those of the next. This measure chooses again in each model and has no such bias.
    """

    def read(outcomes: Outcomes) -> float:
        crowd = crowd_of(outcomes[variant])
        return _mean(crowd, crowd.closest(crowd.centres, PAIRS))

    return Quantity(label, (variant,), read, "cosine", needs_models=True)


def closest_class_embeddings(label: str, variant: str) -> Quantity:
    """How alike the class embeddings of different clients are that are most alike, with no regard to faces."""

    def read(outcomes: Outcomes) -> float:
        crowd = crowd_of(outcomes[variant])
        rows = F.normalize(crowd.class_embeddings)
        pairs = crowd.closest(rows, PAIRS)
        return float(torch.stack([rows[one] @ rows[other] for one, other in pairs]).mean())

    return Quantity(label, (variant,), read, "cosine", needs_models=True)


def before_and_after(before: str, before_label: str, after: str, after_label: str) -> Pictures:
    """Figure 3 of FedGC: t-SNE of confused pairs and histograms of their cosines, under two models."""

    def draw(outcomes: Mapping[int, Outcomes], out: Path) -> list[Path]:
        seed, first = next(iter(outcomes.items()))
        crowds = {label: crowd_of(first[name]) for label, name in ((before_label, before), (after_label, after))}
        chosen = crowds[before_label]
        pairs = _disjoint(chosen.closest(chosen.class_embeddings, 50 * SHOWN))
        picture = Figure(figsize=(10, 8), layout="constrained")
        for column, (label, crowd) in enumerate(crowds.items()):
            _scatter(picture, column, crowd, pairs, f"{label}, t-SNE")
            _histogram(picture, column, crowd, pairs, f"{label}, cosines across each pair")
        picture.suptitle(f"{SHOWN} pairs of people at different clients that {before_label} confuses most, seed {seed}")
        path = out / "confused-pairs.png"
        save(picture, path)
        return [path]

    return draw


def _mean(crowd: Crowd, pairs: list[tuple[int, int]]) -> float:
    return float(torch.stack([crowd.similarity(pair).mean() for pair in pairs]).mean())


def _disjoint(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first pairs in which nobody appears twice."""
    found: list[tuple[int, int]] = []
    for pair in pairs:
        if len(found) < SHOWN and not {*pair} & {person for earlier in found for person in earlier}:
            found.append(pair)
    return found


def _scatter(picture: Figure, column: int, crowd: Crowd, pairs: list[tuple[int, int]], title: str) -> None:
    people = [person for pair in pairs for person in pair]
    sizes = [len(crowd.of(person)) for person in people]
    vectors = torch.cat([crowd.of(person) for person in people])
    plane = TSNE(perplexity=min(15.0, (len(vectors) - 1) / 3), init="pca", random_state=0).fit_transform(
        vectors.numpy()
    )
    axes = picture.add_subplot(2, 2, column + 1)
    for place, points in enumerate(torch.from_numpy(plane).split(sizes)):  # type: ignore[no-untyped-call]
        axes.scatter(points[:, 0], points[:, 1], s=22, color=f"C{place // 2}", marker="o^"[place % 2])
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])


def _histogram(picture: Figure, column: int, crowd: Crowd, pairs: list[tuple[int, int]], title: str) -> None:
    axes = picture.add_subplot(2, 2, column + 3)
    for place, pair in enumerate(pairs):
        cosines = crowd.similarity(pair)
        axes.hist(cosines.numpy(), bins=30, range=(-1, 1), alpha=0.55, color=f"C{place}", label=f"{cosines.mean():.2f}")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("cosine")
    axes.legend(title="mean", fontsize=8)
