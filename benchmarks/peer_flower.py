"""Rounds of federated averaging in Flower's simulation engine, on the networks, images and loss of `crowd.py`.

A ServerApp sends the state dict of the network to all nodes and averages what returns by the number of samples; a
ClientApp trains one client with the loop that one writes without a framework. Ray runs `workers` clients at once, each
on one core with one thread. The class rows stay with their client, in Flower's `context.state`. Beyond what a Flower
app usually does, an actor builds the network and opens the images once, and not for each message.

The engine is driven through `flwr.simulation.run_simulation`, deprecated in favour of `flwr run` on the command line,
but the only practical way from Python; it has a process of its own, where the ServerApp waits for orders.
"""

import atexit
import logging
import multiprocessing
import os
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from crowd import MARGIN, Crowd
from personae import LocalSGD, Network
from personae.data.samples import FaceSamples

Task = tuple[Crowd, Network, LocalSGD]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class FlowerRounds:
    """Starts the engine; each round is an order to its ServerApp."""

    def __init__(
        self,
        folder: Path,  # noqa: ARG002
        crowd: Crowd,
        network: Network,
        training: LocalSGD,
        workers: int = 2,
    ) -> None:
        if missing := [name for name in ("flwr", "ray") if find_spec(name) is None]:
            raise SystemExit(f"{' and '.join(missing)} cannot be imported; pip install 'flwr[simulation]==1.41.0'")
        os.environ.update(QUIET)
        context = multiprocessing.get_context("spawn")
        self.orders, theirs = context.Pipe()
        self.engine = context.Process(target=simulate, args=(theirs, (crowd, network, training), workers), daemon=True)
        self.engine.start()
        theirs.close()
        atexit.register(self.close)
        self._answer()

    def round(self) -> None:
        self.orders.send("round")
        self._answer()

    def state(self) -> dict[str, torch.Tensor]:
        """The averaged network."""
        self.orders.send("state")
        return {name: torch.from_numpy(value) for name, value in self._answer().items()}

    def close(self) -> None:
        self.orders.close()
        self.engine.join(30)
        atexit.unregister(self.close)

    def _answer(self) -> Any:
        try:
            return self.orders.recv()
        except EOFError:
            raise RuntimeError("Flower's simulation has ended; it says why above") from None


def simulate(orders: Connection, task: Task, workers: int) -> None:
    """Run the simulation until nobody gives orders any more."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Any, _: Any) -> None:
        serve(grid, orders, task)

    @client.query()
    def query(message: Any, context: Any) -> Any:
        return prepare(message, context, task)

    @client.train()
    def train(message: Any, context: Any) -> Any:
        return fit(message, context, task)

    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        resources = {
            "init_args": {"num_cpus": workers, "_temp_dir": temporary, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        run_simulation(server, client, task[0].count, backend_config=resources)


def serve(grid: Any, orders: Connection, task: Task) -> None:
    """The server: federated averaging, a round at a time."""
    from flwr.app import ArrayRecord, Message, MessageType, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    crowd, network, _ = task

    def ask(kind: str, content: RecordDict) -> list[RecordDict]:
        replies = grid.send_and_receive([Message(content, node, kind) for node in grid.get_node_ids()])
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        return [reply.content for reply in replies]

    arrays = ArrayRecord(network.build().state_dict())
    while len(list(grid.get_node_ids())) < crowd.count:
        time.sleep(0.1)
    ask(MessageType.QUERY, RecordDict())  # the actors load PyTorch now and not in the first round
    orders.send("ready")
    try:
        while True:
            if orders.recv() == "round":
                replies = ask(MessageType.TRAIN, RecordDict({"arrays": arrays}))
                arrays = aggregate_arrayrecords(replies, "num-examples")
                orders.send("done")
            else:
                orders.send({name: value.numpy() for name, value in arrays.items()})
    except EOFError:
        pass
    finally:
        orders.close()


@cache
def ready(crowd: Crowd, network: Network) -> tuple[nn.Module, list[FaceSamples]]:
    """What an actor makes once."""
    torch.set_num_threads(1)
    return network.build().train(), [crowd.of(name).train for name in crowd.clients]


def prepare(message: Any, _: Any, task: Task) -> Any:
    from flwr.app import Message, RecordDict

    ready(*task[:2])
    return Message(RecordDict(), reply_to=message)


def fit(message: Any, context: Any, task: Task) -> Any:
    """The client: one epoch or more over its images."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    crowd, network, options = task
    model, everybody = ready(crowd, network)
    faces = everybody[context.node_config["partition-id"]]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if "head" in context.state:
        rows = context.state["head"].to_torch_state_dict()["rows"]
    else:
        rows = torch.randn(faces.classes, network.embedding)
    optimiser = torch.optim.SGD(
        [*model.parameters(), rows.requires_grad_()],
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    for _ in range(int(options.epochs or 1)):
        for positions in torch.randperm(len(faces)).tensor_split(options.steps(len(faces))):
            images = faces.images(positions).permute(0, 3, 1, 2).float().mul_(1 / 127.5).sub_(1)
            if torch.rand(()) < 0.5:
                images = images.flip(3)
            labels = faces.labels[positions]
            cosines = F.normalize(model(images)) @ F.normalize(rows).t()
            margins = MARGIN.margin * F.one_hot(labels, faces.classes)
            loss = F.cross_entropy(MARGIN.scale * (cosines - margins), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    context.state["head"] = ArrayRecord({"rows": rows.detach()})
    trained = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(faces)})}
    )
    return Message(trained, reply_to=message)
