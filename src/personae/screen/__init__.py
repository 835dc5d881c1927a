"""Results for a person, as tables, or for a script, as JSON."""

from personae.screen.about import algorithm, algorithms, disclosure, findings
from personae.screen.faces import aligned, holdings, inspection, packed
from personae.screen.recognition import benchmarks, clusters, enrolled, exported, matches, people
from personae.screen.runs import findings_of_claims, forecast, models, paths, recipes, written_experiment

__all__ = [
    "algorithm",
    "algorithms",
    "aligned",
    "benchmarks",
    "clusters",
    "disclosure",
    "enrolled",
    "exported",
    "findings",
    "findings_of_claims",
    "forecast",
    "holdings",
    "inspection",
    "matches",
    "models",
    "packed",
    "paths",
    "people",
    "recipes",
    "written_experiment",
]
