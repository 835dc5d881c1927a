"""Layers around algorithms: their order, what they declare, what passes through them, and what cannot go together."""

import pickle
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from personae.aggregation import Bucketing, GeometricMedian, Median, MultiKrum, Prepared, TrimmedMean
from personae.aggregation import Clip as ClipBefore
from personae.algorithms import (
    Adapt,
    Central,
    Cluster,
    FedAvg,
    FedFR,
    FedGC,
    FedPE,
    HFMAMLGlobal,
    Oracle,
    Pretrain,
    QFedAvg,
)
from personae.core.aggregation import Mean
from personae.core.algorithm import ClientInfo
from personae.core.layer import Layer, Layered, described, extended, innermost, layered, layers_of, recast
from personae.core.message import LocalState, ServerState
from personae.core.payload import Count, ModelWithoutBatchNorm
from personae.errors import ConfigError
from personae.experiment.config import parse_experiment
from personae.layers import Carry, Clip, SecretSum
from personae.privacy.disclosure import changes, sends, warning
from personae.selection import BySamples, FixedCount, HighestLoss
from toys import NAMES, Rehearsal, quickly, stage_of


@dataclass(frozen=True, kw_only=True)
class Note(ServerState):
    """How often each client was heard."""

    heard: dict[str, Count]


@dataclass(frozen=True, kw_only=True)
class Worked(LocalState):
    times: int


@dataclass(frozen=True, kw_only=True)
class Counting(Layer):
    """Counts at both ends how often clients work: every record has one more field."""

    name: ClassVar[str] = "counting"

    def types(self, inner):
        return replace(
            inner,
            state=extended(inner.state, Note),
            down=extended(inner.down, before=Count | None),
            private=extended(inner.private, Worked),
            up=extended(inner.up, worked=Count),
        )

    def start(self, around, previous, server):
        return recast(around.types.state, around.inner.start(previous, server), heard={})

    def send(self, around, state, client):
        return recast(around.types.down, around.inner.send(state, client), before=state.heard.get(client.name))

    def local(self, around, down, private, client):
        up, kept = around.inner.local(down, private, client)
        times = private.times + 1 if private else 1
        assert (down.before.value if down.before else 0) == times - 1
        return recast(around.types.up, up, worked=Count(times)), recast(around.types.private, kept, times=times)

    def merge(self, around, state, replies, server):
        heard = dict(state.heard)

        def noting() -> Iterator[Any]:
            for reply in replies:
                heard[reply.client.name] = reply.up.worked
                yield reply

        merged = around.inner.merge(state, noting(), server)
        return recast(around.types.state, merged, heard=heard)


@dataclass(frozen=True, kw_only=True)
class Rival(Layer):
    """Wants a field that another layer has."""

    name: ClassVar[str] = "rival"

    def types(self, inner):
        return replace(inner, up=extended(inner.up, worked=Count))


@dataclass(frozen=True, kw_only=True)
class Idle(Layer):
    """Writes none of its hooks."""

    name: ClassVar[str] = "idle"


# ------------------------------------------------------------------------------------------------------- being around


def test_the_first_layer_is_the_innermost() -> None:
    algorithm = layered(FedPE(), Carry(momentum="client"), Clip(norm=1.0))
    assert isinstance(algorithm, Layered)
    assert algorithm.layer == Clip(norm=1.0)
    assert [layer.name for layer in layers_of(algorithm)] == ["carry", "clip"]
    assert innermost(algorithm) == FedPE()
    assert described(algorithm) == "fedpe with carry and clip"
    assert layered(FedPE()) == FedPE()
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert stage_of(algorithm).layers == (Carry(momentum="client"), Clip(norm=1.0))


def test_an_idle_layer_changes_no_bit(tmp_path: Path) -> None:
    plain = Rehearsal(tmp_path / "plain", (stage_of(quickly(FedGC())),)).run()
    idle = Rehearsal(tmp_path / "idle", (stage_of(layered(quickly(FedGC()), Idle())),)).run()
    assert idle.files() == plain.files()
    assert idle.notebook.books["metrics"] == plain.notebook.books["metrics"]
    assert idle.notebook.books["ledger"] == plain.notebook.books["ledger"]


