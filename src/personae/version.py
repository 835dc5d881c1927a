"""Which version this is."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from personae.errors import ConfigError

INSTALL = "in the source tree: pip install --editable ."


def version() -> str:
    try:
        return version_of("personae")
    except PackageNotFoundError as error:
        raise ConfigError(f"personae was never installed here, and so has no version; {INSTALL}") from error
