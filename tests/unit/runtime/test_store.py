"""What clients keep on disk, and where a run stands."""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from personae.algorithms import FedPE
from personae.algorithms.fedpe import State
from personae.core.layout import Layout
from personae.core.message import LocalState
from personae.core.payload import ModelState
from personae.errors import ConfigError, DataError, Interrupted, Unkept
from personae.runtime.checkpoint import BEFORE, LATEST, Checkpoints, Position
from personae.runtime.store import RUN, PrivateStore, mark_run, require_kept
from toys import stage_of


@dataclass(frozen=True, kw_only=True)
class Kept(LocalState):
    rows: Tensor


def kept(value: float) -> Kept:
    return Kept(rows=torch.full((2, 2), value))


def value(state: Kept | None) -> float | None:
    return None if state is None else float(state.rows[0, 0])


@pytest.fixture
def store(tmp_path: Path) -> PrivateStore:
    return PrivateStore.of(tmp_path, "ann")


def files(store: PrivateStore) -> list[str]:
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def test_a_client_that_never_took_part_has_nothing(store: PrivateStore, layout: Layout):
    assert store.load("federate", Kept, layout) is None


def test_a_round_starts_from_the_version_before_it_however_often_it_is_run(store: PrivateStore, layout: Layout):
    store.save("federate", 1, kept(1))
    assert value(store.load("federate", Kept, layout, before=1)) is None
    assert value(store.load("federate", Kept, layout, before=2)) == 1
    store.save("federate", 4, kept(4))
    assert value(store.load("federate", Kept, layout, before=4)) == 1
    store.save("federate", 4, kept(44))
    assert value(store.load("federate", Kept, layout, before=4)) == 1
    assert value(store.load("federate", Kept, layout, before=5)) == 44
    assert value(store.load("federate", Kept, layout)) == 44


def test_two_versions_are_kept_and_no_more(store: PrivateStore):
    for round_ in (1, 2, 5, 9, 12_345_678):
        store.save("federate", round_, kept(round_))
    assert files(store) == ["federate/000009.safetensors", "federate/12345678.safetensors"]


def test_versions_are_ordered_by_number_even_beyond_six_digits(store: PrivateStore, layout: Layout):
    store.save("federate", 999_999, kept(1))
    store.save("federate", 1_000_000, kept(2))
    assert value(store.load("federate", Kept, layout)) == 2


def test_stages_and_clients_do_not_meet(tmp_path: Path, layout: Layout):
    names = ["ann", "Ann", "a/n", "a%2Fn", "..", ".", "Zoë", "a b", "ann/federate", "x\ty"]
    for index, name in enumerate(names):
        PrivateStore.of(tmp_path / "private", name).save("federate", 1, kept(index))
        PrivateStore.of(tmp_path / "private", name).save("tune", 1, kept(100 + index))
    for index, name in enumerate(names):
        assert value(PrivateStore.of(tmp_path / "private", name).load("federate", Kept, layout)) == index
        assert value(PrivateStore.of(tmp_path / "private", name).load("tune", Kept, layout)) == 100 + index
    assert len({PrivateStore.of(tmp_path / "private", name).root.resolve() for name in names}) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["private"]  # nothing went elsewhere
    assert len(list((tmp_path / "private").iterdir())) == len(names)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 1000])
def test_a_damaged_file_is_named_in_one_clear_error(store: PrivateStore, layout: Layout, content: bytes):
    store.save("federate", 3, kept(1))
    (store.root / "federate" / "000003.safetensors").write_bytes(content)
    with pytest.raises(Unkept, match=r"ann/federate/000003\.safetensors: this private state is damaged"):
        store.load("federate", Kept, layout)


def test_what_another_type_kept_is_refused(store: PrivateStore, layout: Layout):
    @dataclass(frozen=True, kw_only=True)
    class Other(LocalState):
        columns: Tensor

    store.save("federate", 1, kept(1))
    with pytest.raises(Unkept, match="columns is NoneType, expected Tensor"):
        store.load("federate", Other, layout)


def test_a_file_left_by_a_write_that_was_cut_off_is_not_taken_for_a_version(store: PrivateStore, layout: Layout):
    store.save("federate", 1, kept(1))
    (store.root / "federate" / ".000002.safetensors.77.tmp").write_bytes(b"half")
    assert value(store.load("federate", Kept, layout)) == 1


