"""One call for a model and a list of protocols: its vectors are computed once, its figures come as a table."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from personae.core.embedder import Embedder
from personae.errors import ConfigError
from personae.evaluation.embeddings import embeddings
from personae.evaluation.protocols import BenchmarkResult, EvaluationProtocol
from personae.progress import Progress, silent


@dataclass(frozen=True)
class Evaluation:
    """Results by the name of the protocol; as text, a table with one line per protocol and one column per metric."""

    results: Mapping[str, BenchmarkResult]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that some protocol has, in the order of appearance."""
        return tuple(dict.fromkeys(metric for result in self.results.values() for metric in result.metrics))

    def rows(self) -> list[list[str]]:
        """Cells in percent, the first line being the names of the metrics; what a protocol does not have is a dash."""
        body = [[name, *(_cell(result, metric) for metric in self.metrics)] for name, result in self.results.items()]
        return [["", *self.metrics], *body]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def evaluate(
    embedder: Embedder,
    protocols: Iterable[EvaluationProtocol],
    *,
    cache: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate a model on each of the protocols, all pairs on `device`.

    Vectors are kept in the folder `cache`, by the fingerprints of model and images.
    """
    protocols, folder = list(protocols), None if cache is None else Path(cache)
    for name, times in Counter(protocol.name for protocol in protocols).items():
        if times > 1:
            raise ConfigError(f"{times} protocols are called {name!r}: give each a name of its own")
    results: dict[str, BenchmarkResult] = {}
    for protocol in protocols:
        vectors = [
            embeddings(embedder, part, cache=folder, progress=progress, name=protocol.name) for part in protocol.parts
        ]
        results[protocol.name] = protocol.evaluate_vectors(*(each.to(device) for each in vectors))
    return Evaluation(results)


def _cell(result: BenchmarkResult, metric: str) -> str:
    return f"{100 * result.metrics[metric]:.2f}" if metric in result.metrics else "–"
