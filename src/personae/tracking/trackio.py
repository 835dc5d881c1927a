"""trackio: in its own folder (`TRACKIO_DIR`), or at the server or Space that its settings name; see `trackio show`."""

import contextlib
import io
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from personae.files import write_text
from personae.tracking.tracker import Tracker


class Trackio(Tracker):
    """One run of trackio for a run, in the project of the experiment's name; a resumed run goes on with its own."""

    name: ClassVar[str] = "trackio"
    module: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    def __init__(self, folder: Path, experiment: str) -> None:
        import trackio

        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "run"
        if not known.is_file():
            write_text(known, f"{experiment}-{uuid.uuid4().hex[:8]}\n")
        name = known.read_text().strip()
        with contextlib.redirect_stdout(io.StringIO()):  # results are printed there, and it says so much
            self._run = trackio.init(
                experiment, name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    def log(self, figures: Mapping[str, float], round_: int) -> None:
        self._run.log(dict(figures), step=round_)

    def close(self) -> None:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()