def flipped(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


def test_any_bit_that_flipped_and_any_cut_is_noticed(store: PrivateStore, layout: Layout):
    """In names, in numbers, in values, in the digest itself."""
    store.save("federate", 1, kept(1))
    path = store.path("federate", 1)
    whole = path.read_bytes()
    for byte in range(len(whole)):
        flipped(path, byte)
        with pytest.raises(Unkept, match="this private state is damaged"):
            store.load("federate", Kept, layout)
        path.write_bytes(whole)
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(Unkept, match="this private state is damaged"):
            store.load("federate", Kept, layout)


def test_a_damaged_mark_of_the_run_makes_states_those_of_another(tmp_path: Path, layout: Layout):
    mark_run(tmp_path, "one")
    PrivateStore.of(tmp_path, "ann").save("federate", 1, kept(1))
    (tmp_path / RUN).write_bytes(b"\xff\xfe")
    with pytest.raises(Unkept, match="this private state is damaged"):
        PrivateStore.of(tmp_path, "ann").load("federate", Kept, layout)


def test_the_state_of_another_client_round_stage_or_run_is_refused(tmp_path: Path, layout: Layout):
    ann, bob = (PrivateStore.of(tmp_path / "one", name) for name in ("ann", "bob"))
    other = PrivateStore.of(tmp_path / "two", "ann")
    for number, store in enumerate((ann, bob, other)):
        mark_run(store.root.parent, store.root.parent.name)
        for stage in ("federate", "tune"):
            for round_ in (1, 2):
                store.save(stage, round_, kept(number))
    place = ann.path("federate", 2)
    own = place.read_bytes()
    for stranger in (bob.path("federate", 2), other.path("federate", 2), ann.path("tune", 2), ann.path("federate", 1)):
        place.write_bytes(stranger.read_bytes())
        with pytest.raises(Unkept, match="it is the state of another client, round or run"):
            ann.load("federate", Kept, layout)
    place.write_bytes(own)
    assert value(ann.load("federate", Kept, layout)) == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EMFILE, errno.EACCES])
def test_what_cannot_be_written_or_read_interrupts_whatever_the_reason(
    store: PrivateStore, layout: Layout, monkeypatch: pytest.MonkeyPatch, number: int
):
    store.save("federate", 1, kept(1))

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("personae.files._fill", failing)
    with pytest.raises(Unkept, match=r"000002\.safetensors: this private state cannot be written .*; repair"):
        store.save("federate", 2, kept(2))
    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(Unkept, match=r"000001\.safetensors: this private state cannot be read .*; repair"):
        store.load("federate", Kept, layout)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EMFILE])
def test_a_checkpoint_that_cannot_be_written_interrupts_and_leaves_the_last_one(
    checkpoints: Checkpoints, layout: Layout, monkeypatch: pytest.MonkeyPatch, number: int
):
    """With the exit code of a wrong option, a service would not begin again once the disk is back."""
    checkpoints.save(STAGES[0], 1, state(layout, 1), {}, {})

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("personae.files._fill", failing)
        with pytest.raises(Interrupted, match=r"latest\.safetensors: cannot be written .*; repair that and resume"):
            checkpoints.save(STAGES[0], 2, state(layout, 2), {}, {})
    position, _ = checkpoints.latest() or pytest.fail("there is none")
    assert position.round == 1


def test_nobody_else_can_read_what_is_private(store: PrivateStore, checkpoints: Checkpoints, layout: Layout):
    before = os.umask(0o022)
    try:
        store.save("federate", 1, kept(1))
        for round_ in (1, 2):
            checkpoints.save(STAGES[0], round_, state(layout, 1), {}, {})
    finally:
        os.umask(before)
    written = [path for path in checkpoints.folder.rglob("*") if path.is_file()]
    assert {path.name for path in written} == {"000001.safetensors", LATEST, BEFORE, "one.safetensors"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    assert stat.S_IMODE((store.root / "federate").stat().st_mode) == 0o700


# ----------------------------------------------------------------------------------------------------- checkpoints

STAGES = (stage_of(FedPE(), name="one"), stage_of(FedPE(), name="two", rounds=3))


@pytest.fixture
def checkpoints(tmp_path: Path, layout: Layout) -> Checkpoints:
    return Checkpoints(tmp_path, "this", STAGES, layout)


def state(layout: Layout, fill: float) -> State:
    return State(model=ModelState(layout, torch.full((layout.size,), float(fill))))


def test_no_checkpoint_no_position(checkpoints: Checkpoints):
    assert checkpoints.latest() is None


def test_the_latest_round_comes_back_with_its_place(checkpoints: Checkpoints, layout: Layout):
    checkpoints.save(STAGES[0], 1, state(layout, 1), {"metrics": 10}, {})
    checkpoints.save(STAGES[0], 2, state(layout, 2), {"metrics": 20}, {})
    checkpoints.save(STAGES[1], 1, state(layout, 3), {"metrics": 30}, {"loss": 0.5})
    position, latest = checkpoints.latest()
    assert position == Position("two", 1, {"metrics": 30}, {"loss": 0.5})
    assert latest.model.flat.unique().tolist() == [3.0]
    assert checkpoints.finished("one").model.flat.unique().tolist() == [2.0]


def test_an_unfinished_stage_cannot_be_continued_from(checkpoints: Checkpoints, layout: Layout):
    checkpoints.save(STAGES[1], 2, state(layout, 3), {}, {})
    with pytest.raises(DataError, match=r"finished/two\.safetensors: this checkpoint cannot be read"):
        checkpoints.finished("two")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 200])
