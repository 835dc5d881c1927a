"""`personae` at a client whose work fails with a person's name in the error, and that is gone after that."""

import os
from typing import Any

from personae.__main__ import main
from personae.deployment.connection import Asked, Connection
from personae.runtime.host import ClientHost

answer = Connection.answer


def train(self: ClientHost, request: Any) -> Any:
    raise FileNotFoundError(2, "No such file or directory", f"/srv/faces/{os.environ['SOMEBODY']}/1.jpg")


def last_answer(self: Connection, asked: Asked, content: bytes) -> None:
    answer(self, asked, content)
    if b'"task": "train"' in asked.frame:
        os._exit(1)


ClientHost._train = train
Connection.answer = last_answer
main()
