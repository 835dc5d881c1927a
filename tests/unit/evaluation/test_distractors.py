"""People among strangers, against every score computed one by one and held."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.core.exact import GRID, unit_on_grid
from personae.errors import ConfigError, DataError
from personae.evaluation import distractors
from personae.evaluation.distractors import among_distractors
from personae.evaluation.verification import false_accepts

FPRS, RANKS = (0, 1e-4, 1e-3, 0.03, 0.5, 1), (1, 2, 5)


def crowd(people=6, images=4, strangers=900, size=12, noise=0.8, decimals=None, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(people).repeat(images)
    centres = F.normalize(torch.randn(people, size, generator=random))
    probes = centres[labels] + noise * torch.randn(len(labels), size, generator=random) / size**0.5
    others = torch.randn(strangers, size, generator=random)
    if decimals is not None:
        probes, others = probes.round(decimals=decimals), others.round(decimals=decimals)
    return probes, labels, others


def literally(probes, labels, others):
    """Whole numbers on the grid, multiplied and added without rounding; then the protocol taken literally."""
    left, right = ((unit_on_grid(side) * GRID).long().numpy().astype(object) for side in (probes, others))
    score = np.vectorize(lambda whole: np.float32(whole / 2**52), otypes=[np.float32])
    among, strangers = score(left @ left.T), score(left @ right.T)
    ordered = [(i, j) for i in range(len(left)) for j in range(len(left)) if i != j and labels[i] == labels[j]]
    found = {
        rank: sum(int((strangers[j] >= among[j, i]).sum()) < rank for i, j in ordered) / len(ordered) for rank in RANKS
    }
    falling = -np.sort(-strangers.ravel())
    tprs = {}
    for fpr in FPRS:
        count = false_accepts(fpr, falling.size)
        refused = falling[count] if count < falling.size else -np.inf
        tprs[fpr] = sum(among[i, j] > refused for i, j in ordered) / len(ordered)
    return found, tprs, len(ordered)


@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.parametrize("block", [7, 128, 5000])
def test_equals_the_protocol_taken_literally(monkeypatch, decimals, block):
    crowded = crowd(decimals=decimals)
    monkeypatch.setattr(distractors, "BLOCK", block)
    found = among_distractors(*crowded, fprs=FPRS, ranks=RANKS)
    ranks, tprs, searches = literally(*crowded)
    assert (found.rank, found.tpr, found.searches, found.distractors) == (ranks, tprs, searches, 900)
    if decimals is None:
        assert 0 < found.rank[1] < found.rank[5] < 1
        assert 0 < found.tpr[1e-3] < found.tpr[0.03] < 1


def test_ties_count_against_us():
    probes, twin = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([[0.6, 0.8]])
    found = among_distractors(probes, torch.tensor([4, 4]), twin, fprs=(0.5, 1), ranks=(1, 2))
    # The twin scores 0.6 with the first image, as the second one does, and more with the second.
    assert found.rank == {1: 0.0, 2: 1.0}
    assert found.tpr == {0.5: 0.0, 1: 1.0}


def test_strangers_that_float32_cannot_tell_apart(monkeypatch):
    """Of nearly equal ones, that with the highest product in float32 need not be the one with the highest score."""
    probes, labels, others = crowd(people=3, images=2, strangers=400, size=64)
    random = torch.Generator().manual_seed(1)
    others[:] = others[0] + 2e-6 * torch.randn(others.shape, generator=random)
    monkeypatch.setattr(distractors, "BLOCK", 16)
    highest = []
    original = distractors._Highest.of_all
    monkeypatch.setattr(distractors._Highest, "of_all", lambda self: (highest.append(self.of_probe), original(self))[1])
    among_distractors(probes, labels, others, fprs=(1e-3,), ranks=(1, 5))
    left, right = ((unit_on_grid(side) * GRID).long().numpy().astype(object) for side in (probes, others))
    exact = np.vectorize(lambda whole: np.float32(whole / 2**52), otypes=[np.float32])(left @ right.T)
    order = torch.argsort(labels, stable=True).numpy()
    assert np.array_equal(highest[0], -np.sort(-exact[order], axis=1)[:, :5])
    assert len(np.unique(exact)) > 50


def test_only_few_scores_are_computed_exactly(monkeypatch):
    probes, labels, others = crowd(strangers=20_000, size=64)
    rescored = []
    original = distractors.pair_scores
    monkeypatch.setattr(distractors, "BLOCK", 1000)
    monkeypatch.setattr(distractors, "pair_scores", lambda *args: (rescored.append(len(args[1])), original(*args))[1])
    among_distractors(probes, labels, others, fprs=(1e-4,), ranks=(1, 5))
    assert len(rescored) == 19  # after the first block, nothing is computed in full
    assert sum(rescored) < 0.01 * len(probes) * len(others)


def test_vectors_on_disk_are_read_a_block_at_a_time(tmp_path):
    probes, labels, others = crowd(strangers=5000)
    np.save(tmp_path / "others.npy", others.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "others.npy", mmap_mode="c"))
    assert among_distractors(probes, labels, mapped) == among_distractors(probes, labels, others)


def test_progress_is_told(monkeypatch):
    told = []

    class Meter:
        def __init__(self, *what):
            told.append(what)

        def __enter__(self):
            return told.append

        def __exit__(self, *_):
            pass

    among_distractors(*crowd(strangers=5000), progress=Meter)
    assert told == [("distractors", 5000, "vectors"), 4096, 904]


def test_what_cannot_be_searched(monkeypatch):
    probes, labels, others = crowd()
    with pytest.raises(DataError, match="0 pairs of one person and 900 distractors"):
        among_distractors(probes, torch.arange(len(labels)), others)
    with pytest.raises(DataError, match="and 0 distractors"):
        among_distractors(probes, labels, others[:0])
    monkeypatch.setattr(distractors, "HELD", 100)
    with pytest.raises(ConfigError, match="allows 217 false positives, and 100 can be held"):
        among_distractors(probes, labels, others, fprs=(0.01,))
