"""Results for a person, as tables, or for a script, as JSON."""

from personae.screen.about import algorithm, algorithms, disclosure, findings, layer, layers
from personae.screen.attacking import trial, triggers
from personae.screen.demo import demo
from personae.screen.faces import aligned, holdings, inspection, packed
from personae.screen.keeping import forgetting, forgotten, has_forgotten, purged
from personae.screen.privacy import audit
from personae.screen.recognition import benchmarks, clusters, enrolled, exported, matches, people
from personae.screen.results import comparison
from personae.screen.runs import findings_of_claims, forecast, models, paths, proposal, recipes, written_experiment
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
