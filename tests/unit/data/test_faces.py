"""The index of faces and the cache of pixels below it."""

import errno
import multiprocessing
import os
import pickle
import signal
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from personae.data import FaceSet, PartitionPlan, default_cache, join_faces, synthetic, synthetic_faces
from personae.data import rendered as rendered_module
from personae.data.pixels import Append, Filled, PixelStore, Recipe, cached_pixels
from personae.errors import ConfigError, DataError, Interrupted, PersonaeError

PIXELS = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)
RECIPE = Recipe(name="six faces", source="here", state="today", count=6, height=4, width=5)
FORK = multiprocessing.get_context("fork")
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fill(append: Append) -> Filled:
    append(PIXELS[:4])
    append(PIXELS[4:])
    return Filled(digest="six")


def refuse(append: Append) -> Filled:
    raise AssertionError("the cache should have been found")


@pytest.fixture
def faces(tmp_path: Path) -> FaceSet:
    return FaceSet(
        name="six",
        identities=("ann", "bob", "cid", "dan"),
        identity=np.array([3, 0, 3, 1, 1, 3]),
        columns={"Male": np.array([1, 0, 1, 1, 1, 1], dtype=bool), "path": np.array(list("abcdef"))},
        pixels=cached_pixels(tmp_path, RECIPE, fill),
        stored=np.arange(6),
    )


def test_a_selection_shares_pixels_names_and_codes(faces: FaceSet) -> None:
    part = faces.select([4, 0]).select([1, 0])
    assert part.identities == faces.identities
    assert part.identity.tolist() == [3, 1]
    assert part.columns["path"].tolist() == ["a", "e"]
    assert part.pixels is faces.pixels
    np.testing.assert_array_equal(part.images(np.array([1, 0])), PIXELS[[4, 0]])
    assert faces.size == (4, 5)
    assert faces.images_per_identity.tolist() == [1, 2, 0, 3]


def test_samples_count_labels_from_zero_in_the_order_of_identities(faces: FaceSet) -> None:
    samples = faces.samples(np.array([5, 3, 0]))
    assert samples.identities == ("bob", "dan")
    assert samples.classes == 2
    assert len(samples) == 3
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.labels.dtype == torch.int64
    np.testing.assert_array_equal(samples.images(torch.tensor([2, 1])).numpy(), PIXELS[[0, 3]])
    assert faces.samples().identities == ("ann", "bob", "dan")


def test_identities_are_sliced_by_their_order_among_those_with_enough_images(faces: FaceSet) -> None:
    assert faces.slice_identities(1, 1).columns["path"].tolist() == ["d", "e"]
    assert faces.slice_identities(0, None, min_images=2).columns["path"].tolist() == list("acdef")
    assert faces.slice_identities(1, 1, min_images=2).identity.tolist() == [3, 3, 3]


def test_identities_with_too_many_images_are_left_out_and_not_counted(faces: FaceSet) -> None:
    assert faces.slice_identities(0, None, max_images=2).columns["path"].tolist() == list("bde")
    assert faces.slice_identities(1, 1, max_images=2).columns["path"].tolist() == ["d", "e"]
    assert faces.slice_identities(0, None, min_images=2, max_images=2).columns["path"].tolist() == ["d", "e"]
    with pytest.raises(DataError, match="there is 1 identity with 2 images; lower them"):
        faces.slice_identities(1, 1, min_images=2, max_images=2)
    with pytest.raises(DataError, match=r"none of 4 identities has 4 to 9 images; .* or change min_images or max_ima"):
        faces.slice_identities(0, None, min_images=4, max_images=9)


@pytest.mark.parametrize(("first", "count"), [(0, 4), (3, 1), (3, None), (-1, 1), (0, 0)])
def test_too_few_identities_are_told_with_how_many_there_are(faces: FaceSet, first: int, count: int | None) -> None:
    with pytest.raises(DataError, match="there are 3 identities"):
        faces.slice_identities(first, count)


