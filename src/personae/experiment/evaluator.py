"""How a client evaluates a model on its own faces, with labels and without."""

from collections.abc import Sequence
from functools import partial

from personae.algorithms import Cluster, Unsupervised
from personae.core.embedder import Embedder
from personae.core.holdings import ClientFaces
from personae.core.layer import innermost
from personae.core.rng import generator
from personae.core.samples import is_labelled
from personae.core.stage import Recipe
from personae.evaluation.personal import evaluate_client, metric_names
from personae.evaluation.protocols import Benchmark
from personae.experiment.config import Evaluation, Experiment
from personae.experiment.materials import Materials
from personae.parts.clustering.shape import Shape
from personae.parts.pseudo import pseudo_labels
from personae.runtime.federation import Evaluator, ModelEvaluator


def evaluator_of(experiment: Experiment) -> Evaluator:
    return partial(_evaluate, options=experiment.evaluation, finder=_finder(experiment.recipe))


def figures_of(experiment: Experiment) -> tuple[str, ...]:
    """The names under which a client may tell how a model does on its faces."""
    options = experiment.evaluation
    own = (*metric_names(options.client_fars, options.personalized), *Shape.names())
    benchmarks = ("personal/heldout*",) if options.personal_benchmarks else ()
    return (*(f"{model}/{name}" for model in ("global", "personal") for name in own), *benchmarks)


def benchmarks_of(materials: Materials) -> ModelEvaluator:
    """What the server makes of a personal model that it is shown, as it can be in a simulation alone."""
    return partial(_benchmarked, benchmarks=tuple(materials.heldout_benchmarks()))


def _benchmarked(embedder: Embedder, benchmarks: Sequence[Benchmark]) -> dict[str, float]:
    results = {benchmark.name: benchmark.evaluate(embedder, final=False).metrics for benchmark in benchmarks}
    return {f"{name}/{metric}": value for name, metrics in results.items() for metric, value in metrics.items()}


def _evaluate(
    embedder: Embedder, faces: ClientFaces, options: Evaluation, finder: Cluster | Unsupervised
) -> dict[str, float]:
    """Figures of an embedder: how well it recognises the client's people, or how its test images fall into clusters."""
    if is_labelled(faces.train):
        strangers = faces.strangers() if faces.strangers and options.personalized else None
        return evaluate_client(embedder, faces.train, faces.test, options.client_fars, strangers, options.personalized)
    if len(faces.test) < 2:
        return {}
    source = generator(0, "clusters of test images")  # the same for every model
    return pseudo_labels(faces.test, embedder, finder.clustering, finder.min_images, source)[1].figures()


def _finder(recipe: Recipe) -> Cluster | Unsupervised:
    """The first algorithm of the recipe that finds clusters, or the usual one."""
    algorithms = (innermost(stage.algorithm) for stage in recipe)
    return next((each for each in algorithms if isinstance(each, Cluster | Unsupervised)), Cluster())
