"""`personae` at a client whose work fails with a person's name in the error, and whose desk is gone after that."""

import os
from pathlib import Path
from typing import Any

from personae.__main__ import main
from personae.deployment import desk, join
from personae.runtime.host import ClientHost


class Vanishing(desk.Desk):
    """It can be asked to train once."""

    def _answer(self, told: bytes, content: bytes) -> bytes:
        answer = super()._answer(told, content)
        if b'"task": "train"' in content:
            Path(self._path).unlink()
        return answer


def train(self: ClientHost, request: Any) -> Any:
    raise FileNotFoundError(2, "No such file or directory", f"/srv/faces/{os.environ['SOMEBODY']}/1.jpg")


ClientHost._train = train
join.Desk = Vanishing
main()
