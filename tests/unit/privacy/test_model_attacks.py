"""A model that memorises is found, a template that holds the face is drawn, scores give a template away."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacked import evidence, faces, sent
from personae.algorithms import FedGC
from personae.core.backbone import Backbone
from personae.core.layer import layered
from personae.core.payload import ModelState
from personae.layers import Centres
from personae.parts.images import normalise
from personae.privacy.audit import Person
from personae.privacy.audit.attack import means
from personae.privacy.audit.inversion import Inversion
from personae.privacy.audit.membership import Membership, auc
from personae.privacy.audit.scores import Scores
from toys import TinyPlan


@pytest.fixture(scope="module")
def plain():
    return evidence(clients=10, each=2, photos=4)


@pytest.fixture(scope="module")
def alike():
    """People who look much alike: what tells one from another is what was learnt by heart."""
    return evidence(clients=4, each=5, photos=4, noise=250.0)


def memorised(plain, steps=40):
    """The network after training on the clients' photographs alone, again and again."""
    backbone = plain.backbone
    backbone.load(plain.begin)
    module = backbone.module.train()
    batch = normalise(torch.cat([person.trained for person in plain.people]))
    labels = torch.arange(len(plain.people)).repeat_interleave(4)
    rows = torch.randn(len(plain.people), 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    optimiser = torch.optim.SGD([*module.parameters(), rows], 0.1, momentum=0.9)
    for _ in range(steps):
        logits = 16 * F.normalize(module(batch), dim=1) @ F.normalize(rows, dim=1).T
        optimiser.zero_grad(set_to_none=False)
        F.cross_entropy(logits, labels).backward()
        optimiser.step()
    return backbone.state()


def test_a_model_that_memorises_tells_whom_it_was_trained_on(alike):
    found = Membership().findings(replace(alike, model=memorised(alike)))
    (area,) = [each for each in found if each.figure == "AUC" and each.target == "model, trained photographs"]
    assert area.value >= 0.95


def test_a_model_that_saw_nobody_tells_nothing():
    backbone = Backbone(TinyPlan().build(), 8)
    plain = evidence(clients=8, each=4, backbone=backbone, model=backbone.state(), begin=backbone.state())
    found = []
    for seed in range(12):
        way = 0.03 * torch.randn(len(plain.begin.flat), generator=torch.Generator().manual_seed(seed))
        found += Membership().findings(replace(plain, model=ModelState(plain.begin.layout, plain.begin.flat + way)))
    areas, rates = ([each for each in found if (each.figure == "AUC") == kind] for kind in (True, False))
    assert len(areas) == len(rates) == 24  # with the photographs of training, and with others
    assert 0.45 < sum(each.value for each in areas) / 24 < 0.55
    assert sum(each.value for each in rates) <= 2 * sum(each.chance for each in rates)


def test_the_client_of_a_memorising_update_is_found(alike):
    alone = replace(alike, people=alike.people[:5])
    update = sent("c0", alike.begin, memorised(alone).flat)
    found = Membership().findings(replace(alike, received=[update]))
    (area,) = [each for each in found if each.target == "updates of round 1, at this client" and each.figure == "AUC"]
    assert area.value >= 0.95


def test_variances_that_noise_made_negative_are_replaced_by_those_of_the_model_before(alike):
    """A model with them cannot embed anything, which would pass for an area of zero."""
    size, begin = alike.begin.layout.trainable_size, alike.begin
    whole = torch.cat([memorised(replace(alike, people=alike.people[:5])).flat[:size], begin.flat[size:]])
    broken = torch.cat([whole[:size], torch.full_like(whole[size:], -1.0)])
    one, other = (
        [each for each in Membership().findings(replace(alike, received=[sent("c0", begin, flat)])) if each.value]
        for flat in (whole, broken)
    )
    assert one == other
    assert "updates of round 1, at this client" in {each.target for each in one}
    (none,) = Membership().findings(replace(alike, model=ModelState(begin.layout, broken)))
    assert "not finite" in none.reason


def scattered(alike, people, steps=25):
    """The network after steps that move the photographs of each person apart."""
    backbone = alike.backbone
    backbone.load(alike.begin)
    module = backbone.module.train()
    batch = normalise(torch.cat([person.trained for person in people]))
    optimiser = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        vectors = F.normalize(module(batch), dim=1).reshape(len(people), -1, 64)
        optimiser.zero_grad(set_to_none=False)
        (vectors @ vectors.transpose(1, 2)).mean().backward()
        optimiser.step()
    return backbone.state().flat


def test_a_client_of_the_attackers_own_tells_the_direction(alike):
    """Updates that scatter the photographs of their people say as much as those that draw them together."""
    clients = {name: [person for person in alike.people if person.client == name] for name in alike.rows}
    updates = [sent(name, alike.begin, scattered(alike, people)) for name, people in clients.items()]
    found = Membership().findings(replace(alike, received=updates))
    (area,) = [each for each in found if each.target == "updates of round 1, at this client" and each.figure == "AUC"]
    assert area.value >= 0.95
    (alone,) = [
        each
        for each in Membership().findings(replace(alike, received=updates[:1]))
        if each.target == area.target and each.figure == "AUC"
    ]
    assert alone.value <= 0.05  # who has no client in the round cannot know


def test_updates_of_noise_tell_nothing_of_membership():
    backbone = Backbone(TinyPlan().build(), 8)
    plain = evidence(clients=8, each=4, backbone=backbone, model=backbone.state(), begin=backbone.state())
    begin, found = plain.begin, []
    for seed in range(12):
        random = torch.Generator().manual_seed(seed)
        common, *noise = (0.03 * torch.randn(len(begin.flat), generator=random) for _ in range(9))
        updates = [sent(name, begin, begin.flat + common + each) for name, each in zip(plain.rows, noise, strict=True)]
        found += [each for each in Membership().findings(replace(plain, received=updates)) if "client" in each.target]
    areas = [each.value for each in found if each.figure == "AUC"]
    rates = [each for each in found if each.figure != "AUC"]
    assert len(areas) == len(rates) == 12
    assert 0.45 < sum(areas) / 12 < 0.55
    assert sum(each.value for each in rates) <= 2 * sum(each.chance for each in rates)


def test_too_few_shadow_people_are_not_measured(plain):
    (found,) = Membership().findings(replace(plain, shadows=plain.shadows[:3]))
    assert found.reason.startswith("it takes 8 shadow people, and there are ")


def test_auc_counts_ties_half():
    assert auc(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])) == 0.875