def test_a_damaged_checkpoint_is_named_in_one_clear_error(checkpoints: Checkpoints, layout: Layout, content: bytes):
    checkpoints.save(STAGES[0], 1, state(layout, 1), {}, {})
    (checkpoints.folder / "latest.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"latest\.safetensors: this checkpoint cannot be read .* restore it"):
        checkpoints.latest()


def test_a_file_that_is_no_checkpoint_is_refused(checkpoints: Checkpoints, tmp_path: Path, layout: Layout):
    PrivateStore(tmp_path / "private").save("one", 1, kept(1))
    checkpoints.save(STAGES[0], 1, state(layout, 1), {}, {})
    taken = (tmp_path / "private" / "one" / "000001.safetensors").read_bytes()
    (checkpoints.folder / "latest.safetensors").write_bytes(taken)
    with pytest.raises(DataError, match="this checkpoint cannot be read"):
        checkpoints.latest()


def test_a_checkpoint_of_another_network_is_damaged(checkpoints: Checkpoints, layout: Layout):
    other = Layout(layout.names[1:], layout.shapes[1:], layout.trainable - 1)
    Checkpoints(checkpoints.folder, "this", STAGES, other).save(STAGES[0], 1, state(other, 1), {}, {})
    with pytest.raises(DataError, match=r"this checkpoint is damaged .*1 entry is missing"):
        checkpoints.latest()


def test_a_checkpoint_of_another_experiment_is_refused(checkpoints: Checkpoints, layout: Layout):
    Checkpoints(checkpoints.folder, "that", STAGES, layout).save(STAGES[0], 2, state(layout, 1), {}, {})
    with pytest.raises(ConfigError, match="of another experiment"):
        checkpoints.latest()
    with pytest.raises(ConfigError, match="of another experiment"):
        checkpoints.finished("one")


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, layout: Layout):
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, "this", STAGES, layout, said.append)
    checkpoints.save(STAGES[1], 1, state(layout, 1), {"metrics": 10}, {})
    place = tmp_path / LATEST
    flipped(place, place.stat().st_size - 3)
    with pytest.raises(DataError, match="its digest is another"):
        checkpoints.latest()  # there is no other
    flipped(place, place.stat().st_size - 3)
    checkpoints.save(STAGES[1], 2, state(layout, 2), {"metrics": 20}, {})
    assert checkpoints.latest()[0].round == 2
    flipped(place, place.stat().st_size - 3)
    position, found = checkpoints.latest()
    assert (position.round, position.journal) == (1, {"metrics": 10})
    assert found.model.flat.unique().tolist() == [1.0]
    (line,) = said
    assert "latest.safetensors: this checkpoint cannot be read" in line
    assert line.endswith("the run goes on from the round before, two 1")


def test_the_end_of_another_stage_is_not_taken_for_that_of_this(checkpoints: Checkpoints, layout: Layout):
    for stage in STAGES:
        checkpoints.save(stage, stage.rounds, state(layout, 1), {}, {})
    one, two = (checkpoints.folder / "finished" / f"{name}.safetensors" for name in ("one", "two"))
    one.write_bytes(two.read_bytes())
    with pytest.raises(DataError, match=r"one\.safetensors: this is the end of two"):
        checkpoints.finished("one")


def test_what_a_client_had_after_every_so_many_rounds_stays(tmp_path: Path, layout: Layout):
    store = PrivateStore.of(tmp_path, "ann", every=4)
    for number in (1, 2, 3, 6, 7, 9, 10, 13):
        store.save("federate", number, kept(number))
    assert [int(Path(name).stem) for name in files(store)] == [3, 7, 10, 13]  # after 4, 8 and 12, and the last two
    for after, expected in ((4, 3), (8, 7), (12, 10)):
        assert value(store.load("federate", Kept, layout, before=after + 1)) == expected


def test_a_state_that_is_gone_is_named(tmp_path: Path):
    PrivateStore.of(tmp_path, "ann").save("federate", 3, kept(3))
    require_kept(tmp_path, {("ann", "federate"): 3})
    for missing in (("ann", "federate"), 4), (("ann", "adapt"), 3), (("bob", "federate"), 3):
        with pytest.raises(Unkept, match=r"\.safetensors: this private state is gone; restore it"):
            require_kept(tmp_path, {("ann", "federate"): 3, missing[0]: missing[1]})


def test_no_byte_of_a_header_that_flipped_ends_in_a_traceback(checkpoints: Checkpoints, layout: Layout):
    stage = checkpoints.recipe[0]
    checkpoints.save(stage, 1, State(model=ModelState(layout, torch.zeros(layout.size))), {"metrics": 3}, {"loss": 1.0})
    path = checkpoints.folder / LATEST
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in range(header):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(DataError, match="this checkpoint cannot be read"):
            checkpoints.latest()
    for size in range(0, header, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="this checkpoint cannot be read"):
            checkpoints.latest()
