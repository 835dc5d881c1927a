"""Was a backdoor trained into a model? A search for triggers in it, and in the model that training began with."""

from dataclasses import dataclass
from pathlib import Path

from personae.core.samples import Samples
from personae.core.stage import predecessors
from personae.data import synthetic_faces
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.experiment.model import Model, finished_stage, load_model
from personae.parts.embedding import BackboneEmbedder
from personae.parts.triggers import Patch, TriggerSearch
from personae.report.records import read_run

PEOPLE = 128  # strangers that are rendered: half of them to search with, half to test on
SEED = 0x7B_166E5  # of people who are in no experiment
# By how much the share of accepted strangers rises with a backdoor: between honest runs, which came to 0.34, and open
# backdoors, which came to 0.40 and more (docs/results/triggers.jsonl).
SUSPICIOUS = 0.37


@dataclass(frozen=True)
class TriggerReport:
    """At the place where the share of accepted strangers rose most: the patch for a model, and for the one before."""

    found: Patch
    before: Patch

    @property
    def rise(self) -> float:
        return self.found.accepted - self.before.accepted

    @property
    def suspicious(self) -> bool:
        return self.rise > SUSPICIOUS


def search_triggers(
    model: str | Path,
    before: str | Path | None = None,
    *,
    stage: str | None = None,
    search: TriggerSearch | None = None,
    cache: str | Path | None = None,
    device: str = "cpu",
) -> TriggerReport:
    """Search in a model and in the one `before`; by default, what the run's stage began with."""
    model, search = Path(model), search or TriggerSearch()
    after = load_model(model, stage, device=device)
    start = load_model(before, device=device) if before is not None else _beginning(model, stage, device)
    if (start.height, start.width) != (after.height, after.width):
        raise ConfigError(
            f"{before or model}: the model before takes images of {start.height}x{start.width} pixels, "
            f"and this one of {after.height}x{after.width}; give one of the same size"
        )
    if after.height != after.width:
        raise ConfigError(f"{model}: takes images of {after.height}x{after.width} pixels; rendered faces are square")
    faces = strangers(after.height, cache)
    found, earlier = _patches(after, faces, search, model), _patches(start, faces, search, before or model)
    return max(map(TriggerReport, found, earlier), key=lambda each: each.rise)


def strangers(size: int, cache: str | Path | None = None) -> Samples:
    """One image each of people who are in no experiment."""
    return synthetic_faces(identities=PEOPLE, images=1, seed=SEED, size=size, cache=cache).samples()


def _patches(model: Model, faces: Samples, search: TriggerSearch, path: str | Path) -> list[Patch]:
    if not isinstance(model.embedder, BackboneEmbedder):
        raise ConfigError(f"{path}: the search needs gradients, which a model in ONNX does not give; give its weights")
    return search.patches(model.embedder.backbone, faces, mirror=model.embedder.mirror)


def _beginning(run: Path, stage: str | None, device: str) -> Model:
    """The model that a stage of a run began with."""
    if not (run / "config.json").is_file():
        raise ConfigError(
            f"{run}: this is not a run, so nothing says what it began with; give that model with --before"
        )
    experiment = parse_experiment(read_run(run).config, str(run / "config.json"))
    chosen = finished_stage(run, stage)
    earlier = predecessors(experiment.recipe)[chosen]
    if earlier is not None:
        return load_model(run, earlier, device=device)
    if experiment.weights is None:
        raise ConfigError(f"{run}: stage {chosen} began with random weights; give an earlier model with --before")
    return load_model(experiment.weights, network=experiment.network, device=device)
