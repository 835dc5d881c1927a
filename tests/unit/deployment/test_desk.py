"""What a desk makes of requests that nobody should send."""

import pickle
from pathlib import Path

import pytest

from personae.deployment.desk import Desk
from personae.runtime.problems import ProblemLog


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    def nowhere(job: object) -> None:
        raise AssertionError(job)

    return Desk(nowhere, lambda line: None, ProblemLog(tmp_path / "log"))


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_what_is_no_text_no_job_or_a_pickle_is_answered_with_a_code(desk: Desk, tmp_path: Path):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for told, content in ((b"{}", b""), (b"\xff\xfe", b"\0"), (bomb, bomb)):
        assert b"trouble" in desk.answer(told, content)
    assert not (tmp_path / "exploded").exists()
