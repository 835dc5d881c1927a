"""The lines that a run writes: each keeps its bytes, is read back as itself, and is refused where it is damaged."""

import json

import pytest

from personae.core.events import (
    Entry,
    GlobalEvaluation,
    PersonalEvaluation,
    RoundTime,
    RoundWarning,
    TrainingRound,
    Transfer,
    entries,
    events,
)
from personae.errors import DataError

PLACE = {"stage": "train", "round": 2}
# A line of each kind as version 0.1 wrote it.
LINES: list[tuple[Entry, str]] = [
    (
        TrainingRound(
            stage="train",
            round=2,
            participants=("a", "b"),
            rejected={"b": "it claims 0 samples"},
            failed={},
            scalars={"loss": 1.5},
        ),
        '{"event": "round", "stage": "train", "round": 2, "participants": ["a", "b"], '
        '"rejected": {"b": "it claims 0 samples"}, "failed": {}, "scalars": {"loss": 1.5}}\n',
    ),
    (
        TrainingRound(
            stage="train",
            round=2,
            participants=(),
            rejected={},
            failed={},
            scalars={},
            clients={"a": {"clusters/count": 3.0}},
        ),
        '{"event": "round", "stage": "train", "round": 2, "participants": [], "rejected": {}, "failed": {}, '
        '"scalars": {}, "clients": {"a": {"clusters/count": 3.0}}}\n',
    ),
    (
        GlobalEvaluation(stage="train", round=2, metrics={"heldout/rank1": 0.5}),
        '{"event": "global", "stage": "train", "round": 2, "metrics": {"heldout/rank1": 0.5}}\n',
    ),
    (
        PersonalEvaluation(stage="train", round=2, clients={"a": {"global/rank1": 1.0}}, new=("a",)),
        '{"event": "personal", "stage": "train", "round": 2, "clients": {"a": {"global/rank1": 1.0}}, "new": ["a"]}\n',
    ),
    (
        RoundWarning(stage="train", round=2, text="the loss rose"),
        '{"event": "warning", "stage": "train", "round": 2, "text": "the loss rose"}\n',
    ),
    (
        Transfer(stage="train", round=2, client="a", direction="up", payload="Count", bytes=8),
        '{"stage": "train", "round": 2, "client": "a", "direction": "up", "payload": "Count", "bytes": 8}\n',
    ),
    (RoundTime(stage="train", round=2, seconds=0.25), '{"stage": "train", "round": 2, "seconds": 0.25}\n'),
]


def read(kind: type[Entry], line: bytes) -> list[Entry]:
    return list(events([line], "here") if kind.record == "metrics" else entries(kind, [line], "here"))


@pytest.mark.parametrize(("entry", "line"), LINES, ids=lambda item: type(item).__name__)
def test_a_line_keeps_its_bytes_and_is_read_as_what_was_written(entry: Entry, line: str):
    assert entry.line() == line.encode()
    assert read(type(entry), line.encode()) == [entry]


@pytest.mark.parametrize(("entry", "line"), LINES, ids=lambda item: type(item).__name__)
def test_a_line_with_a_key_more_or_less_is_refused(entry: Entry, line: str):
    whole = json.loads(line)
    with pytest.raises(DataError, match=r"^here, line 1, cannot be read: 'extra' is not known; was it written by"):
        read(type(entry), json.dumps({**whole, "extra": 1}).encode() + b"\n")
    for key in whole.keys() - {"clients", "new"}:
        rest = {name: value for name, value in whole.items() if name != key}
        with pytest.raises(DataError, match=f"^here, line 1, cannot be read: '{key}' is missing$"):
            read(type(entry), json.dumps(rest).encode() + b"\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"event": "party", **PLACE}, "there is no event 'party'; was it written by another version of personae?"),
        ({"event": "warning", "stage": "train", "round": "2", "text": ""}, "round: Input should be a valid integer"),
        ({"event": "global", **PLACE, "metrics": {"a": "high"}}, r"metrics\.a: Input should be a valid number"),
        ({"event": "personal", **PLACE, "clients": {"a": 1.0}}, r"clients\.a: Input should be an object"),
    ],
)
def test_what_is_no_event_is_told_by_its_line(line: dict[str, object], reason: str):
    good = RoundWarning(stage="a", round=1, text="").line()
    found = events([good, json.dumps(line).encode() + b"\n"], "m")
    assert next(found).stage == "a"
    with pytest.raises(DataError, match=f"^m, line 2, cannot be read: .*{reason.replace('?', '[?]')}"):
        next(found)


def test_a_line_that_is_still_being_written_does_not_count():
    assert list(entries(RoundTime, [b'{"stage": "a", "round": 1, "seconds": 1.0}'], "here")) == []


@pytest.mark.parametrize(("entry", "line"), LINES, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("number", ["9" * 400, "-1"])
def test_numbers_that_no_run_writes_are_damage(entry: Entry, line: str, number: str):
    """A report makes floats of them, and none can hold a number of 400 digits."""
    damaged = line.replace('"round": 2', f'"round": {number}')
    assert damaged != line
    with pytest.raises(DataError, match=r"^here, line 1, cannot be read: .*round"):
        read(type(entry), damaged.encode())
    if isinstance(entry, Transfer):
        with pytest.raises(DataError, match=r"^here, line 1, cannot be read: .*bytes"):
            read(Transfer, line.replace('"bytes": 8', f'"bytes": {number}').encode())
