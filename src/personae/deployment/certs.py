"""Certificates and keys for tests and labs: an authority, a server, and a key for each client."""

import base64
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from personae.errors import ConfigError
from personae.files import write_bytes

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LIFETIME = datetime.timedelta(days=825)  # the most that some systems accept of a server
_OTHER_KIND = "not an ECDSA key; make one with personae certs, or ssh-keygen -t ecdsa -b 256"
LOOPBACK = ("localhost", "127.0.0.1")


def make_certificates(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[Path]:
    """What is missing in the folder is made, what is there stays; gives what was made.

    `ca.key` stays with whoever runs this. The folder `server` goes to the server: `ca.crt`, `server.crt`, `server.key`
    and the clients' public keys in `clients/`. The folder of a client goes to that client: `ca.crt` and `key`.
    """
    for name in clients:
        if not NAME.fullmatch(name) or name == "server":
            raise ConfigError(f"a client cannot be called {name!r}: letters, digits, . _ - and not `server`")
    made = _authority(folder)
    server = folder / "server"
    if hosts or not (server / "server.crt").exists():
        made += _server(folder, hosts)
    for name in clients:
        made += _client(folder, name)
    return made


def enrolled(folder: Path) -> dict[str, Path]:
    """Client -> public key, in the order of their names, of a server's folder."""
    keys = {path.stem: path for path in sorted((folder / "clients").glob("*.pub"))}
    if not keys:
        raise ConfigError(
            f"{folder}: there is no public key of any client in clients/; make them with personae certs, "
            "or put each client's NAME.pub there"
        )
    for name in keys:
        if not NAME.fullmatch(name):
            raise ConfigError(f"{keys[name]}: a client cannot be called {name!r}: letters, digits, . _ -")
    return keys


def public_key(path: Path) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a public key in OpenSSH's format ({error})") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ConfigError(f"{path}: {_OTHER_KIND}")
    return key


def private_key(path: Path) -> EllipticCurvePrivateKey:
    """A client's, which nobody else may be able to read."""
    require_secret(path)
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key in OpenSSH's format ({error})") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: {_OTHER_KIND}")
    return key


def as_header(key: EllipticCurvePublicKey) -> str:
    """A public key as calls carry it."""
    content = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(content).decode()


def require_secret(path: Path) -> None:
    """That nobody but the owner can read a key; whose it is not cannot change that, and is not asked."""
    found = path.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        raise ConfigError(f"{path}: others on this machine may read this key; chmod 600 {path}")


def needed(folder: Path, *names: str) -> tuple[Path, ...]:
    """These files of a folder, all of which are there."""
    for name in names:
        if not (folder / name).is_file():
            raise ConfigError(f"{folder / name}: there is no such file; personae certs makes such folders")
    return tuple(folder / name for name in names)


def _authority(folder: Path) -> list[Path]:
    if (folder / "ca.key").exists():
        return []
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "personae lab authority")])
    builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return [_write_key(folder / "ca.key", key), _write(folder / "ca.crt", _signed(builder, key))]


def _server(folder: Path, hosts: Sequence[str]) -> list[Path]:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = _new_key()
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (*hosts, *LOOPBACK)[0][:64])])
    builder = _builder(subject, authority.subject, key)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),  # type: ignore[arg-type]
        critical=False,
    )
    (folder / "server" / "clients").mkdir(parents=True, exist_ok=True)
    return [
        _write(folder / "server" / "ca.crt", (folder / "ca.crt").read_bytes()),
        _write_key(folder / "server" / "server.key", key),
        _write(folder / "server" / "server.crt", _signed(builder, authority_key)),  # type: ignore[arg-type]
    ]


def _client(folder: Path, name: str) -> list[Path]:
    if (folder / name / "key").exists():
        return []
    key = _new_key()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return [
        _write(folder / name / "ca.crt", (folder / "ca.crt").read_bytes()),
        _write(folder / name / "key", private, secret=True),
        _write(folder / "server" / "clients" / f"{name}.pub", public + f" {name}\n".encode()),
    ]


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + LIFETIME)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"--host {host}: this is neither an address nor a name ({error})") from error


def _new_key() -> EllipticCurvePrivateKey:
    """Of P-256: a call is signed once and looked at twice, which with P-384 takes eight times as long."""
    return ec.generate_private_key(ec.SECP256R1())


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> Path:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _write(path, content, secret=True)


def _write(path: Path, content: bytes, *, secret: bool = False) -> Path:
    write_bytes(path, content, private=secret)
    return path
