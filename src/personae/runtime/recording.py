"""What the server received, kept for an audit of the run: the attacker that it measures sees exactly this.

The files hold what is the most telling of all that a run has. They are written only where an experiment asks for them,
nobody but their owner can read them, and `personae purge` may remove them at any time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from personae.core import wire
from personae.core.layout import Layout
from personae.core.message import Broadcast, Message, Trouble
from personae.core.stage import Recipe
from personae.errors import DataError
from personae.files import private_folder, write_bytes
from personae.runtime.seal import sealed, unsealed
from personae.runtime.transport import TRAIN, Answer, Failure, Request, Transport

FOLDER = "audit"  # in that of the run
_MODEL = "model.safetensors"


class Recording:
    """A transport that keeps the updates of some rounds; -1 is the last of a stage."""

    def __init__(self, transport: Transport, run: Path, recipe: Recipe, rounds: Iterable[int]) -> None:
        self._transport, self._folder = transport, run / FOLDER
        self.problems = transport.problems
        self._wanted = {
            (stage.name, number if number > 0 else stage.rounds + 1 + number) for stage in recipe for number in rounds
        }

    def exchange(self, requests: Iterable[Request]) -> Iterator[Answer | Failure]:
        asked: dict[str, Request] = {}

        def noted() -> Iterator[Request]:
            for request in requests:
                if request.task == TRAIN and (request.stage, request.round) in self._wanted:
                    assert isinstance(request.down, Broadcast)
                    if not asked:
                        self._write(request, _MODEL, Broadcast(model=request.down.model))
                    asked[request.client.name] = request
                yield request

        for answer in self._transport.exchange(noted()):
            if isinstance(answer, Answer) and answer.client.name in asked and not isinstance(answer.message, Trouble):
                self._write(asked[answer.client.name], _file(answer.client.name), answer.message)
            yield answer

    def settle(self) -> None:
        self._transport.settle()

    def close(self) -> None:
        self._transport.close()

    def _write(self, request: Request, name: str, message: Message) -> None:
        place = {"stage": request.stage, "round": request.round, "client": request.client.name}
        path = _round(self._folder, request.stage, request.round) / name
        private_folder(self._folder)
        write_bytes(path, *sealed(wire.encode(message), place), private=True)


@dataclass(frozen=True)
class Recorded:
    """One round of a stage as it was kept: the model that was sent, and what came back."""

    folder: Path
    stage: str
    round: int

    def model(self, layout: Layout) -> Broadcast:
        return _read(self.folder / _MODEL, Broadcast, layout)

    def update(self, client: str, kind: type[Message], layout: Layout) -> Message | None:
        """What this client sent; None where nothing was kept, or the client told of trouble."""
        path = self.folder / _file(client)
        return _read(path, kind, layout) if path.is_file() else None


def recorded(run: Path, stage: str) -> list[Recorded]:
    """The rounds of a stage of which something was kept."""
    folders = (run / FOLDER / quote(stage, safe="")).glob("*/" + _MODEL)
    return [Recorded(path.parent, stage, int(path.parent.name)) for path in sorted(folders)]


def kept_of(run: Path, client: str) -> list[Path]:
    """Every file in which something of this client was kept."""
    return sorted((run / FOLDER).glob(f"*/*/{_file(client)}"))


def _read(path: Path, kind: type[wire.RecordT], layout: Layout) -> wire.RecordT:
    try:
        return wire.decode(kind, unsealed(path.read_bytes())[0], layout)
    except (wire.WireError, OSError) as error:
        raise DataError(f"{path}: what was kept for the audit cannot be read ({error}); run it again") from error


def _round(folder: Path, stage: str, number: int) -> Path:
    return folder / quote(stage, safe="") / f"{number:06d}"


def _file(client: str) -> str:
    """No name leads out of the folder, or is that of the model."""
    return f"of-{quote(client, safe='').replace('.', '%2E')}.safetensors"
