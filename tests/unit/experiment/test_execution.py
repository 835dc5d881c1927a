"""What a machine gives to a run."""

import pytest

from personae.errors import ConfigError
from personae.experiment.execution import Execution
from personae.progress import once


def test_workers_and_devices_that_there_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="workers is 0; there must be at least one"):
        Execution(workers=0)
    with pytest.raises(ConfigError, match="device is 'tpu'; it must be cpu or cuda"):
        Execution(device="tpu")
    assert Execution(device="cuda:1").device == "cuda:1"


def test_the_same_line_is_told_once():
    heard: list[str] = []
    tell = once(heard.append)
    for line in ("one", "two", "one"):
        tell(line)
    assert heard == ["one", "two"]
