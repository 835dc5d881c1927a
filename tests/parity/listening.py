"""`personae` at a server whose gate writes down whatever clients say to it."""

import os
from pathlib import Path
from typing import Any

from personae.__main__ import main
from personae.deployment.gate import Gate

passed_on = Gate._pass_on


async def heard(self: Gate, traffic: Any, request: Any, body: bytes) -> Any:
    with (Path(os.environ["LAB"]) / "heard").open("ab") as file:
        file.write(repr(request.headers.raw).encode() + body)
    return await passed_on(self, traffic, request, body)


Gate._pass_on = heard
main()
