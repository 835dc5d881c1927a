"""One suite over every algorithm, with every layer around it, under every rule.

Two rounds run; the same two rounds, cut off between and continued over Flower's messages, end with the same bits; what
a client has sent is forgotten. The fast tests take every pair of algorithm and layers, of layers and rule, and of
algorithm and rule once; the slow ones take everything.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake import as_a_server, grid_of  # noqa: F401 - the fixture
from personae.aggregation import AGGREGATIONS, GeometricMedian, Grouped, Mean, Median, MultiKrum, TrimmedMean
from personae.algorithms import ALGORITHMS, Unsupervised
from personae.core import wire
from personae.core.aggregation import Aggregation
from personae.core.algorithm import ClientInfo
from personae.core.layer import Layer, layered
from personae.core.stage import Stage
from personae.errors import ConfigError
from personae.layers import LAYERS, Canaries, Carry, Centres, Clip, LocalNoise, Noise, SecretSum, TopK
from personae.layers.people import People
from personae.runtime.firewall import Firewall
from personae.runtime.flower import GridTransport
from personae.runtime.inprocess import SameProcess
from personae.runtime.store import PrivateStore
from toys import NAMES, Crowd, Rehearsal, cut_off, quickly, stage_of

CLIENTS = NAMES[:3]
LABELS = {"unsupervised": Unsupervised(strength=0.0)}  # these toys have no source
FEDERATED = [name for name, kind in ALGORITHMS.items() if kind.federated]
STACKS: dict[str, tuple[Layer, ...]] = {
    "carry-momentum": (Carry(momentum="client"),),
    "carry-at-clients": (Carry(momentum="client", batch_norm="statistics"),),
    "carry-at-server": (Carry(momentum="server", control_variates=True, batch_norm="all", batch_norm_sent=True),),
    "carry-norms": (Carry(batch_norm="all"),),
    "clip": (Clip(norm=0.05),),
    "carry-then-clip": (Carry(momentum="client", control_variates=True, batch_norm="all"), Clip(norm=0.05)),
    "clip-then-sum": (Clip(norm=0.05), SecretSum()),
    "noise": (Noise(norm=0.05, multiplier=0.5, randomness="seed"),),
    "carry-then-adaptive-noise": (
        Carry(momentum="client", batch_norm="statistics"),
        Noise(norm=0.05, multiplier=0.1, quantile=0.5, randomness="seed"),
    ),
    "local-noise": (LocalNoise(norm=0.05, multiplier=0.5, randomness="seed"),),
    "centres": (Centres(clusters=2, multiplier=0.01, randomness="seed"),),
    "local-noise-then-sum": (LocalNoise(norm=0.05, multiplier=0.5, randomness="seed"), SecretSum()),
    "noise-for-people": (
        Noise(norm=0.05, multiplier=0.5, people=People(expected=2, share=0.7, beside=3), randomness="seed"),
    ),
    "canaries": (Canaries(count=2, norm=0.05),),
    "top-k": (TopK(share=0.1),),
    "top-k-then-clip": (TopK(share=0.1), Clip(norm=0.05)),
}
RULES: dict[str, Aggregation] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed-mean": TrimmedMean(cut=0.34),
    "geometric-median": GeometricMedian(),
    "multi-krum": MultiKrum(faulty=1),
    "grouped": Grouped(),
}
UPS = {name: set(ALGORITHMS[name].types.up.payloads().values()) for name in FEDERATED}
NO_MODEL = {name for name, kinds in UPS.items() if "ModelState" not in kinds}
TEMPLATES = {name for name, kinds in UPS.items() if "ClassEmbeddings" in kinds}
BESIDES = TEMPLATES | {"fedfr", "q_fedavg"}  # what no noise covers leaves, or no plain mean is taken
NO_LOCAL_SGD = {"hf_maml", "hf_maml_global", "cluster"}
REFUSED = {  # by stack: the algorithms that it cannot go around
    "carry-momentum": NO_LOCAL_SGD,
    "carry-at-clients": NO_MODEL | NO_LOCAL_SGD,
    "carry-at-server": NO_MODEL | NO_LOCAL_SGD,
    "carry-norms": NO_MODEL,
    "clip": NO_MODEL,
    "carry-then-clip": NO_MODEL | NO_LOCAL_SGD,
    "clip-then-sum": NO_MODEL | TEMPLATES | {"q_fedavg"},
    "noise": NO_MODEL | BESIDES,
    "carry-then-adaptive-noise": NO_MODEL | BESIDES | NO_LOCAL_SGD,
    "local-noise": NO_MODEL | BESIDES,
    "centres": set(FEDERATED) - TEMPLATES | {"oracle"},
    "local-noise-then-sum": NO_MODEL | BESIDES,
    "noise-for-people": set(FEDERATED) - {"fedpe", "hf_maml"},
    "canaries": NO_MODEL | TEMPLATES,
    "top-k": NO_MODEL,
    "top-k-then-clip": NO_MODEL,
}
Combination = tuple[str, str, str]


def stage(name: str, stack: str, rule: str) -> Stage:
    algorithm = quickly(LABELS.get(name) or ALGORITHMS[name]())
    if hasattr(algorithm, "meta"):  # at the toys' rate, a toy network with moved class embeddings diverges
        algorithm = replace(algorithm, meta=replace(algorithm.meta, lr=0.1 * algorithm.meta.lr))  # type: ignore[type-var]
    return stage_of(layered(algorithm, *STACKS[stack]), aggregation=RULES[rule], quorum=1.0)


def may_go_together(name: str, stack: str, rule: str) -> bool:
    try:
        stage(name, stack, rule)
    except (ConfigError, ValueError):
        return False
    return True


EVERYTHING = [each for each in itertools.product(FEDERATED, STACKS, RULES) if may_go_together(*each)]


def covering(combinations: list[Combination]) -> Iterator[Combination]:
    """Some of them in which every pair occurs that occurs in any."""
    missing = {pair for each in combinations for pair in pairs(each)}
    while missing:
        best = max(combinations, key=lambda each: len(missing & pairs(each)))
        missing -= pairs(best)
        yield best


def pairs(combination: Combination) -> set[tuple[str, str]]:
    return set(itertools.combinations(combination, 2))


FAST = list(covering(EVERYTHING))


@pytest.fixture
def grids(tmp_path: Path) -> Any:
    return lambda run, *options, **named: grid_of(run, tmp_path / "home", *options, **named)


def test_every_layer_and_every_rule_is_here() -> None:
    assert {layer.name for stack in STACKS.values() for layer in stack} >= set(LAYERS)
    assert set(RULES) == set(AGGREGATIONS)


def test_what_may_go_together_is_what_is_expected_to() -> None:
    for stack, refused in REFUSED.items():
        runs = {name for name, chosen, rule in EVERYTHING if (chosen, rule) == (stack, "mean")}
        assert runs == set(FEDERATED) - refused, stack
    by_any_rule = {stack for _, stack, rule in EVERYTHING if rule == "median"}
    assert by_any_rule == {
        *(
            "carry-momentum",
            "carry-at-clients",
            "carry-norms",
            "clip",
            "local-noise",
            "centres",
            "canaries",
            "top-k",
            "top-k-then-clip",
        )
    }
    assert {name for name, _, rule in EVERYTHING if rule == "median"} == set(FEDERATED) - NO_MODEL - {"q_fedavg"}


def rehearse(folder: Path, combination: Combination) -> Rehearsal:
    lenient = Firewall(norm_multiple=1e6)  # of three clients that take a few steps, one may well go far
    return Rehearsal(folder, (stage(*combination),), Crowd(clients=CLIENTS), firewall=lenient, benchmarks=())


def records(run: Rehearsal) -> tuple[Any, ...]:
    return run.files(), run.notebook.books["metrics"], run.notebook.books["ledger"]


def check(combination: Combination, folder: Path, grids: Any, *, begins_there: bool) -> None:
    whole, cut = rehearse(folder / "whole", combination).run(), rehearse(folder / "cut", combination)
    grid = grids(cut)
    there = GridTransport(cut.federation, grid, grid.post, deadline=60, poll=0.01)
    first, second = (there, SameProcess(cut.federation)) if begins_there else (SameProcess(cut.federation), there)
    assert records(cut_off(cut, after=1, transport=first).run(second)) == records(whole)
    forgets(whole)
    keeps(whole)


def forgets(run: Rehearsal) -> None:
    algorithm, state = run.recipe[0].algorithm, run.checkpoints.finished(run.recipe[0].name)
    forgotten = functools.reduce(algorithm.forget, CLIENTS, state)
    assert type(forgotten) is algorithm.types.state
    assert all(not getattr(forgotten, field) for field in forgotten.by_client())
    for field in set(state.hints()) - set(state.by_client()):
        assert getattr(forgotten, field) is getattr(state, field)
    for number, client in enumerate(CLIENTS):
        assert type(algorithm.send(forgotten, ClientInfo(client, number))) is algorithm.types.down


def keeps(run: Rehearsal) -> None:
    """What a client has on its disk is the declared private state, and all of it survives bytes."""
    chosen, layout = run.recipe[0], run.federation.backbone().layout
    for client in CLIENTS:
        kept = PrivateStore.of(run.folder / "private", client).load(chosen.name, chosen.algorithm.types.private, layout)
        assert type(kept) is chosen.algorithm.types.private
        content = wire.to_bytes(wire.encode(kept))
        assert wire.to_bytes(wire.encode(wire.decode(type(kept), wire.from_bytes(content), layout))) == content


@pytest.mark.parametrize("number", range(len(FAST)), ids=["+".join(each) for each in FAST])
def test_every_pair_runs_resumes_travels_and_forgets(number: int, tmp_path: Path, grids: Any) -> None:
    check(FAST[number], tmp_path, grids, begins_there=bool(number % 2))


@pytest.mark.slow
@pytest.mark.parametrize("begins_there", [False, True])
@pytest.mark.parametrize("combination", EVERYTHING, ids="+".join)
def test_everything_runs_resumes_travels_and_forgets(
    combination: Combination, begins_there: bool, tmp_path: Path, grids: Any
) -> None:
    check(combination, tmp_path, grids, begins_there=begins_there)