def test_what_an_algorithm_says_of_itself_passes_through() -> None:
    for algorithm in (FedPE(), FedGC(), FedGC(regulariser="none"), FedFR(), Oracle(), QFedAvg(), Cluster(), Adapt()):
        around = Idle().around(algorithm)
        for fact in (
            "name",
            "types",
            "federated",
            "pools_faces",
            "shows_others",
            "aggregates",
            "withheld",
            "needs_labels_of",
            "needs_public",
            "personalizes",
        ):
            assert getattr(around, fact) == getattr(algorithm, fact), (algorithm.name, fact)
        assert warning(around) == warning(algorithm)
        assert sends(around) == sends(algorithm)


def test_further_fields_cross_and_stay(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path, (stage_of(layered(quickly(FedGC()), Counting()), rounds=3),)).run()
    state: Any = run.checkpoints.finished("fedgc")
    assert {name: count.value for name, count in state.heard.items()} == dict.fromkeys(NAMES, 3)
    crossed = {(entry["direction"], entry["payload"]) for entry in run.notebook.books["ledger"]}
    assert {("down", "Count"), ("up", "Count")} <= crossed
    assert run.notebook.rounds()[-1]["failed"] == {}


def test_a_layer_forgets_what_a_client_has_sent_it(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path, (stage_of(layered(quickly(FedGC()), Counting(), Clip(norm=1.0))),)).run()
    algorithm, state = run.recipe[0].algorithm, run.checkpoints.finished("fedgc")
    after: Any = algorithm.forget(state, "bob")
    assert type(after) is algorithm.types.state
    assert set(after.heard) == set(after.class_embeddings) == set(NAMES) - {"bob"}
    assert algorithm.send(after, ClientInfo("bob", 1)).before is None
    assert torch.equal(after.model.flat, state.model.flat)


def test_fields_are_told_by_type() -> None:
    carrying = layered(FedPE(), Carry(control_variates=True, batch_norm="all"))
    assert sends(carrying) == ["Count", "Gradient", "ModelWithoutBatchNorm", "Scalars"]
    assert carrying.types.up.hints()["model"] is ModelWithoutBatchNorm
    assert carrying.types is layered(FedPE(), Carry(control_variates=True, batch_norm="all")).types


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (Idle(), [("idle", "", "nothing", "", "")]),
        (Carry(momentum="client"), [('carry, momentum = "client"', "", "nothing", "", "")]),
        (
            Carry(control_variates=True),
            [
                ("carry, control_variates = true", "down", "control_variate", "", "Gradient"),
                ("carry, control_variates = true", "up", "control_variate", "", "Gradient"),
            ],
        ),
        (
            Carry(batch_norm="all"),
            [('carry, batch_norm = "all"', "up", "model", "ModelState", "ModelWithoutBatchNorm")],
        ),
        (Clip(norm=1.0), [("clip, norm = 1.0", "up", "the figure clipped", "", "Scalars")]),
    ],
)
def test_what_a_layer_changes_is_told_from_its_types(layer: Layer, rows: list[tuple[str, ...]]) -> None:
    assert [astuple(change) for change in changes(layer.around(FedPE()))] == rows


# ---------------------------------------------------------------------------------------------- what cannot be together


