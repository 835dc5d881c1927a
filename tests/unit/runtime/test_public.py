"""Public faces at the clients: their features, computed once by all processes together."""

import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from personae.core.backbone import Backbone
from personae.core.embedder import embed
from personae.core.payload import ModelState
from personae.core.samples import Joined
from personae.parts.embedding import BackboneEmbedder
from personae.runtime import public
from personae.runtime.public import SharedFaces
from toys import Faces, TinyPlan, random_faces

FACES = random_faces(1, 7, 3)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "CHUNK", 4)


class Counting(Faces):
    """Notes which images were asked for."""

    def __init__(self, faces: Faces) -> None:
        super().__init__(faces.pixels, faces.labels, faces.classes)
        object.__setattr__(self, "asked", [])

    def images(self, positions):
        self.asked.extend(positions.tolist())
        return super().images(positions)


def other(model: ModelState) -> ModelState:
    return ModelState(model.layout, model.flat + 0.01)


def test_features_are_those_of_the_model_in_evaluation_mode(tmp_path: Path, backbone: Backbone):
    model = other(backbone.state())
    found = SharedFaces(FACES, tmp_path / "shared").open(backbone).features(model)
    backbone.load(model)
    assert torch.equal(found, embed(BackboneEmbedder(backbone, mirror=False), FACES, batch=4))
    assert found.shape == (21, backbone.width)
    assert torch.allclose(found.norm(dim=1), torch.ones(21))


def test_they_are_computed_once_for_all_clients_and_anew_for_another_model(tmp_path: Path, backbone: Backbone):
    faces = Counting(FACES)
    shared, model = SharedFaces(faces, tmp_path / "shared"), backbone.state()
    first = shared.open(backbone).features(model).clone()
    assert sorted(faces.asked) == list(range(21))
    again = shared.open(backbone).features(model)
    assert sorted(faces.asked) == list(range(21))
    assert torch.equal(again, first)
    again.zero_()  # whoever writes to them spoils nobody else's
    assert torch.equal(shared.open(backbone).features(model), first)
    later = shared.open(backbone).features(other(model))
    assert sorted(faces.asked) == sorted([*range(21)] * 2)
    assert not torch.equal(later, first)
    assert len(list((tmp_path / "shared").iterdir())) == 1  # those of the earlier round are gone
    shared.clear()
    assert not (tmp_path / "shared").exists()


def test_no_public_faces_have_no_features(tmp_path: Path, backbone: Backbone):
    nobody = Faces(FACES.pixels[:0], FACES.labels[:0], 0)
    assert SharedFaces(nobody, tmp_path).open(backbone).features(backbone.state()).shape == (0, backbone.width)


def test_a_chunk_that_a_dead_process_left_behind_is_computed_by_the_next(tmp_path: Path, backbone: Backbone):
    """Its bytes are half written and not marked as done; its lock went with it."""
    shared, model = SharedFaces(FACES, tmp_path), backbone.state()
    expected = shared.open(backbone).features(model).clone()
    folder = next(tmp_path.iterdir())
    with (folder / "done").open("r+b") as done, (folder / "features").open("r+b") as features:
        done.seek(2)
        done.write(b"\0")
        features.seek(2 * 4 * 4 * backbone.width)
        features.write(b"\xff" * 7)
    assert torch.equal(shared.open(backbone).features(model), expected)


def _hold(folder: Path, held, ready, let_go) -> None:
    """A process that is at one chunk, and ends without finishing it."""
    file = os.open(next(folder.iterdir()) / "done", os.O_RDWR)
    fcntl.lockf(file, fcntl.LOCK_EX, 1, held)
    ready.set()
    let_go.wait()
    os._exit(1)


def test_a_chunk_that_another_process_is_at_is_left_to_it_until_it_ends(
    tmp_path: Path, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    faces = Counting(FACES)
    shared, model = SharedFaces(faces, tmp_path), backbone.state()
    expected = shared.open(backbone).features(model).clone()
    done = next(tmp_path.iterdir()) / "done"
    done.write_bytes(b"\0" * 6)
    context = multiprocessing.get_context("spawn")
    ready, let_go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, 1, ready, let_go))
    process.start()
    ready.wait(60)
    faces.asked.clear()
    take = public._Chunks.take

    def told(self, number: int, patient: bool) -> bool:
        if patient:  # everything else is done by now
            assert done.read_bytes() == b"\1\0\1\1\1\1"
            let_go.set()
        return take(self, number, patient)

    monkeypatch.setattr(public._Chunks, "take", told)
    assert torch.equal(shared.open(backbone).features(model), expected)
    process.join()
    assert faces.asked == [*range(4), *range(8, 21), *range(4, 8)]


def _features(folder: Path, flat: torch.Tensor, found) -> None:
    torch.set_num_threads(1)
    public.CHUNK = 4
    plan = TinyPlan()
    backbone = Backbone(plan.build(), plan.embedding)
    found.put(SharedFaces(FACES, folder).open(backbone).features(ModelState(backbone.layout, flat)).tolist())


def test_processes_that_share_the_work_get_the_same_bits(tmp_path: Path, backbone: Backbone):
    model = backbone.state()
    expected = SharedFaces(FACES, tmp_path / "alone").open(backbone).features(model)
    context = multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    workers = [context.Process(target=_features, args=(tmp_path / "both", model.flat, found)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert torch.equal(torch.tensor(found.get()), expected)
    for worker in workers:
        worker.join()


@pytest.fixture
def joined() -> Joined:
    return Joined(random_faces(2, 3, 2), FACES, torch.tensor([20, 0, 5]))


def test_joined_samples_count_the_classes_of_the_second_after_those_of_the_first(joined: Joined):
    assert len(joined) == 9
    assert joined.classes == 10
    assert joined.labels.tolist() == [0, 0, 1, 1, 2, 2, 3 + 6, 3 + 0, 3 + 1]


@pytest.mark.parametrize("positions", [[0, 8, 5, 6, 7], [7], [1, 1], []])
def test_joined_images_come_in_the_order_asked_for(joined: Joined, positions: list[int]):
    every = torch.cat([joined.first.pixels, FACES.pixels[[20, 0, 5]]])
    assert torch.equal(joined.images(torch.tensor(positions, dtype=torch.int64)), every[positions])
