"""A secret that the clients of a network share, and of which the server has a digest alone."""

import json
import secrets
from pathlib import Path

from personae.errors import ConfigError
from personae.experiment.concealed import concealed, is_concealed
from personae.experiment.config import Experiment, parse_experiment
from personae.files import write_bytes

SHORTEST = 16  # characters: a server could try all shorter ones


def make_secret(path: Path) -> str:
    """A new secret in this file, or the one that is there; gives its digest, for the server."""
    if not path.exists():
        write_bytes(path, secrets.token_urlsafe(32).encode() + b"\n", private=True)
    return concealed(read_secret(path))


def read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: this secret cannot be read ({error}); personae secret makes one") from error
    if len(secret) < SHORTEST or is_concealed(secret):
        raise ConfigError(f"{path}: this is not a secret of at least {SHORTEST} characters; personae secret makes one")
    return secret


def require_digests(experiment: Experiment) -> None:
    """That a server has no secret of its clients."""
    for stage in experiment.stages:
        for name, secret in stage.secrets().items():
            if not is_concealed(secret):
                raise ConfigError(
                    f"stages.{stage.name}.algorithm.{name}: clients share this secret, and the server may not have it; "
                    f'write {name} = "{concealed(secret)}", and let clients join with --secret FILE'
                )


def revealed(experiment: Experiment, secret: str | None) -> Experiment:
    """A server's experiment, with the secret in the place of its digests."""
    plain = json.loads(experiment.model_dump_json(exclude_unset=True))
    for stage, table in zip(experiment.stages, plain["stages"], strict=True):
        for name, digest in stage.secrets().items():
            place = f"stages.{stage.name}.algorithm.{name}"
            if secret is None:
                raise ConfigError(f"{place}: this run takes a secret that its clients share; join with --secret FILE")
            if digest != concealed(secret):
                raise ConfigError(f"{place}: the server has the digest of another secret than that of --secret")
            table["algorithm"][name] = secret
    return parse_experiment(plain, "the server's experiment", trusted=False)
