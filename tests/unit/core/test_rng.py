"""Randomness from words alone."""

import torch

from personae.core.rng import generator, seed_of


def test_the_same_words_give_the_same_numbers_here_and_everywhere():
    assert seed_of(1, "federate", 2, "ann") == seed_of(1, "federate", 2, "ann")
    assert seed_of(0) == 3581690635855307741  # pinned: seeds are part of what a run means
    first = torch.rand(4, generator=generator(1, "federate", 2, "ann"))
    assert torch.equal(first, torch.rand(4, generator=generator(1, "federate", 2, "ann")))


def test_words_are_not_run_together_and_types_matter():
    words = [(1, 2), (12,), ("1", 2), (1, "2"), ("12",), ("1", "2"), (2, 1), (1, 2, ""), (), ("",), ("", "")]
    assert len({seed_of(*each) for each in words}) == len(words)


def test_a_word_cannot_imitate_several():
    assert seed_of("a", "b") != seed_of("a\x1fstr:b")


def test_seeds_fit_into_63_bits_and_use_them():
    seeds = [seed_of(index) for index in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 1000
    for bit in range(63):
        assert 400 < sum(seed >> bit & 1 for seed in seeds) < 600  # six standard deviations


def test_neighbouring_streams_are_unrelated():
    streams = torch.stack([torch.randn(4000, generator=generator(7, "stage", round_, "ann")) for round_ in range(6)])
    correlation = torch.corrcoef(streams) - torch.eye(6)
    assert correlation.abs().max() < 5 / 4000**0.5
