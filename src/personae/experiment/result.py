"""What came of a run, for Python and notebooks."""

from collections.abc import Callable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.core.events import Event
from personae.errors import ConfigError
from personae.progress import Progress, silent
from personae.report.html import page
from personae.report.records import Figure, Run, read_figures, read_run

if TYPE_CHECKING:
    from personae.experiment.model import Model

Callback = Callable[[Event], object]
"""Gets each event (`personae.core.events`) as soon as its round is safely on disk."""


class StopRun(Exception):
    """A callback raises it to end a run after the round that it was told of; the run can be resumed."""


class RunResult:
    """A run's folder, finished or not: its figures, its models and its report. A notebook shows the report."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        read_run(self.folder)  # says so if it is none

    def __repr__(self) -> str:
        return f"RunResult({str(self.folder)!r})"

    @property
    def finished(self) -> bool:
        return not self._run.unfinished

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self._run.stages)

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def figures(self) -> list[Figure]:
        """Every figure by stage, round and client, in the order in which they came."""
        return read_figures(self.folder)

    def frame(self) -> Any:
        """The same as a DataFrame of pandas, which has to be installed for it."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "pandas is not installed (pip install 'personae[pandas]'); `figures` has the same as a list"
            ) from error
        return pandas.DataFrame(list(map(asdict, self.figures)), columns=list(Figure.__annotations__))

    def model(
        self, stage: str | None = None, *, client: str | None = None, device: str = "cpu", progress: Progress = silent
    ) -> "Model":
        """The shared model after a stage, by default the last finished one, or a client's personal model."""
        from personae.experiment.model import load_model  # it knows how runs are made, and they end with a result

        return load_model(self.folder, stage, client=client, device=device, progress=progress)

    def _repr_html_(self) -> str:
        """The report in a frame of its own: its style is not the notebook's."""
        content = self.report.read_text() if self.report.is_file() else page(self._run)
        return f'<iframe srcdoc="{escape(content)}" style="width: 100%; height: 40em; border: 0"></iframe>'

    @property
    def _run(self) -> Run:
        return read_run(self.folder)