@pytest.mark.parametrize(
    ("algorithm", "layers", "words"),
    [
        (Central(), [Clip(norm=1.0)], "layer clip goes around federated algorithms; central is none"),
        (Pretrain(), [Carry(momentum="client")], "layer carry goes around federated algorithms; pretrain is none"),
        (FedPE(), [Clip(norm=1.0), Clip(norm=2.0)], "layer clip is there twice"),
        (FedPE(), [Clip(norm=1.0), Carry(), Clip(norm=1.0)], "layer clip is there twice"),
        (
            FedPE(),
            [Counting(), Rival()],
            "layer rival around fedpe with counting: .* has a field worked already",
        ),
        (QFedAvg(), [SecretSum()], "layer secret-sum hides single updates from the server, and q_fedavg weighs them"),
        (Adapt(), [SecretSum()], "hides single updates from the server, and adapt aggregates nothing"),
        (Cluster(), [SecretSum()], "hides single updates from the server, and cluster aggregates nothing"),
        (FedAvg(), [SecretSum()], r"and fedavg keeps class_embeddings \(ClassEmbeddings\) of every client there"),
        (HFMAMLGlobal(), [SecretSum()], r"keeps class_embeddings \(ClassEmbeddings\) of every client there"),
        (FedGC(), [SecretSum()], r"keeps class_embeddings \(ClassEmbeddings\) of every client there"),
        (Oracle(), [SecretSum()], r"keeps class_embeddings \(ClassEmbeddings\) of every client there"),
        (FedPE(), [Carry(momentum="server"), SecretSum()], "and fedpe with carry weighs them by more than"),
        (
            FedPE(),
            [SecretSum(), Clip(norm=1.0)],
            "clients of fedpe with secret-sum send neither a model",
        ),
        (FedPE(), [SecretSum(), Carry(batch_norm="all")], "clients of fedpe with secret-sum send no whole model"),
    ],
)
def test_layers_that_do_not_fit_are_refused(algorithm: Any, layers: list[Layer], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layered(algorithm, *layers)


@pytest.mark.parametrize(
    "rule",
    [
        Median(),
        TrimmedMean(cut=0.25),
        GeometricMedian(),
        MultiKrum(faulty=1),
        Prepared(rule=Mean(), before=(ClipBefore(norm=1.0),)),
        Prepared(rule=Mean(), before=(Bucketing(size=2),)),
    ],
    ids=str,
)
def test_a_rule_that_looks_at_single_updates_needs_to_see_them(rule: Any) -> None:
    sealed = layered(FedPE(), Clip(norm=1.0), SecretSum())
    with pytest.raises(ConfigError, match="it looks at single updates, which layer secret-sum hides from the server"):
        stage_of(sealed, aggregation=rule)
    stage_of(layered(FedPE(), Clip(norm=1.0)), aggregation=rule)
    stage_of(sealed)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (BySamples(clients=2), r"needs the samples of clients, which fedpe with secret-sum does not disclose"),
        (
            HighestLoss(clients=2, candidates=3),
            r"needs the loss of clients, which fedpe with secret-sum does not disclose",
        ),
    ],
)
def test_a_selection_needs_the_figures_that_it_uses(policy: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        stage_of(layered(FedPE(), SecretSum()), selection=policy)
    stage_of(layered(FedPE(), SecretSum()), selection=FixedCount(clients=2))


# ----------------------------------------------------------------------------------------------------- experiment files


def experiment(**stage: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"by": "equal", "clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedgc"}, **stage}],
    }


def test_an_experiment_file_lists_layers_in_order() -> None:
    layers = [{"name": "carry", "momentum": "client"}, {"name": "clip", "norm": 2}]
    read = parse_experiment(experiment(layers=layers), "x.toml")
    assert read.recipe[0].algorithm == layered(FedGC(), Carry(momentum="client"), Clip(norm=2.0))
    resolved = read.resolved()
    assert resolved["stages"][0]["layers"][1] == {"name": "clip", "norm": 2.0}
    assert parse_experiment(resolved, "again").recipe == read.recipe
    assert parse_experiment(experiment(), "x.toml").recipe[0].layers == ()


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"layers": [{"name": "clup", "norm": 1.0}]}, r"stages\.a\.layers\.clup\.name is 'clup'; did you mean clip\?"),
        ({"layers": [{"norm": 1.0}]}, r"stages\.a\.layers\.0\.name is None; there are canaries, carry, "),
        ({"layers": {"name": "clip", "norm": 1.0}}, r"stages\.a\.layers: "),
        ({"layers": [{"name": "clip", "norm": 1.0}] * 2}, r"stages\.a\.layers: layer clip is there twice"),
        (
            {"algorithm": {"name": "central"}, "layers": [{"name": "clip", "norm": 1.0}]},
            r"stages\.a\.layers: layer clip goes around federated algorithms; central is none",
        ),
        (
            {"layers": [{"name": "carry", "momentum": "server"}], "aggregation": {"name": "median"}},
            r"aggregation median cannot be used, since fedgc with carry is defined by weighted means",
        ),
        (
            {"carry": {"momentum": "client"}},
            r'stages\.a\.carry: this key is no longer there; write layers = \[\{ name = "carry", \.\.\. \}\]',
        ),
    ],
)
def test_what_does_not_fit_is_one_line(stage: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_experiment(experiment(**stage), "x.toml")
    assert "\n" not in str(caught.value)
