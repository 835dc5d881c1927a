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

# One of these processes starts for every request, so it loads nothing but Flower and passes the bytes on.
_CLIENT = '''\
"""A client of a run: it hands a request to the desk that `personae join` keeps open, and returns the answer."""

import traceback
from multiprocessing.connection import Client
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def work(message: Message, context: Context) -> Message:
    try:
        request = message.content.array_records["frame"]["frame"].data
        answer = asked(str(context.node_config["desk"]), str(context.run_config["job"]).encode(), request)
    except Exception:
        traceback.print_exc()  # for the log of this client
        raise RuntimeError("the desk did not answer") from None  # Flower sends these words to the server: no others
    record = ArrayRecord({"frame": Array("uint8", (len(answer),), "frame", answer)})
    return Message(RecordDict({"frame": record}), reply_to=message)


def asked(path: str, *parts: bytes) -> bytes:
    """What the desk answers."""
    with Client(path, "AF_UNIX", authkey=Path(path + ".key").read_bytes()) as desk:
        for part in parts:
            desk.send_bytes(part)
        return desk.recv_bytes()  # EOFError where the desk closed before it answered
'''


def write_app(folder: Path, job: Job, out: Path) -> None:
    """The app of this run; at the server, the run is in the folder `out`."""
    project = _PROJECT.format(package=PACKAGE, out=json.dumps(str(out)), job=json.dumps(job.text()))
    write_bytes(folder / "pyproject.toml", project.encode(), private=True)  # an experiment may have secrets
    write_text(folder / PACKAGE / "__init__.py", "")
    write_text(folder / PACKAGE / "server.py", _SERVER)
    write_text(folder / PACKAGE / "client.py", _CLIENT)
