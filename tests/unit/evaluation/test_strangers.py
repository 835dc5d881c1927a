"""A client's people among everybody's: who the strangers are, and the figures of an experiment."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from killing import RECIPE, TINY
from personae.algorithms import FedPE
from personae.core.algorithm import ClientInfo
from personae.core.backbone import Backbone
from personae.core.embedder import Embedder, Remembering, embed
from personae.core.holdings import ClientFaces
from personae.core.message import Broadcast
from personae.core.payload import ModelState
from personae.data import FaceSet, PartitionPlan, Split
from personae.data.clients import PartitionedFaces
from personae.errors import ConfigError
from personae.evaluation.personal import evaluate_client
from personae.evaluation.personalized import AmongEverybody, personal_identification, personal_pairs
from personae.evaluation.verification import tar_at_far
from personae.experiment.config import load_experiment, parse_experiment
from personae.experiment.run import run_experiment
from personae.parts.embedding import BackboneEmbedder
from personae.report.html import write_report
from personae.report.table import comparison, heading
from personae.runtime.federation import Federation
from personae.runtime.host import ClientHost
from personae.runtime.transport import Answer, Request
from toys import Faces, TinyPlan, stage_of


@dataclass(frozen=True, eq=False)
class InMemory:
    """`personae.data.pixels.Store` over an array."""

    pixels: np.ndarray
    height: int = 2
    width: int = 2
    digest: str = "in memory"

    def take(self, places: np.ndarray) -> np.ndarray:
        return self.pixels[places]


def crowd(people: int, images: int, side: int = 2) -> FaceSet:
    identity = np.arange(people).repeat(images)
    pixels = np.zeros((people * images, side, side, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0] = identity
    names = tuple(f"person {number}" for number in range(people))
    return FaceSet("faces", names, identity, {}, InMemory(pixels), np.arange(len(identity)))


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_strangers_are_everybody_elses_test_faces_under_the_clients_own_labels(shared: float):
    faces = crowd(12, 10)
    plan = PartitionPlan(clients=3, shared=shared, train=0.6, val=0.0, test=0.4)
    holdings = PartitionedFaces(faces, plan.apply(faces, seed=1))
    known_elsewhere = 0
    for client in holdings.clients:
        own = holdings.of(client)
        strangers = own.strangers()
        others = [holdings.partition.rows(name, Split.TEST) for name in holdings.clients if name != client]
        assert np.array_equal(strangers.stored, np.sort(np.concatenate(others)))
        people = strangers.images(torch.arange(len(strangers)))[:, 0, 0, 0]  # a pixel says who it is
        mine = own.test.images(torch.arange(len(own.test)))[:, 0, 0, 0]
        label_of = dict(zip(mine.tolist(), own.test.labels.tolist(), strict=True))
        for person, label in zip(people.tolist(), strangers.labels.tolist(), strict=True):
            assert strangers.identities[label] == f"person {person}"
            if person in label_of:
                known_elsewhere += 1
                assert label == label_of[person]
            else:
                assert label >= own.train.classes
        assert strangers.classes == len(set(strangers.identities)) > own.train.classes
    assert (known_elsewhere > 0) == bool(shared)


def test_a_client_alone_has_no_strangers():
    faces = crowd(4, 10)
    holdings = PartitionedFaces(faces, PartitionPlan(clients=1).apply(faces, seed=0))
    assert len(holdings.of("client-000").strangers()) == 0


def test_one_model_sees_what_everybody_is_shown_of_each_other_once():
    faces = crowd(12, 10)
    holdings = PartitionedFaces(faces, PartitionPlan(clients=3).apply(faces, seed=1))
    seen: list[int] = []

    def pixel(images: Tensor) -> Tensor:
        seen.append(len(images))
        return images[:, 0, 0, :1].float()

    remembering, shown = Remembering(pixel), [holdings.of(name).strangers() for name in holdings.clients]
    found = [embed(remembering, strangers) for strangers in shown]
    assert sum(seen) == len(holdings.pooled(Split.TEST))
    assert all(torch.equal(vectors, embed(pixel, strangers)) for vectors, strangers in zip(found, shown, strict=True))
    seen.clear()
    assert torch.equal(
        embed(remembering, holdings.of("client-000").train), embed(pixel, holdings.of("client-000").train)
    )
    assert seen[0] == seen[1]  # what is nobody else's is embedded as ever


def test_a_host_remembers_one_global_model_and_no_longer_than_it_lasts(tmp_path: Path):
    faces = crowd(12, 10, side=32)
    holdings = PartitionedFaces(faces, PartitionPlan(clients=3).apply(faces, seed=1))
    embedded: list[int] = []

    def evaluator(embedder: Embedder, own: ClientFaces) -> dict[str, float]:
        return {"sum": float(embed(embedder, own.strangers()).sum())}

    class Counting(BackboneEmbedder):
        def __call__(self, images: Tensor) -> Tensor:
            embedded.append(len(images))
            return super().__call__(images)

    class Counted(Federation):
        def embedder(self, backbone: Backbone) -> Embedder:
            return Counting(backbone)

    def host() -> ClientHost:
        return ClientHost(
            Counted(
                seed=0,
                recipe=(stage_of(FedPE(), name="train"),),
                network=TinyPlan(),
                holdings=holdings,
                private=tmp_path,
                evaluator=evaluator,
            )
        )

    def sums(host: ClientHost, model: ModelState) -> list[float]:
        infos = [ClientInfo(name, number) for number, name in enumerate(holdings.clients)]
        answers = [host.handle(Request("evaluate", "train", 1, info, Broadcast(model=model))) for info in infos]
        return [answer.message.metrics.values["global/sum"] for answer in answers if isinstance(answer, Answer)]

    first = host()
    model, everybody = first.backbone.state(), len(holdings.pooled(Split.TEST))
    other = ModelState(model.layout, model.flat * 1.5)
    before = sums(first, model)
    assert len(before) == 3
    assert sum(embedded) == everybody
    model.flat.mul_(1.5)  # a server may work in place
    assert sums(first, model) == sums(host(), other) != before
    assert sum(embedded) == 3 * everybody


def people_of(labels: list[int], seed: int) -> Faces:
    """Pictures whose vectors scatter about those of their people."""
    centres = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(labels), 12, generator=torch.Generator().manual_seed(seed))
    vectors = (centres[labels] + noise).mul(12).add(128).clamp(0, 255)
    return Faces(vectors.to(torch.uint8).view(-1, 2, 2, 3), torch.tensor(labels), 20)


def flat(images: Tensor) -> Tensor:
    return F.normalize(images.flatten(1).float() - 128)


def test_the_figures_are_those_of_the_protocols():
    train, test = people_of([0, 0, 1, 1, 2, 2], 1), people_of([0, 0, 0, 1, 1, 1, 2, 2, 2], 2)
    strangers = people_of([*range(3, 20)] * 4, 3)
    options = AmongEverybody(fars=(1e-1, 1e-2), fpirs=(0.3, 0.1), protocols=("correct", "paper"))
    found = evaluate_client(flat, train, test, (0.1,), strangers, options)
    enrolled, own, others = (flat(faces.pixels) for faces in (train, test, strangers))
    pairs = tar_at_far(personal_pairs(own, test.labels, others, strangers.labels), (1e-1, 1e-2))
    probes, labels = torch.cat([own, others]), torch.cat([test.labels, strangers.labels])
    rates = {
        mark: personal_identification(enrolled, train.labels, probes, labels, (0.3, 0.1), protocol)
        for mark, protocol in (("", "correct"), (" (paper)", "paper"))
    }
    among = {name: value for name, value in found.items() if name.startswith("1:")}
    assert among == {
        "1:1 tar@1e-01": pairs[1e-1],
        "1:1 tar@1e-02": pairs[1e-2],
        **{
            f"1:N tpir@{name}{mark}": rates[mark][fpir]
            for mark in rates
            for name, fpir in (("3e-01", 0.3), ("1e-01", 0.1))
        },
    }
    assert 0 < among["1:1 tar@1e-02"] < among["1:1 tar@1e-01"] < 1
    without = evaluate_client(flat, train, test, (0.1,))
    assert without == {name: value for name, value in found.items() if name not in among}


def test_what_says_nothing_is_left_out():
    options, strangers = AmongEverybody(), people_of([5, 6, 7], 3)
    one_each = evaluate_client(flat, people_of([0, 1], 1), people_of([0, 1], 2), (0.1,), strangers, options)
    assert {name.split()[0] for name in one_each} == {"rank1", "1:N"}  # nobody has a genuine pair
    nobody = evaluate_client(flat, people_of([0, 1], 1), people_of([0, 0, 1], 2), (0.1,), people_of([], 3), options)
    assert not any(name.startswith("1:") for name in nobody)
    no_training = evaluate_client(flat, people_of([], 1), people_of([0, 0, 1], 2), (0.1,), strangers, options)
    assert {name.split()[0] for name in no_training} == {"tar@1e-01", "1:1"}


@pytest.mark.parametrize("rates", [{"fars": [0.0]}, {"fpirs": [1.5]}])
def test_rates_that_make_no_sense_are_refused(rates: dict[str, list[float]]):
    minimal = {
        "name": "x",
        "data": {"private": {"identities": 4}},
        "partition": {"clients": 2},
        "stages": [{"name": "a", "algorithm": {"name": "fedpe"}}],
    }
    with pytest.raises(ConfigError, match=r"evaluation.personalized: a rate of .* is not in \(0, 1\]"):
        parse_experiment({**minimal, "evaluation": {"personalized": rates}}, "x")


def test_an_experiment_shows_generic_and_personalized_figures(tmp_path: Path, faces_cache: Path):
    """From the file to the table and the page, with public faces, a branch and an adaptation stage."""
    settings = [
        *TINY,
        "evaluation.personalized={ fars = [0.1], fpirs = [0.1], protocols = ['correct', 'paper'] }",
        "stages.pretrain.rounds=1",
        "stages.federate.rounds=2",
        "stages.federate.selection.share=1.0",
        "stages.federate.algorithm={ name = 'fedfr', training = { lr = 0.02 } }",
        "stages.central.label=tuned",
        "stages.central.after=federate",
        "stages.central.rounds=1",
        "stages.central.algorithm={ name = 'adapt', method = 'distil' }",
    ]
    out = tmp_path / "run"
    page = run_experiment(load_experiment(RECIPE, settings), out, cache=faces_cache).report
    rows = {row.label: row.metrics for row in comparison(out)}
    wanted = {"1:1 tar@1e-01", "1:N tpir@1e-01", "1:N tpir@1e-01 (paper)"}
    for label, metrics in rows.items():
        names = {name.removeprefix("clients/") for name in metrics if name.startswith("clients/")}
        assert {f"global/{name}" for name in wanted} <= names, label
        personal = {name for name in names if name.startswith("personal/")}
        if label in ("start", "pre-trained"):  # nobody has a model of its own yet
            assert not personal
        else:
            assert {f"personal/{name}" for name in wanted} <= personal, label
    for label in ("federated (FedPE)", "tuned"):
        of = {
            kind: [rows[label][f"clients/{kind}/{name}"] for name in sorted(wanted)] for kind in ("global", "personal")
        }
        assert of["global"] != of["personal"]
    assert not (out / "public").exists()  # features of public faces are nobody's result
    text = page.read_text()
    assert "1:N TPIR at FPIR 10% (paper) of 4 clients" in text
    assert "1:1 and 1:N compare with the test images of everybody" in text
    assert '<th scope="row">tuned</th>' in text  # it has no shared model, so that only personal ones have a row
    rows = [f'<th scope="row">federated (FedPE), {kind}</th>' for kind in ("global", "personal")]
    assert text.index(rows[0]) < text.index(rows[1])
    summary = json.loads((out / "summary.json").read_text())["stages"]
    assert summary[1]["discloses"] == ["Count", "FailureCode", "ModelState", "PublicEmbeddings", "Scalars"]
    assert summary[2]["discloses"] == ["FailureCode", "Scalars"]
    assert write_report(out) == page


def test_headings_name_the_protocols():
    assert heading("clients/personal/1:N tpir@1e-02 (paper)") == ("clients", "1:N TPIR at FPIR 1% (paper), personal")
    assert heading("clients/global/1:1 tar@1e-03") == ("clients", "1:1 TAR at FAR 0.1%, global")
