"""What holds of every partition, whatever the faces, the plan and the seed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from personae.data import FaceSet, Partition, PartitionPlan, Split
from personae.data.pixels import PixelStore
from personae.data.predicates import parse
from personae.errors import ConfigError, DataError

seeds = st.integers(0, 2**64)
image_counts = st.lists(st.integers(1, 30), min_size=1, max_size=40)


def face_set(counts: list[int], shuffle: int | None = None) -> FaceSet:
    """Faces with attributes and a domain that follow from their path, listed in any order."""
    identity = np.repeat(np.arange(len(counts)), counts)
    number = np.concatenate([np.arange(count) for count in counts])
    faces = FaceSet(
        name="faces",
        identities=tuple(map(str, range(len(counts)))),
        identity=identity,
        columns={
            "path": np.array([f"{code}/{image}" for code, image in zip(identity, number, strict=True)]),
            "domain": np.array(["day", "night", "web"])[(identity * 7 + number) % 3],
            "Male": identity % 2 == 0,
            "Young": (identity + number) % 3 == 0,
            "Hat": number % 4 == 0,
        },
        pixels=PixelStore(Path("unused"), len(identity), 8, 8, "digest"),
        stored=np.arange(len(identity)),
    )
    return faces if shuffle is None else faces.select(np.random.default_rng(shuffle).permutation(len(faces)))


@st.composite
def splits(draw: st.DrawFn) -> dict[str, float]:
    parts = [draw(st.integers(1, 10)), draw(st.integers(0, 5)), draw(st.integers(0, 5))]
    return dict(zip(("train", "val", "test"), (part / sum(parts) for part in parts), strict=True))


@st.composite
def plans(draw: st.DrawFn) -> PartitionPlan:
    options = draw(splits()) | {"min_images": draw(st.integers(1, 4)), "drop_small": True}
    by = draw(
        st.sampled_from(["equal", "one-identity", "lognormal-identities", "lognormal-images", "attributes", "domain"])
    )
    match by:
        case "attributes":
            choices = st.sampled_from(["Male", "!Male", "Young", "Male & !Young", "Hat | Young", "!(Hat | Male)"])
            options["predicates"] = tuple(draw(st.lists(choices, min_size=1, max_size=4, unique=True)))
        case "domain":
            options["source"] = draw(st.sampled_from(["day", "night", "web"]))
        case "one-identity":
            options["clients"] = draw(st.none() | st.integers(1, 8))
        case _:
            options["clients"] = draw(st.integers(1, 12))
            options["sigma"] = draw(st.floats(0, 5))
            if options["clients"] >= 2:
                options["shared"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
                options["holders"] = draw(st.integers(2, min(4, options["clients"])))
    return PartitionPlan(by=by, new_clients=0, **options)


def applied(plan: PartitionPlan, faces: FaceSet, seed: int) -> Partition:
    try:
        return plan.apply(faces, seed)
    except (DataError, ConfigError):
        assume(False)
        raise


@settings(max_examples=200)
@given(image_counts, plans(), seeds)
def test_images_are_dealt_once_to_clients_of_whom_none_is_empty(
    counts: list[int], plan: PartitionPlan, seed: int
) -> None:
    faces = face_set(counts)
    partition = applied(plan, faces, seed)
    assert len(partition.client) == len(partition.split) == len(faces)
    rows = [partition.rows(name) for name in partition.clients]
    together = np.sort(np.concatenate(rows))
    np.testing.assert_array_equal(together, np.flatnonzero(partition.client >= 0))  # each once, and nothing else
    assert partition.client.max() == len(partition.clients) - 1
    for name, mine in zip(partition.clients, rows, strict=True):
        assert len(mine)
        assert len(partition.rows(name, Split.TRAIN))
        parts = [partition.rows(name, split) for split in Split]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), mine)


@settings(max_examples=200)
@given(image_counts, plans(), seeds)
def test_nobody_holds_an_image_only_where_that_is_documented(counts: list[int], plan: PartitionPlan, seed: int) -> None:
    faces = face_set(counts)
    partition = applied(plan, faces, seed)
    left_out = partition.client == -1
    large = np.array(counts)[faces.identity] >= plan.min_images
    match plan.by:
        case "one-identity":
            held = np.unique(faces.identity[~left_out])
            assert len(held) == len(partition.clients)
            np.testing.assert_array_equal(left_out, ~np.isin(faces.identity, held))
        case "attributes":
            fits = np.logical_or.reduce([parse(text).fits(faces.columns) for text in plan.predicates])
            assert left_out[~fits].all()
            assert_small_parts(faces, left_out & fits, plan)
        case "domain":
            assert_small_parts(faces, left_out, plan)
        case _:
            np.testing.assert_array_equal(left_out, ~large)


def assert_small_parts(faces: FaceSet, left_out: np.ndarray, plan: PartitionPlan) -> None:
    """Of images that fit, only those are left out that are too few of their identity in one pool."""
    pools = len(plan.predicates) or 3
    assert np.bincount(faces.identity[left_out]).max(initial=0) <= pools * (plan.min_images - 1)


@settings(max_examples=100)
@given(image_counts, plans(), seeds, st.integers(0, 100))
def test_seed_and_faces_decide_and_not_the_order_in_which_they_are_listed(
    counts: list[int], plan: PartitionPlan, seed: int, shuffle: int
) -> None:
    faces, shuffled = face_set(counts), face_set(counts, shuffle)
    partition, again, other = (applied(plan, listed, seed) for listed in (faces, faces, shuffled))
    np.testing.assert_array_equal(partition.client, again.client)
    np.testing.assert_array_equal(partition.split, again.split)
    assert partition.clients == other.clients
    np.testing.assert_array_equal(partition.client[shuffled.stored], other.client)
    np.testing.assert_array_equal(partition.split[shuffled.stored], other.split)


@settings(max_examples=200)
@given(image_counts, plans(), seeds)
def test_splits_are_respected_for_every_identity_of_every_client(
    counts: list[int], plan: PartitionPlan, seed: int
) -> None:
    faces = face_set(counts)
    partition = applied(plan, faces, seed)
    for name in partition.clients:
        mine = partition.rows(name)
        for code in np.unique(faces.identity[mine]):
            images = mine[faces.identity[mine] == code]
            train, val, test = np.bincount(partition.split[images], minlength=3).tolist()
            assert len(images) >= plan.min_images
            assert train >= 1
            assert val == 0 or plan.val > 0
            assert (test > 0) == (plan.test > 0 and len(images) > 1) or plan.test == 0 == test
            assert val < plan.val * len(images) + 1
            assert test < max(plan.test * len(images) + 1, 2)


@settings(max_examples=150)
@given(
    st.lists(st.integers(6, 30), min_size=4, max_size=40),
    st.sampled_from(["equal", "lognormal-identities", "lognormal-images"]),
    st.floats(0, 1),
    st.integers(2, 3),
    seeds,
)
def test_the_chosen_share_of_identities_has_the_chosen_number_of_holders(
    counts: list[int], by: str, shared: float, holders: int, seed: int
) -> None:
    faces = face_set(counts)
    partition = PartitionPlan(by=by, clients=4, shared=shared, holders=holders).apply(faces, seed)
    pairs = np.unique(np.stack([faces.identity, partition.client]), axis=1)
    held_by = np.bincount(pairs[0])
    assert (held_by > 1).sum() == round(shared * len(counts))
    assert set(held_by.tolist()) <= {1, holders}
    for code in np.flatnonzero(held_by > 1):
        parts = np.bincount(partition.client[faces.identity == code])
        assert np.ptp(parts[parts > 0]) <= 1


@given(st.lists(st.integers(2, 10), min_size=8, max_size=30), seeds, st.integers(1, 8))
def test_equal_means_equal(counts: list[int], seed: int, clients: int) -> None:
    faces = face_set(counts)
    partition = PartitionPlan(by="equal", clients=clients).apply(faces, seed)
    assert np.ptp([holding.identities for holding in partition.summary(faces)]) <= 1


@given(seeds, seeds)
def test_another_seed_gives_another_partition(one: int, other: int) -> None:
    assume(one != other)
    faces = face_set([10] * 40)
    plan = PartitionPlan(by="equal", clients=4)
    assert (plan.apply(faces, one).client != plan.apply(faces, other).client).any()


@given(st.text(alphabet="ab&|!() ", max_size=30))
def test_a_text_that_can_be_read_means_what_python_would_mean(text: str) -> None:
    columns = {"a": np.array([False, False, True, True]), "b": np.array([False, True, False, True])}
    try:
        found = parse(text).fits(columns)
    except ConfigError:
        return
    expression = text.replace("!", " not ").replace("&", " and ").replace("|", " or ")
    expected = [eval(expression.strip(), {"a": a, "b": b}) for a in (False, True) for b in (False, True)]
    assert found.tolist() == expected


def test_too_few_identities_for_the_clients_is_an_error() -> None:
    with pytest.raises(DataError, match="ask for fewer clients"):
        PartitionPlan(by="equal", clients=3).apply(face_set([5, 5]), 0)
