"""What clients use after a finished run, evaluated again with other options: such as play no part in training."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from personae.core.acceleration import Acceleration
from personae.core.algorithm import ClientInfo
from personae.core.layer import innermost, layered
from personae.core.threads import torch_threads
from personae.experiment.assembly import checkpoints_of, federation_of
from personae.experiment.config import Experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials
from personae.reproduce.quantities import Outcome, Outcomes, Quantity
from personae.runtime.host import ClientHost
from personae.runtime.transport import Request


def evaluated_again(label: str, variant: str, metric: Callable[[Experiment], str], **options: Any) -> Quantity:
    """A metric of the personal models in percent, mean over clients, had the algorithm been given these `options`."""

    def read(outcomes: Outcomes) -> float:
        with torch_threads(1):  # a client works with one thread
            outcome = outcomes[variant]
            return 100 * statistics.fmean(_figures(outcome, metric(outcome.experiment), options))

    return Quantity(label, (variant,), read, needs_models=True)


def _figures(outcome: Outcome, metric: str, options: dict[str, Any]) -> Iterator[float]:
    speed, experiment = Acceleration(**outcome.run.environment.get("acceleration", {})), outcome.experiment
    materials = Materials(experiment, Execution(acceleration=speed, cache=outcome.cache))
    federation = federation_of(experiment, materials.clients, outcome.folder / "private", acceleration=speed)
    *before, last = federation.recipe
    settled: Any = replace(innermost(last.algorithm), **options)  # type: ignore[type-var]
    algorithm = layered(settled, *last.layers)
    host = ClientHost(replace(federation, recipe=(*before, replace(last, algorithm=algorithm))), outcome.device)
    state = checkpoints_of(experiment, outcome.folder, materials.digest(), speed).finished(last.name)
    for index, client in enumerate(materials.clients.clients):
        info = ClientInfo(client, index, client == federation.source)
        personal = host.personal(Request("evaluate", last.name, last.rounds, info, algorithm.send(state, info)))
        yield federation.evaluator(personal, federation.holdings.of(client))[metric]
