"""The Flower app of a run, generated: what `personae serve` submits, and `flwr run` can submit as well."""

import json
from pathlib import Path

from personae.files import write_text

PACKAGE = "personae_run"

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "personae-run"
version = "1.0.0"
description = "A run of personae. The server needs personae[flower]; nothing is installed at run time."
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
"""

_SERVER = '''\
"""The server of a run: the engine, with the grid as its transport."""

from personae.deployment.server import main
from personae.runtime.flower import server_app

app = server_app(main)
'''

# Nobody runs this: clients run what is installed there, and fetch nothing of an app.
_CLIENT = '''\
"""A client for Flower, which wants to see one."""

from flwr.clientapp import ClientApp

app = ClientApp()
'''


def write_app(folder: Path, out: Path) -> None:
    """The app of a run; at the server, the run is in the folder `out`."""
    project = _PROJECT.format(package=PACKAGE, out=json.dumps(str(out)))
    write_text(folder / "pyproject.toml", project)
    write_text(folder / PACKAGE / "__init__.py", "")
    write_text(folder / PACKAGE / "server.py", _SERVER)
    write_text(folder / PACKAGE / "client.py", _CLIENT)
