"""What a client writes into its update is found; an update of noise says nothing."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacked import evidence, sent
from personae.core.message import ClientEvaluation
from personae.core.payload import Scalars
from personae.parts.images import normalise
from personae.privacy.audit.attack import means
from personae.privacy.audit.hidden_rows import HiddenRows
from personae.privacy.audit.updates import Updates

CLIENTS, EACH = 8, 2


@pytest.fixture(scope="module")
def plain():
    return evidence(clients=CLIENTS, each=EACH)


def noise(plain, seed):
    random = torch.Generator().manual_seed(seed)
    return [
        sent(client, plain.model, plain.model.flat + 0.01 * torch.randn(len(plain.model.flat), generator=random))
        for client in plain.rows
    ]


def at_clients(plain):
    return {client: [person for person in plain.people if person.client == client] for client in plain.rows}


def test_rows_that_are_sent_as_weights_are_found(plain):
    updates = []
    for number, (client, people) in enumerate(at_clients(plain).items()):
        rows = means(plain.embedder(), [person.trained for person in people])
        flat = plain.model.flat.clone()
        start = 1000 + 777 * number
        flat[start : start + rows.numel()] = 0.1 * rows.flatten()
        updates.append(sent(client, plain.model, flat))
    (found,) = HiddenRows().findings(replace(plain, received=updates))
    assert found.value >= 0.95
    assert found.trials == CLIENTS * EACH


def test_an_update_that_was_computed_on_a_persons_photographs_is_recognised(plain):
    updates = []
    module = plain.backbone.module.eval()
    for client, people in at_clients(plain).items():
        known = means(plain.embedder(), [person.trained for person in people])
        plain.backbone.gradient.zero_()
        batch = normalise(torch.cat([person.trained for person in people]))
        labels = torch.arange(EACH).repeat_interleave(len(people[0].trained))
        rows = torch.randn(EACH, 64, generator=torch.Generator().manual_seed(len(updates)))
        logits = 16 * F.normalize(module(batch), dim=1) @ (F.normalize(rows, dim=1) + known).T
        F.cross_entropy(logits, labels).backward()
        flat = plain.model.flat.clone()
        flat[: len(plain.backbone.gradient)] -= 0.01 * plain.backbone.gradient
        updates.append(sent(client, plain.model, flat))
    other, same = Updates().findings(replace(plain, received=updates))
    assert same.target.endswith("trained photographs")
    assert same.beyond_chance
    assert other.chance == same.chance == pytest.approx(1 / (CLIENTS * EACH - EACH + 1))


@pytest.mark.parametrize("attack", [HiddenRows(), Updates()])
def test_updates_of_noise_name_nobody(plain, attack):
    found = [each for seed in range(6) for each in attack.findings(replace(plain, received=noise(plain, seed)))]
    assert sum(each.value for each in found) / len(found) <= 2 * found[0].chance


@pytest.mark.parametrize("attack", [HiddenRows(), Updates()])
def test_without_updates_that_can_be_read_nothing_is_measured(plain, attack):
    assert "kept no updates" in attack.findings(plain)[0].reason
    unreadable = replace(noise(plain, 0)[0], message=ClientEvaluation(metrics=Scalars({})))
    assert "holds no weights" in attack.findings(replace(plain, received=[unreadable]))[0].reason
    found = attack.findings(replace(plain, received=noise(plain, 0), rows={}))
    assert "whose people are known" in found[0].reason
