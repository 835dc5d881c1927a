"""Who calls: the headers by which a client shows that it has a key, made and looked at as Flower does."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from personae.deployment.certs import as_header, private_key, public_key

KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
AHEAD, BEHIND = 5.0, 305.0  # seconds that a caller's clock may differ from ours, and that its call may take
_SIGNED = ec.ECDSA(hashes.SHA256())

UNKNOWN = "the server does not know this client's key; its public half belongs into the server's clients/"


class Signer:
    """A client's key, read once."""

    def __init__(self, key: Path) -> None:
        self._private = private_key(key)
        self._public = as_header(self._private.public_key())

    def headers(self) -> dict[str, str]:
        """Of a call that is made now."""
        time = datetime.now(UTC).isoformat()
        signature = base64.b64encode(self._private.sign(time.encode(), _SIGNED)).decode()
        return {KEY: self._public, TIME: time, SIGNATURE: signature}


def signed(key: Path) -> dict[str, str]:
    """The headers of a single call with this private key."""
    return Signer(key).headers()


@dataclass(frozen=True)
class Enrolled:
    """The clients that a server knows, by their public keys."""

    names: Mapping[str, str]  # the key as calls carry it -> name
    keys: Mapping[str, ec.EllipticCurvePublicKey]

    @classmethod
    def of(cls, clients: Mapping[str, Path]) -> "Enrolled":
        keys = {name: public_key(path) for name, path in clients.items()}
        return cls({as_header(key): name for name, key in keys.items()}, keys)

    def caller(self, headers: Mapping[str, str]) -> str | None:
        """Whose key the call carries; that does not mean that it comes from there."""
        return self.names.get(headers.get(KEY, ""))

    def objection(self, name: str, headers: Mapping[str, str]) -> str | None:
        """What is wrong with a call that carries this client's key; None if nothing is."""
        try:
            time = headers[TIME]
            signature = base64.b64decode(headers[SIGNATURE], validate=True)
            self.keys[name].verify(signature, time.encode("ascii"), _SIGNED)
            age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        except (KeyError, ValueError, TypeError, InvalidSignature, binascii.Error):
            return "its call is not signed with its key"
        if not -AHEAD < age < BEHIND:
            off = f"{abs(age):.0f} seconds {'ahead of' if age < 0 else 'behind'}"
            return f"its clock is {off} the server's; set both by a time server"
        return None
