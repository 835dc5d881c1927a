"""From which score on two faces count as one person: chosen at a stated false accept rate, from an evaluation."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.errors import ConfigError, DataError
from personae.evaluation.suite import Evaluation
from personae.evaluation.verification import tar_name
from personae.experiment.model import Model
from personae.files import write_text
from personae.words import counted

FALSE_ACCEPTS = 30
"""The rule of thirty: with as many errors, a measured rate is within 30% of the true one, nine times in ten."""

MAX_BYTES = 2**26


@dataclass(frozen=True)
class Threshold:
    """Accept what scores `score` or more."""

    score: float
    far: float | None
    """The false accept rate of one comparison; None where the threshold was set by hand."""
    source: str
    """Where it comes from, in a few words."""

    def __post_init__(self) -> None:
        if not -1 <= self.score <= 1:
            raise ConfigError(f"a threshold of {self.score}: scores are cosines, from -1 to 1")

    def __str__(self) -> str:
        rate = "set by hand" if self.far is None else f"false accept rate {self.far:g} on {self.source}"
        return f"{self.score:.4f} ({rate})"


def by_hand(score: float) -> Threshold:
    return Threshold(score, None, "set by hand")


def threshold_at(far: float, path: str | Path, model: Model, benchmark: str | None = None) -> Threshold:
    """The threshold at this false accept rate, from an evaluation of this very model or from its card.

    It is refused where the evaluation has too few impostors to tell such a rate.
    """
    found = read_evaluation(Path(path))
    if found["model"]["digest"] != model.digest:
        raise DataError(f"{path}: an evaluation of another model (or with other mirror images); evaluate this one")
    benchmarks = found["benchmarks"]
    if benchmark is None and len(benchmarks) == 1:
        benchmark = next(iter(benchmarks))
    if benchmark not in benchmarks:
        names = ", ".join(benchmarks) or "none"
        raise ConfigError(
            f"{path}: choose the benchmark that the threshold is from with --benchmark; there are {names}"
        )
    result = benchmarks[benchmark]
    try:
        impostors, thresholds = int(result["impostor_pairs"]), dict(result["thresholds"])
        score = thresholds.get(tar_name(far))
        score = None if score is None else float(score)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: the figures of {benchmark} are damaged; evaluate the model again") from error
    if far * impostors < FALSE_ACCEPTS:
        raise DataError(
            f"{path}: {benchmark} has {counted(impostors, 'pair')} of impostors, too few for a false accept rate of"
            f" {far:g}: it takes {math.ceil(FALSE_ACCEPTS / far):,}; evaluate on more people, or ask for a higher rate"
        )
    if score is None or not math.isfinite(score):
        known = ", ".join(name.removeprefix("tar@") for name in thresholds) or "none"
        raise ConfigError(
            f"{path}: {benchmark} was not evaluated at a false accept rate of {far:g}; there are {known}."
            f" Evaluate it with --far {far:g}"
        )
    return Threshold(score, far, f"{benchmark}, {counted(impostors, 'pair')} of impostors")


def plain_evaluation(model: Model, evaluation: Evaluation) -> dict[str, Any]:
    """Ready for JSON: whose figures, and the figures."""
    benchmarks = {name: dataclasses.asdict(result) for name, result in evaluation.results.items()}
    return {"model": {"digest": model.digest}, "benchmarks": benchmarks}


def save_evaluation(path: Path, model: Model, evaluation: Evaluation) -> None:
    write_text(path, json.dumps(plain_evaluation(model, evaluation), indent=1) + "\n")


def read_evaluation(path: Path) -> dict[str, Any]:
    """An evaluation or a card: whatever has `model` with its digest, and `benchmarks`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: more than {MAX_BYTES:,} bytes; give what `personae evaluate --save` wrote")
        found = json.loads(path.read_bytes())
        digest, benchmarks = found["model"]["digest"], found["benchmarks"]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give an evaluation or a card") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: no evaluation; give what `personae evaluate --save` or `export` wrote") from error
    if not isinstance(digest, str) or not isinstance(benchmarks, dict):
        raise DataError(f"{path}: no evaluation; give what `personae evaluate --save` or `export` wrote")
    whole: dict[str, Any] = found
    return whole
