"""Sums of vectors under masks that cancel: what hides a vector, and what opens the sum.

Bonawitz et al., Practical Secure Aggregation (2017), with neighbourhoods as in SecAgg+ (Bell et al., 2020). Of client u
with neighbours N(u), in numbers modulo 2^64:

masked_u = x_u + PRG(b_u) + sum of PRG(s_uv) over v in N(u) with v > u - sum of PRG(s_uv) over v in N(u) with v < u

b_u is u's own. s_uv is agreed between u and v from their keys, so that the masks of a pair cancel in a sum that has
both. Every client deals Shamir shares of b_u and of its secret key to its neighbours. Of a client in the sum they open
b_u, of one that vanished its key, and never both.

Shamir's shares, key agreement and encryption are those that Flower ships for this. Its generator of masks is not used:
that folds a key to 32 bits and begins a Mersenne Twister with them, and whoever tries all of them has the mask. Masks
here are the key stream of AES-256 in counter mode. Nor is its quantisation, which draws from NumPy's global generator:
a run would not end with the same bits twice.
"""

import base64
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import ModuleType
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from personae.errors import ConfigError, Diverged

FRACTION = 24  # binary places of the numbers that are added up
SECRET, PUBLIC, SHARE = 32, 33, 52  # bytes of a secret (a key of the curve P-256, or a seed), a public key, a share
SEALED = 185  # bytes of two shares for one neighbour, encrypted
_LARGEST = 2.0**62  # no sum is this large, so that one whose masks are still there is noticed
_BLOCK = 1 << 17  # numbers that are masked at a time, so that they stay in the cache

Numbers = npt.NDArray[np.int64]


def require_flower() -> None:
    """That what the sums are built on is installed."""
    try:
        _shamir()
    except ImportError as error:
        raise ConfigError(
            f"secret sums need Flower's building blocks ({error}); install them with: pip install 'personae[flower]'"
        ) from error


# ------------------------------------------------------------------------------------------------------- whole numbers


def fixed(values: Tensor, clients: int) -> Numbers:
    """Values as whole numbers of units of 2^-24, each off by half a unit at most. So many clients' may be added up."""
    scaled = values.detach().cpu().double() * 2.0**FRACTION
    largest = float(scaled.abs().max()) if len(scaled) else 0.0
    if not math.isfinite(largest):
        raise Diverged("the update is not finite, so it cannot be added up")
    if largest >= _LARGEST / clients:
        raise Diverged(
            f"a value of {largest / 2.0**FRACTION:.3g}, times the client's weight, is too large for a secret sum of "
            f"{clients} clients; lower lr, or weigh clients alike"
        )
    return cast(Numbers, scaled.round_().to(torch.int64).numpy())


def within(total: Numbers) -> bool:
    """Whether it can be a sum of such numbers. Of a hundred uniform ones, hardly any hundred would pass."""
    return bool(total.min() > -_LARGEST and total.max() < _LARGEST) if len(total) else True


def floating(total: Numbers) -> Tensor:
    """The sum as float64."""
    return torch.from_numpy(total).double() * 2.0**-FRACTION


def mean_error(clients: int, weight: float) -> float:
    """How far a weighted mean can be from the exact one: half a unit of each client, over the sum of weights."""
    return clients * 2.0 ** -(FRACTION + 1) / weight


# ---------------------------------------------------------------------------------------------------------------- masks


def add_mask(numbers: Numbers, key: bytes, sign: int) -> None:
    """Add the mask of a key in place, or take it away; sums go round at 2^64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()  # no key is used twice
    zeros = bytes(8 * _BLOCK)
    change = np.add if sign > 0 else np.subtract
    for start in range(0, len(numbers), _BLOCK):
        part = numbers[start : start + _BLOCK]
        change(part, np.frombuffer(stream.update(zeros[: 8 * len(part)]), dtype="<i8"), out=part)


def new_secret() -> bytes:
    """A secret key of the curve P-256. It comes from the system: the server knows the seed of a run."""
    from cryptography.hazmat.primitives.asymmetric import ec

    number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
    return number.to_bytes(SECRET, "big")


def new_seed() -> bytes:
    return secrets.token_bytes(SECRET)


def public_of(secret: bytes) -> bytes:
    """The public key of a secret one."""
    from cryptography.hazmat.primitives import serialization

    format_ = serialization.PublicFormat.CompressedPoint
    return cast(bytes, _private(secret).public_key().public_bytes(serialization.Encoding.X962, format_))


def is_public(key: bytes) -> bool:
    """Whether these are the bytes of a public key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key)
    except ValueError:
        return False
    return True


