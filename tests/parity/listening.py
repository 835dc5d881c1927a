"""`personae` at a server whose gate writes down whatever clients say to it."""

import os
from pathlib import Path
from typing import Any

from personae.__main__ import main
from personae.deployment.gate import Gate

taken = Gate._read


async def heard(self: Gate, name: str, request: Any, slip: Any) -> None:
    await taken(self, name, request, slip)
    with (Path(os.environ["LAB"]) / "heard").open("ab") as file:
        file.write(repr(request.headers.raw).encode() + slip.read(0, slip.size))


Gate._read = heard
main()
