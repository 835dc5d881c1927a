"""Sums under masks: whole numbers, keys, shares, neighbourhoods."""

import itertools
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import ConfigError, Diverged
from personae.parts import secret_sums as sums
from personae.parts.secret_sums import Circle


def test_whole_numbers_are_off_by_half_a_unit_at_most() -> None:
    values = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 100
    back = sums.floating(sums.fixed(values, 3))
    assert (back - values).abs().max() <= 2.0**-25
    assert (back - values).abs().max() > 2.0**-27  # and the bound is not loose


@pytest.mark.parametrize("clients", [3, 40, 1000])
def test_what_does_not_fit_is_refused_and_what_fits_cannot_overflow(clients: int) -> None:
    largest = 2.0**38 / clients
    numbers = sums.fixed(torch.tensor([largest * 0.999, -largest * 0.999], dtype=torch.float64), clients)
    total = np.zeros(2, dtype=np.int64)
    for _ in range(clients):
        total += numbers
    assert sums.within(total)
    assert [int(each) for each in total] == [clients * int(each) for each in numbers]  # Python's integers have no end
    with pytest.raises(Diverged, match="too large for a secret sum"):
        sums.fixed(torch.tensor([largest]), clients)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(Diverged, match="not finite"):
            sums.fixed(torch.tensor([1.0, bad]), clients)


def test_masks_are_the_key_stream_of_aes() -> None:
    """The first block of counter mode from zero is the encryption of zeros."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16))
    numbers = np.zeros(2, dtype=np.int64)
    sums.add_mask(numbers, key, 1)
    assert numbers.tobytes() == block


def test_a_mask_is_the_same_however_long_the_vector_and_goes_away_again() -> None:
    key = sums.new_seed()
    long, short = np.zeros(300_000, dtype=np.int64), np.zeros(1000, dtype=np.int64)
    sums.add_mask(long, key, 1)
    sums.add_mask(short, key, 1)
    assert np.array_equal(long[:1000], short)
    assert len(np.unique(long)) == len(long)
    sums.add_mask(long, key, -1)
    assert not long.any()


def test_two_clients_agree_and_a_third_does_not_know() -> None:
    first, second, third = (sums.new_secret() for _ in range(3))
    key = sums.agreed(first, sums.public_of(second))
    assert key == sums.agreed(second, sums.public_of(first))
    assert key != sums.agreed(third, sums.public_of(first))
    assert sums.is_public(sums.public_of(first))
    assert not sums.is_public(bytes(33))
    assert not sums.is_public(b"short")


def test_any_shares_up_to_the_threshold_open_a_secret_and_fewer_do_not() -> None:
    secret = sums.new_seed()
    shares = sums.dealt(secret, 3, 5)
    for some in itertools.combinations(shares, 3):
        assert sums.opened(some) == secret
    for some in itertools.combinations(shares, 2):
        with suppress(ValueError):
            assert sums.opened(some) != secret
    assert {len(share) for share in shares} == {sums.SHARE}


def test_shares_are_read_by_the_one_they_are_for() -> None:
    key, other = sums.new_seed(), sums.new_seed()
    shares = sums.dealt(sums.new_seed(), 2, 2)
    sealed = sums.seal(key, 4, 7, *shares)
    assert len(sealed) == sums.SEALED
    assert sums.unseal(key, 4, 7, sealed) == tuple(shares)
    for wrong in ((other, 4, 7, sealed), (key, 7, 4, sealed), (key, 4, 7, sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(ValueError, match=r"decrypted|another sender"):
            sums.unseal(*wrong)


@given(st.integers(3, 12), st.integers(0, 6), st.data())
def test_a_circle_is_connected_if_one_can_walk_through_it(size: int, pairs: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(size)))
    circle = Circle.of(order, 2 * pairs)
    for client in range(size):
        near = circle.neighbours(client)
        assert client not in near
        assert all(client in circle.neighbours(other) for other in near)
        assert len(near) == (size - 1 if not pairs else min(2 * pairs, size - 1))
    present = data.draw(st.sets(st.sampled_from(range(size)), min_size=1))
    reached, edge = {min(present)}, [min(present)]
    while edge:
        found = [other for other in circle.neighbours(edge.pop()) if other in present and other not in reached]
        reached |= set(found)
        edge += found
    assert circle.connected(present) == (reached == present)


def test_without_flower_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    sums.require_flower()
    for name in [name for name in sys.modules if name.startswith("flwr.common.secure_aggregation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr.common.secure_aggregation", None)
    with pytest.raises(ConfigError, match=r"pip install 'personae\[flower\]'"):
        sums.require_flower()