def test_scores_give_a_template_away_and_plain_answers_do_not(plain):
    exact, tenths, plainly = Scores(answers=70).findings(plain)
    assert exact.value >= 0.95
    assert exact.details["answers for 95%"] <= 70
    assert plainly.value <= 2 * plainly.chance
    assert plainly.value <= tenths.value <= exact.value
    assert "photographs of shadow people" in Scores(answers=1000).findings(plain)[0].reason


class Thumbnail(nn.Module):
    """An embedding that is a small picture of the face."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return self.scale * F.adaptive_avg_pool2d(batch, 2).flatten(1)


def test_a_template_that_holds_the_face_is_drawn_again(tmp_path):
    backbone = Backbone(Thumbnail(), 12)
    given = {"backbone": backbone, "model": backbone.state(), "mirror": False, "folder": tmp_path}
    leaking = evidence(clients=10, each=2, **given)
    more = [Person(f"m{number}", photos) for number, photos in enumerate(faces(300, 2, seed=9))]
    leaking = replace(leaking, shadows=more)
    rows = {
        client: torch.stack([F.normalize(leaking.embedder()(person.trained).mean(0), dim=0) for person in people])
        for client in leaking.rows
        for people in [[person for person in leaking.people if person.client == client]]
    }
    random = torch.Generator().manual_seed(2)
    noised = {client: torch.randn(len(each), 12, generator=random) for client, each in rows.items()}
    templates = {"ClassEmbeddings": rows, "Noised": noised}
    found = Inversion(steps=100, batch=32).findings(replace(leaking, templates=templates))
    kept, plainly, hidden = found
    assert [each.target for each in found] == ["a template of a gallery", "ClassEmbeddings", "Noised"]
    assert kept.value >= 0.95
    assert plainly.value >= 0.95
    assert hidden.value <= max(2 * hidden.chance, 0.1)
    assert (tmp_path / "audit-faces-train.png").read_bytes().startswith(b"\x89PNG")


def test_centres_that_hold_faces_are_drawn_and_centres_of_noise_are_not():
    backbone = Backbone(Thumbnail(), 12)
    given = {"backbone": backbone, "model": backbone.state(), "mirror": False}
    leaking = evidence(clients=10, each=2, algorithm=layered(FedGC(), Centres(clusters=2, multiplier=1.0)), **given)
    leaking = replace(leaking, shadows=[Person(f"m{n}", photos) for n, photos in enumerate(faces(300, 2, seed=9))])
    random = torch.Generator().manual_seed(2)
    people = {client: [each for each in leaking.people if each.client == client] for client in leaking.rows}
    one_each = {client: means(leaking.embedder(), [each[0].trained]) for client, each in people.items()}
    noise = {client: torch.randn(1, 12, generator=random) for client in people}
    templates = {"NoisedCentres": one_each, "MuchNoise": noise}
    _, found, hidden = Inversion(steps=60, batch=32).findings(replace(leaking, templates=templates))
    assert found.target == "NoisedCentres, as anybody at the client"
    assert found.trials == hidden.trials == 10
    assert found.value >= 0.95
    assert hidden.value <= max(2 * hidden.chance, 0.1)


def test_photographs_are_not_shown(tmp_path):
    real = evidence(clients=8, each=2, made_up=False, folder=tmp_path)
    Inversion(steps=1, batch=2).findings(real)
    assert list(tmp_path.iterdir()) == []
