"""The gate's key, made known to a SuperLink on this machine, as `flwr supernode register` does it."""

from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from personae.errors import ConfigError


def enrol(superlink: str, authority: Path, name: str, key: EllipticCurvePublicKey) -> None:
    """Let a node with this key in. The SuperLink lets in nobody else."""
    client = ControlHttpClient.from_server_address(
        superlink,
        insecure=False,
        root_certificates=authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    with client:
        try:
            client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))
        except httpx.HTTPStatusError as error:
            raise ConfigError(f"{name}: the SuperLink does not take its key ({error.response.text[:300]})") from error
