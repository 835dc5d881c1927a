"""The Flower app of a run, generated: what `personae serve` submits, and `flwr run` can submit as well."""

import json
from pathlib import Path

from personae.deployment.job import Job
from personae.files import write_bytes, write_text

PACKAGE = "personae_run"

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "personae-run"
version = "1.0.0"
description = "A run of personae. Client and server need personae[flower]; nothing is installed at run time."
license = "MIT"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "personae"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
out = {out}
job = {job}
"""

_SERVER = '''\
"""The server of a run: the engine, with the grid as its transport."""

from personae.deployment.server import main
from personae.runtime.flower import server_app

app = server_app(main)
'''

# Clients do not run this: `personae join` runs what is installed there, whatever a server sends.
_CLIENT = '''\
"""A client of a run, for Flower, which wants to see one."""

from personae.runtime.relay import app

__all__ = ["app"]
'''


def write_app(folder: Path, job: Job, out: Path) -> None:
    """The app of this run; at the server, the run is in the folder `out`."""
    project = _PROJECT.format(package=PACKAGE, out=json.dumps(str(out)), job=json.dumps(job.text()))
    write_bytes(folder / "pyproject.toml", project.encode(), private=True)  # an experiment may have secrets
    write_text(folder / PACKAGE / "__init__.py", "")
    write_text(folder / PACKAGE / "server.py", _SERVER)
    write_text(folder / PACKAGE / "client.py", _CLIENT)