def test_the_fingerprint_names_labels_and_pixels(faces: FaceSet) -> None:
    same = pickle.loads(pickle.dumps(faces))
    assert same.fingerprint == faces.fingerprint == faces.select(np.arange(6)).fingerprint
    others = [
        faces.select([0, 1, 2]),
        faces.select([0, 2, 1, 3, 4, 5]),
        FaceSet(**vars_of(faces, identities=("ann", "bob", "cid", "eve"))),
        FaceSet(**vars_of(faces, columns=faces.columns | {"Male": ~faces.columns["Male"]})),
        FaceSet(**vars_of(faces, pixels=PixelStore(faces.pixels.path, 6, 4, 5, "other"))),
    ]
    assert len({faces.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


def vars_of(faces: FaceSet, **changes: object) -> dict[str, object]:
    fields = {name: value for name, value in vars(faces).items() if name in FaceSet.__dataclass_fields__}
    return fields | changes


def test_sending_a_face_set_sends_a_path_and_never_the_pixels(faces: FaceSet) -> None:
    small = len(pickle.dumps(faces))
    faces.images(np.array([0]))
    assert len(pickle.dumps(faces)) == small
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        received = pool.apply(faces.images, (np.array([5, 1]),))
    np.testing.assert_array_equal(received, PIXELS[[5, 1]])


def test_pixels_that_vanish_are_told(faces: FaceSet) -> None:
    faces.pixels.path.unlink()
    with pytest.raises(DataError, match="the cached pixels are gone"):
        faces.images(np.array([0]))


def test_the_cache_is_filled_once(tmp_path: Path) -> None:
    first = cached_pixels(tmp_path, RECIPE, fill)
    second = cached_pixels(tmp_path, RECIPE, refuse)
    assert first == second
    np.testing.assert_array_equal(second.take(np.arange(6)), PIXELS)


@pytest.mark.parametrize("damage", ["truncated pixels", "no pixels", "no index", "broken index"])
def test_a_damaged_cache_is_filled_again(tmp_path: Path, damage: str) -> None:
    store = cached_pixels(tmp_path, RECIPE, fill)
    index = store.path.with_name("index.json")
    match damage:
        case "truncated pixels":
            os.truncate(store.path, 100)
        case "no pixels":
            store.path.unlink()
        case "no index":
            index.unlink()
        case "broken index":
            index.write_text('{"format": 1, "count"')
    again = cached_pixels(tmp_path, RECIPE, fill)
    np.testing.assert_array_equal(again.take(np.arange(6)), PIXELS)


def test_a_new_state_of_a_source_takes_the_place_of_the_older(tmp_path: Path) -> None:
    old = cached_pixels(tmp_path, RECIPE, fill).path  # nobody holds the store itself
    elsewhere = cached_pixels(tmp_path, Recipe(**vars(RECIPE) | {"source": "there"}), fill)
    other_size = cached_pixels(tmp_path, Recipe(**vars(RECIPE) | {"height": 5, "width": 4}), fill)
    new = cached_pixels(tmp_path, Recipe(**vars(RECIPE) | {"state": "tomorrow"}), fill)
    assert not old.exists()
    assert elsewhere.path.exists()
    assert other_size.path.exists()
    assert new.path.exists()


def _use(cache: Path, ready: Path, done: Path) -> None:
    store = cached_pixels(cache, RECIPE, fill)
    ready.touch()
    while not done.exists():
        time.sleep(0.01)
    np.testing.assert_array_equal(store.take(np.arange(6)), PIXELS)  # mapped only now


@FORKS
def test_pixels_in_use_are_not_removed(tmp_path: Path) -> None:
    """Neither by this process nor by another, until nobody uses them any more."""
    cache, ready, done = tmp_path / "cache", tmp_path / "ready", tmp_path / "done"
    user = FORK.Process(target=_use, args=(cache, ready, done))
    user.start()
    while not ready.exists():
        time.sleep(0.01)
    old = cached_pixels(cache, RECIPE, refuse)
    cached_pixels(cache, Recipe(**vars(RECIPE) | {"state": "tomorrow"}), fill)
    sent = pickle.loads(pickle.dumps(old))
    np.testing.assert_array_equal(sent.take(np.arange(6)), PIXELS)
    path = old.path
    del old
    cached_pixels(cache, Recipe(**vars(RECIPE) | {"state": "the day after"}), fill)
    assert path.exists()  # the other process still uses it
    done.touch()
    user.join()
    assert user.exitcode == 0
    cached_pixels(cache, Recipe(**vars(RECIPE) | {"state": "at last"}), fill)
    assert not path.exists()


def test_an_interrupted_build_leaves_nothing_that_could_be_used(tmp_path: Path) -> None:
    def interrupted(append: Append) -> Filled:
        append(PIXELS[:4])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_pixels(tmp_path, RECIPE, interrupted)
    assert {path.name for path in (tmp_path / RECIPE.folder).iterdir()} == {"lock"}
    assert cached_pixels(tmp_path, RECIPE, fill).count == 6


def _die_half_way(cache: Path) -> None:
    def killed(append: Append) -> Filled:
        append(PIXELS[:4])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    cached_pixels(cache, RECIPE, killed)


@FORKS
def test_a_killed_build_is_done_again_and_swept_away(tmp_path: Path) -> None:
    builder = FORK.Process(target=_die_half_way, args=(tmp_path,))
    builder.start()
    builder.join()
    folder = tmp_path / RECIPE.folder
    assert builder.exitcode == -signal.SIGKILL
    assert any(path.suffix == ".tmp" for path in folder.iterdir())
    np.testing.assert_array_equal(cached_pixels(tmp_path, RECIPE, fill).take(np.arange(6)), PIXELS)
    assert {path.name for path in folder.iterdir()} == {"lock", "pixels.u8", "index.json", "users"}


def _build_and_note(cache: Path, notes: Path) -> None:
    def slow(append: Append) -> Filled:
        (notes / str(os.getpid())).touch()
        time.sleep(0.3)
        return fill(append)

    store = cached_pixels(cache, RECIPE, slow)
    np.testing.assert_array_equal(store.take(np.arange(6)), PIXELS)


@FORKS
def test_of_several_processes_one_fills_the_cache(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    builders = [FORK.Process(target=_build_and_note, args=(tmp_path / "cache", notes)) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0, 0, 0]
    assert len(list(notes.iterdir())) == 1


def test_a_disk_that_fills_up_stops_the_work_and_leaves_nothing(tmp_path: Path) -> None:
    def full(append: Append) -> Filled:
        append(PIXELS[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Interrupted, match="the disk is full; free some space") as told:
        cached_pixels(tmp_path, RECIPE, full)
    assert told.value.exit_code == 5
    assert {path.name for path in (tmp_path / RECIPE.folder).iterdir()} == {"lock"}


def test_a_disk_that_is_too_small_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(free=100))
    with pytest.raises(Interrupted, match=r"too full for the decoded faces.*PERSONAE_CACHE"):
        cached_pixels(tmp_path, RECIPE, refuse)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="PERSONAE_CACHE") as told:
        cached_pixels(tmp_path / "file" / "below", RECIPE, fill)
    assert told.value.exit_code == 2


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("PERSONAE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "personae"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path("~/.cache/personae").expanduser()


def test_synthetic_faces_are_those_of_the_renderer(tmp_path: Path) -> None:
    faces = synthetic_faces(identities=3, images=4, first=7, seed=5, size=16, cache=tmp_path)
    people, shots = torch.arange(7, 10).repeat_interleave(4), torch.arange(4).repeat(3)
    expected = synthetic.render(people, shots, seed=5, size=16, domain=next(iter(synthetic.DOMAINS)))
    np.testing.assert_array_equal(faces.images(np.arange(12)), expected.numpy())
    assert faces.identities == ("person-000007", "person-000008", "person-000009")
    assert faces.identity.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    known = synthetic.attributes(people, shots, seed=5, domain=next(iter(synthetic.DOMAINS)))
    for column, name in enumerate(synthetic.ATTRIBUTES):
        assert faces.columns[name].tolist() == known[:, column].tolist()
    assert set(faces.columns["domain"]) == {next(iter(synthetic.DOMAINS))}


def test_synthetic_faces_are_rendered_once_by_each_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def render(people: torch.Tensor, shots: torch.Tensor, **options: object) -> torch.Tensor:
        calls.append(len(people))
        return torch.zeros(len(people), 8, 8, 3, dtype=torch.uint8)

    monkeypatch.setattr(synthetic, "render", render)
    options = {"identities": 30, "images": 10, "size": 8, "cache": tmp_path}
    first = synthetic_faces(**options)
    assert calls == [256, 44]
    assert synthetic_faces(**options).fingerprint == first.fingerprint
    assert sum(calls) == 300
    assert synthetic_faces(**options | {"seed": 1}).fingerprint != first.fingerprint
    monkeypatch.setattr(rendered_module, "renderer_version", lambda: "another")
    assert synthetic_faces(**options).fingerprint != first.fingerprint
    assert sum(calls) == 900


def test_a_gpu_draws_synthetic_faces_itself_and_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def render(people: torch.Tensor, shots: torch.Tensor, *, device: str, **options: object) -> torch.Tensor:
        calls.append((len(people), device))
        return torch.full((len(people), 8, 8, 3), len(device), dtype=torch.uint8)

    monkeypatch.setattr(synthetic, "render", render)
    options = {"identities": 500, "images": 10, "size": 8, "cache": tmp_path}
    drawn = {
        device: synthetic_faces(**options, device=device, workers=2 if device != "cpu" else 1)
        for device in ("cuda", "cpu", "cuda:1")
    }
    assert calls == [(4096, "cuda"), (904, "cuda")] + [(256, "cpu")] * 19 + [(136, "cpu")]  # all GPUs share a file
    assert int(drawn["cuda"].images(np.arange(1))[0, 0, 0, 0]) == len("cuda")
    assert int(drawn["cpu"].images(np.arange(1))[0, 0, 0, 0]) == len("cpu")
    assert len({faces.fingerprint for faces in drawn.values()}) == 1  # a run on one can be looked at on the other


@pytest.mark.parametrize(
    "wrong", [{"identities": 0}, {"images": 0}, {"first": -1}, {"size": 4}, {"domain": "moon"}, {"domain": ()}]
)
def test_impossible_synthetic_faces_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(PersonaeError) as told:
        synthetic_faces(**{"identities": 1, "images": 1, "cache": tmp_path} | wrong)
    assert told.value.exit_code == 2


def test_joined_sets_are_domains_with_people_of_their_own(faces: FaceSet) -> None:
    part = faces.select([5, 1])
    joined = join_faces("both", {"day": part, "night": faces})
    assert joined.identities == tuple(f"{domain}/{name}" for domain in ("day", "night") for name in faces.identities)
    assert joined.identity.tolist() == [3, 0, 7, 4, 7, 5, 5, 7]
    assert joined.columns["domain"].tolist() == ["day"] * 2 + ["night"] * 6
    assert joined.columns["path"].tolist() == list("fbabcdef")
    np.testing.assert_array_equal(joined.images(np.array([7, 0, 2, 1])), PIXELS[[5, 5, 0, 1]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(joined)).images(np.array([3])), PIXELS[[1]])
    others = [join_faces("both", {"day": faces.select(rows), "night": faces}) for rows in ([5, 1], [5, 2])]
    assert joined.fingerprint == others[0].fingerprint != others[1].fingerprint


def test_sets_of_different_sizes_are_not_joined(faces: FaceSet) -> None:
    larger = FaceSet(**vars_of(faces, pixels=PixelStore(Path("unused"), 6, 8, 8, "larger")))
    with pytest.raises(ConfigError, match=r"one size to be joined \(day 5 x 4, night 8 x 8\)"):
        join_faces("both", {"day": faces, "night": larger})


def test_synthetic_domains_become_a_source_and_its_targets(tmp_path: Path) -> None:
    names = tuple(synthetic.DOMAINS)
    faces = synthetic_faces(identities=3, images=4, domain=names, size=8, cache=tmp_path)
    assert len(faces) == len(names) * 12
    partition = PartitionPlan(by="domain", source=names[0]).apply(faces, 0)
    assert set(partition.clients) == set(names)
    alone = synthetic_faces(identities=3, images=4, domain=names[1], size=8, cache=tmp_path)
    np.testing.assert_array_equal(faces.images(np.arange(12, 24)), alone.images(np.arange(12)))


def test_people_with_too_few_images_each_are_told(faces: FaceSet) -> None:
    with pytest.raises(
        DataError, match="six: none of 4 identities has 9 images or more; add images, or lower min_imag"
    ):
        faces.slice_identities(0, None, min_images=9)
