"""Results for a person, as tables, or for a script, as JSON."""

from typing import TYPE_CHECKING

from personae.deferred import deferred

if TYPE_CHECKING:
    from personae.screen.about import algorithm, algorithms, disclosure, findings, layer, layers
    from personae.screen.attacking import trial, triggers
    from personae.screen.demonstration import demo
    from personae.screen.faces import aligned, holdings, inspection, packed
    from personae.screen.files import paths, recipes, written_experiment
    from personae.screen.keeping import forgetting, forgotten, has_forgotten, purged
    from personae.screen.privacy import audit
    from personae.screen.recognition import benchmarks, clusters, enrolled, exported, matches, people
    from personae.screen.results import comparison, models
    from personae.screen.runs import findings_of_claims, forecast, proposal
    from personae.screen.watching import watch

__all__ = [
    "algorithm",
    "algorithms",
    "aligned",
    "audit",
    "benchmarks",
    "clusters",
    "comparison",
    "demo",
    "disclosure",
    "enrolled",
    "exported",
    "findings",
    "findings_of_claims",
    "forecast",
    "forgetting",
    "forgotten",
    "has_forgotten",
    "holdings",
    "inspection",
    "layer",
    "layers",
    "matches",
    "models",
    "packed",
    "paths",
    "people",
    "proposal",
    "purged",
    "recipes",
    "trial",
    "triggers",
    "watch",
    "written_experiment",
]

__getattr__ = deferred(
    __name__,
    about="algorithm algorithms disclosure findings layer layers",
    attacking="trial triggers",
    demonstration="demo",
    faces="aligned holdings inspection packed",
    keeping="forgetting forgotten has_forgotten purged",
    privacy="audit",
    recognition="benchmarks clusters enrolled exported matches people",
    files="paths recipes written_experiment",
    results="comparison models",
    runs="findings_of_claims forecast proposal",
    watching="watch",
)
