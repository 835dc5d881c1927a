"""A client's program for one request, in the place of Flower's: it runs the code that is installed here.

Flower sends clients an app with every run, and a SuperNode starts a process that unpacks and loads it. `programs` are
put before Flower's own on the path of the SuperNode. Of what the server sends, that process then takes the message and
the configuration of the run, both of which are data, and leaves the app alone.

One of these processes starts for every request, so it loads nothing but Flower and passes the bytes on.
"""

import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp as runtime

app = ClientApp()

_RUNS_INSTALLED_CODE = "#!{python}\nfrom personae.runtime.relay import main\n\nmain()\n"
_REFUSES = "#!{python}\nraise SystemExit('a client of personae runs no program of this kind')\n"


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


def main() -> None:
    """Flower's program without the four things that it does with the app of the server."""
    stand_ins: dict[str, Any] = {
        "install_from_fab": lambda *_, **__: None,
        "install_app_dependencies": lambda *_, **__: None,
        "get_project_dir": lambda *_: Path(),
        "get_load_client_app_fn": lambda **_: lambda *_: app,
    }
    for name, stand_in in stand_ins.items():
        if not hasattr(runtime, name):
            raise SystemExit(f"this version of Flower has no {name}: nothing is run; pip install 'personae[flower]'")
        setattr(runtime, name, stand_in)
    flwr_clientapp()


def write_programs(folder: Path) -> None:
    """Programs of the names that a SuperNode starts: the one that clients need is ours, and the others refuse."""
    for kind, name in TASK_TYPE_TO_COMMAND.items():
        content = _RUNS_INSTALLED_CODE if kind == TaskType.CLIENT_APP else _REFUSES
        (folder / name).write_text(content.format(python=sys.executable))
        (folder / name).chmod(0o700)