def agreed(secret: bytes, public: bytes) -> bytes:
    """The key that two clients have in common, from the secret key of one and the public key of the other."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    return base64.urlsafe_b64decode(_encryption().generate_shared_key(_private(secret), key))


def add_pair_mask(numbers: Numbers, mine: int, other: int, key: bytes, sign: int = 1) -> None:
    """Of two neighbours, the first adds the mask and the second takes it away."""
    add_mask(numbers, key, sign if mine < other else -sign)


# --------------------------------------------------------------------------------------------------------------- shares


def dealt(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """A share for each holder; fewer than the threshold say nothing."""
    if threshold == 1:
        raise ValueError("a secret that any one share opens is none")
    return cast(list[bytes], _shamir().create_shares(secret, threshold, holders))


def opened(shares: Sequence[bytes]) -> bytes:
    """The secret, from as many shares as the threshold says; ValueError if they are not of one secret."""
    return cast(bytes, _shamir().combine_shares(list(shares)))


def seal(key: bytes, sender: int, receiver: int, seed_share: bytes, secret_share: bytes) -> bytes:
    """Both shares for one neighbour, encrypted."""
    plain = _utilities().share_keys_plaintext_concat(sender, receiver, seed_share, secret_share)
    return base64.urlsafe_b64decode(_encryption().encrypt(base64.urlsafe_b64encode(key), plain))


def unseal(key: bytes, sender: int, receiver: int, sealed: bytes) -> tuple[bytes, bytes]:
    """The shares again; ValueError for what is not of this sender for this receiver."""
    from cryptography.fernet import InvalidToken

    try:
        plain = _encryption().decrypt(base64.urlsafe_b64encode(key), base64.urlsafe_b64encode(sealed))
    except InvalidToken as error:
        raise ValueError("it cannot be decrypted") from error
    found = _utilities().share_keys_plaintext_separate(plain)
    if found[:2] != (sender, receiver):
        raise ValueError("it is of another sender, or for another receiver")
    return found[2], found[3]


# ------------------------------------------------------------------------------------------------------- neighbourhoods


@dataclass(frozen=True)
class Circle:
    """Who is whose neighbour: clients stand in a circle, and each has the nearest on either side."""

    order: tuple[int, ...]
    reach: int  # on either side

    @classmethod
    def of(cls, order: Sequence[int], neighbours: int) -> "Circle":
        """With so many neighbours each; 0 for everybody."""
        everybody = len(order) // 2
        return cls(tuple(order), min(neighbours // 2, everybody) if neighbours else everybody)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self.order)}

    def neighbours(self, client: int) -> list[int]:
        """In ascending order, without the client."""
        place, size = self._places[client], len(self.order)
        found = {self.order[(place + step) % size] for step in range(-self.reach, self.reach + 1)}
        return sorted(found - {client})

    def connected(self, clients: set[int]) -> bool:
        """Whether the masks of these clients hold them together: otherwise the sums of parts would be open.

        Two that follow each other in the circle have no mask in common if they are further apart than the reach. At
        one such place the circle becomes a line; at two it falls apart.
        """
        places = sorted(self._places[client] for client in clients)
        if len(places) < 2:
            return True
        gaps = [after - before for before, after in pairwise(places)]
        gaps.append(places[0] + len(self.order) - places[-1])
        return sum(gap > self.reach for gap in gaps) <= 1


def needed(share: float, of: int) -> int:
    """The smallest whole number that is at least this share of a number."""
    return math.ceil(share * of - 1e-9)


def _private(secret: bytes):  # type: ignore[no-untyped-def]  # its type comes with an extra
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP256R1())


def _shamir() -> ModuleType:
    from flwr.common.secure_aggregation.crypto import shamir

    return shamir


def _encryption() -> ModuleType:
    from flwr.common.secure_aggregation.crypto import symmetric_encryption

    return symmetric_encryption


def _utilities() -> ModuleType:
    from flwr.common.secure_aggregation import secaggplus_utils

    return secaggplus_utils
