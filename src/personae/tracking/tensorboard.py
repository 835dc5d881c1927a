"""TensorBoard: `tensorboard --logdir RUN/tracking/tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from personae.tracking.tracker import Tracker


class TensorBoard(Tracker):
    """A scalar for each figure, in event files inside the run's folder."""

    name: ClassVar[str] = "tensorboard"
    module: ClassVar[str] = "tensorboard"

    def __init__(self, folder: Path, experiment: str) -> None:  # noqa: ARG002 - TensorBoard goes by folders
        from torch.utils.tensorboard import SummaryWriter  # a second to import, and an extra

        self._writer = SummaryWriter(str(folder))

    def log(self, figures: Mapping[str, float], round_: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
