"""What clients keep on disk, and where a run stands."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from personae.algorithms import FedPE
from personae.algorithms.fedpe import State
from personae.core.layout import Layout
from personae.core.message import LocalState
from personae.core.payload import ModelState
from personae.errors import ConfigError, DataError
from personae.runtime.checkpoint import Checkpoints, Position
from personae.runtime.store import PrivateStore
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
    with pytest.raises(DataError, match=r"ann/federate/000003\.safetensors: this private state is damaged"):
        store.load("federate", Kept, layout)


def test_what_another_type_kept_is_refused(store: PrivateStore, layout: Layout):
    @dataclass(frozen=True, kw_only=True)
    class Other(LocalState):
        columns: Tensor

    store.save("federate", 1, kept(1))
    with pytest.raises(DataError, match="columns is NoneType, expected Tensor"):
        store.load("federate", Other, layout)


def test_a_file_left_by_a_write_that_was_cut_off_is_not_taken_for_a_version(store: PrivateStore, layout: Layout):
    store.save("federate", 1, kept(1))
    (store.root / "federate" / ".000002.safetensors.77.tmp").write_bytes(b"half")
    assert value(store.load("federate", Kept, layout)) == 1


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
    with pytest.raises(DataError, match=r"latest\.safetensors: this checkpoint cannot be read .* start anew"):
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
