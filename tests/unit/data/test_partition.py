"""Each way to divide faces among clients, the predicates, and the picture and table of the outcome."""

import csv
import re
import time
import tomllib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from personae.data import FaceSet, Partition, PartitionPlan, Split, synthetic
from personae.data.dealing import at_least, lognormal_quotas
from personae.data.partition import By
from personae.data.pixels import PixelStore
from personae.data.predicates import parse
from personae.errors import ConfigError, DataError
from personae.report.partition_plot import plot_partition


def face_set(images: list[int], **columns: np.ndarray) -> FaceSet:
    """Identities with so many images each; the pixels are never looked at."""
    identity = np.repeat(np.arange(len(images)), images)
    paths = np.array([f"{code:04d}/{row:06d}.jpg" for row, code in enumerate(identity)])
    return FaceSet(
        name="faces",
        identities=tuple(f"person-{code}" for code in range(len(images))),
        identity=identity,
        columns={"path": paths, **columns},
        pixels=PixelStore(Path("unused"), len(identity), 8, 8, "digest"),
        stored=np.arange(len(identity)),
    )


def identities_of(faces: FaceSet, partition: Partition) -> list[set[int]]:
    return [set(faces.identity[partition.rows(name)].tolist()) for name in partition.clients]


def images_of(partition: Partition) -> list[int]:
    return [len(partition.rows(name)) for name in partition.clients]


def test_equal_gives_everyone_as_many_identities() -> None:
    faces = face_set([10] * 50)
    partition = PartitionPlan(by="equal", clients=7).apply(faces, 1)
    assert sorted(map(len, identities_of(faces, partition))) == [7] * 6 + [8]
    assert partition.clients[:2] == ("client-000", "client-001")
    assert set().union(*identities_of(faces, partition)) == set(range(50))


def test_a_partition_is_the_same_on_every_machine() -> None:
    partition = PartitionPlan(by="equal", clients=2).apply(face_set([3, 3, 3]), 7)
    assert partition.client.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert partition.split.tolist() == [2, 0, 0, 0, 0, 2, 1, 2, 0]


def test_one_identity_per_client() -> None:
    faces = face_set([4] * 30)
    some = PartitionPlan(by="one-identity", clients=5).apply(faces, 0)
    assert [len(held) for held in identities_of(faces, some)] == [1] * 5
    assert len(set.union(*identities_of(faces, some))) == 5
    assert (some.client == -1).sum() == 25 * 4
    everyone = PartitionPlan(by="one-identity").apply(faces, 0)
    assert len(everyone.clients) == 30
    assert (everyone.client >= 0).all()


def test_lognormal_over_identities_follows_its_draws() -> None:
    faces = face_set([5] * 400)
    partition = PartitionPlan(by="lognormal-identities", clients=20, mu=3, sigma=3).apply(faces, 0)
    sizes = np.array([len(held) for held in identities_of(faces, partition)])
    assert sizes.sum() == 400
    assert sizes.min() >= 1
    assert sizes.max() > 100 > 20 > np.median(sizes)
    gentle = PartitionPlan(by="lognormal-identities", clients=20, sigma=0).apply(faces, 0)
    assert {len(held) for held in identities_of(faces, gentle)} == {20}


def test_lognormal_over_identities_leaves_nobody_with_fewer_than_asked_for() -> None:
    faces = face_set([5] * 400)
    plan = PartitionPlan(by="lognormal-identities", clients=20, sigma=1.35, min_identities=6)
    for seed in range(10):
        sizes = [len(held) for held in identities_of(faces, plan.apply(faces, seed))]
        assert sum(sizes) == 400
        assert min(sizes) >= 6
        assert max(sizes) > 40
    with pytest.raises(DataError, match=r"400 identities with at least 2 images are too few for 20 clients with 21 e"):
        PartitionPlan(by="lognormal-identities", clients=20, min_identities=21).apply(faces, 0)
    with pytest.raises(ConfigError, match=r"`min_identities` goes with by 'lognormal-identities' only"):
        PartitionPlan(by="equal", clients=20, min_identities=6)


def test_a_seed_of_its_own_makes_one_partition_for_all_runs() -> None:
    faces = face_set([5] * 60)
    plan = PartitionPlan(by="lognormal-identities", clients=6, sigma=1.0, seed=3)
    first, second = plan.apply(faces, 0), plan.apply(faces, 1)
    np.testing.assert_array_equal(first.client, second.client)
    np.testing.assert_array_equal(first.split, second.split)
    usual = PartitionPlan(by="lognormal-identities", clients=6, sigma=1.0)
    np.testing.assert_array_equal(first.client, usual.apply(faces, 3).client)
    assert not np.array_equal(usual.apply(faces, 0).client, usual.apply(faces, 1).client)


def test_lognormal_over_images_meets_quotas_of_images_with_whole_identities() -> None:
    rng = np.random.default_rng(0)
    faces = face_set(rng.integers(2, 40, 600).tolist())
    partition = PartitionPlan(by="lognormal-images", clients=15, sigma=1).apply(faces, 3)
    images = np.sort(images_of(partition))
    assert images.sum() == len(faces)
    assert images[-1] > 4 * images[0]
    held = identities_of(faces, partition)
    assert sum(map(len, held)) == len(set.union(*held)) == 600
    # Log-sizes of a log-normal spread as much as its sigma says.
    assert 0.5 < np.log(images).std() < 1.6


def test_shares_become_whole_numbers_of_the_same_sum() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        clients = int(rng.integers(1, 30))
        least = int(rng.integers(1, 4))
        total = int(rng.integers(least * clients, 300))
        shares = lognormal_quotas(clients, total, 3, 20 * rng.random(), rng)
        whole = at_least(least, shares)
        assert whole.sum() == total
        assert whole.min() >= least
        assert (whole == whole.astype(int)).all()
        assert (np.argsort(shares, kind="stable")[-1:] == whole.argmax()) or whole.max() == whole[shares.argmax()]


def test_shared_identities_are_held_by_several_clients_which_divide_their_images() -> None:
    faces = face_set([12] * 40)
    partition = PartitionPlan(by="equal", clients=8, shared=0.25, holders=3).apply(faces, 0)
    held = identities_of(faces, partition)
    holders = np.array([sum(code in client for client in held) for code in range(40)])
    assert sorted(holders.tolist()) == [1] * 30 + [3] * 10
    assert {len(client) for client in held} <= {7, 8}
    for code in np.flatnonzero(holders == 3):
        images = np.bincount(partition.client[faces.identity == code], minlength=8)
        assert sorted(images[images > 0].tolist()) == [4, 4, 4]


def test_the_last_clients_may_be_new() -> None:
    partition = PartitionPlan(by="equal", clients=20, new_clients=5).apply(face_set([5] * 60), 0)
    assert partition.new == frozenset(partition.clients[15:])
    assert partition.trained == partition.clients[:15]


def test_images_go_by_attributes_and_those_that_fit_several_even_things_out() -> None:
    rng = np.random.default_rng(0)
    male, young = rng.random(600) < 0.5, rng.random(600) < 0.5
    faces = face_set([20] * 30, Male=male, Young=young)
    plan = PartitionPlan(by="attributes", predicates=("Male", "Male & !Young", "Young & !Male"), min_images=1)
    partition = plan.apply(faces, 0)
    first, second, third = (partition.rows(name) for name in partition.clients)
    assert male[first].all()
    assert (male[second] & ~young[second]).all()
    assert (young[third] & ~male[third]).all()
    np.testing.assert_array_equal(partition.client == -1, ~male & ~young)
    # The first has all that is male and young already, so the second gets what fits both.
    assert abs(len(first) - len(second)) < 40


def test_several_clients_per_predicate() -> None:
    male = np.tile([True, False], 100)
    faces = face_set([20] * 10, Male=male)
    partition = PartitionPlan(by="attributes", predicates=("Male", "!Male"), clients=2, new_clients=1).apply(faces, 0)
    assert partition.clients == ("client-000", "client-001", "client-002", "client-003")
    assert all(male[partition.rows(name)].all() for name in partition.clients[:2])
    assert [len(held) for held in identities_of(faces, partition)] == [5] * 4
    assert partition.new == {"client-003"}


def test_a_domain_is_the_source_and_the_others_are_targets() -> None:
    domain = np.tile(["studio", "door", "web", "web"], 60)
    faces = face_set([24] * 10, domain=domain)
    partition = PartitionPlan(by="domain", source="studio").apply(faces, 0)
    assert partition.clients == ("studio", "door", "web")
    for name in partition.clients:
        assert set(domain[partition.rows(name)]) == {name}
    assert (partition.client >= 0).all()
    finer = PartitionPlan(by="domain", source="studio", clients=2).apply(faces, 0)
    assert finer.clients == ("studio", "door-000", "door-001", "web-000", "web-001")


def test_every_identity_is_trained_and_tested_by_its_holder() -> None:
    faces = face_set([2, 3, 4, 5, 10, 100, 2, 7])
    partition = PartitionPlan(by="equal", clients=2).apply(faces, 0)
    for code in range(8):
        splits = np.bincount(partition.split[faces.identity == code], minlength=3)
        assert splits[Split.TRAIN] >= 1
        assert splits[Split.TEST] >= 1
    hundred = np.bincount(partition.split[faces.identity == 5], minlength=3)
    assert np.abs(hundred - [70, 10, 20]).max() <= 2


def test_a_small_share_is_met_over_the_whole_client_where_no_identity_alone_could() -> None:
    partition = PartitionPlan(by="equal", clients=1).apply(face_set([4] * 100), 0)
    assert np.abs(np.bincount(partition.split) - [260, 40, 100]).max() <= 1  # at least one of four for the test


def test_no_test_images_where_none_are_wanted() -> None:
    plan = PartitionPlan(by="equal", clients=2, train=1.0, val=0.0, test=0.0, min_images=1)
    assert not plan.apply(face_set([1, 2, 3, 4]), 0).split.any()


def test_a_client_holds_no_more_than_it_may_in_whole_identities() -> None:
    faces = face_set([3, 5, 7, 4, 6, 30] * 4)
    plan = PartitionPlan(by="equal", clients=3, max_images=20)
    partition = plan.apply(faces, 1)
    free = PartitionPlan(by="equal", clients=3).apply(faces, 1)
    for name in partition.clients:
        rows, all_ = partition.rows(name), free.rows(name)
        assert set(rows) < set(all_)
        held = set(faces.identity[rows].tolist())
        assert len(rows) == sum(faces.images_per_identity[code] for code in held)  # nobody is cut in two
        assert len(rows) <= 20 or len(held) == 1
        left_out = {code for code in faces.identity[all_].tolist() if code not in held}
        assert all(len(rows) + faces.images_per_identity[code] > 20 for code in left_out)
    assert np.array_equal(partition.client, plan.apply(faces, 1).client)
    assert not np.array_equal(partition.client, plan.apply(faces, 2).client)
    assert np.array_equal(PartitionPlan(by="equal", clients=3, max_images=1000).apply(faces, 1).client, free.client)


def test_small_identities_are_left_out_only_when_asked() -> None:
    faces = face_set([1, 5, 5, 1, 5])
    with pytest.raises(DataError, match=r"2 of 5 identities have fewer than 2 images, the first is 'person-0'"):
        PartitionPlan(by="equal", clients=2).apply(faces, 0)
    partition = PartitionPlan(by="equal", clients=2, drop_small=True).apply(faces, 0)
    assert faces.identity[partition.client == -1].tolist() == [0, 3]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"clients": 0}, "`clients` must be at least 1"),
        ({"clients": 4, "shared": 1.5}, "`shared` is a share"),
        ({"clients": 4, "shared": 0.5, "holders": 1}, "`holders` must be at least 2"),
        ({"clients": 4, "shared": 0.5, "holders": 5}, "`holders` cannot exceed `clients`"),
        ({"by": "one-identity", "shared": 0.5}, "`shared` goes with"),
        ({"clients": 4, "new_clients": -1}, "`new_clients` cannot be negative"),
        ({"clients": 4, "sigma": -1.0}, "`sigma` not negative"),
        ({"clients": 4, "mu": float("nan")}, "`mu` must be finite"),
        ({"clients": 4, "train": 0.5}, "must add up to 1"),
        ({"clients": 4, "train": float("nan")}, "must add up to 1"),
        ({"clients": 4, "train": 0.0, "test": 0.9}, "`train` must be positive"),
        ({"clients": 4, "min_images": 0}, "`min_images` must be at least 1"),
        ({"by": "attributes"}, "`predicates` and by 'attributes' go together"),
        ({"clients": 4, "predicates": ("Male",)}, "`predicates` and by 'attributes' go together"),
        ({"by": "domain"}, "`source` and by 'domain' go together"),
        ({"by": "attributes", "predicates": ("Male &",)}, "an attribute is missing at the end"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as told:
        PartitionPlan(**options)
    assert complaint in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        (
            {"clients": 5},
            DataError,
            "faces: 4 identities with at least 2 images are too few for 5 clients; ask",
        ),
        ({"by": "equal"}, ConfigError, "by 'equal' needs the number of `clients`"),
        ({"clients": 4, "new_clients": 4}, ConfigError, "`new_clients` is 4 of 4 clients; some must train"),
        ({"clients": 4, "shared": 0.5, "holders": 3}, DataError, "2 identities are to be shared by 3 clients each"),
        ({"by": "domain", "source": "webb"}, ConfigError, "no domain is called 'webb'; did you mean 'web'?"),
        ({"by": "domain", "source": "x"}, ConfigError, "no domain is called 'x'; there are web"),
        ({"by": "domain", "source": "web"}, DataError, "'web' is the only domain"),
        ({"by": "attributes", "predicates": ("male",)}, ConfigError, "'male'; did you mean 'Male'?"),
        ({"by": "attributes", "predicates": ("!Male",)}, DataError, "no image fits the predicate '!Male'"),
    ],
)
def test_plans_that_do_not_fit_the_faces(options: dict[str, object], error: type, complaint: str) -> None:
    faces = face_set([5] * 4, domain=np.full(20, "web"), Male=np.ones(20, dtype=bool))
    with pytest.raises(error) as told:
        PartitionPlan(**options).apply(faces, 0)
    assert complaint in str(told.value)


def test_faces_without_domains_are_told() -> None:
    with pytest.raises(DataError, match="have no domain; add a `domain` column"):
        PartitionPlan(by="domain", source="web").apply(face_set([5] * 4), 0)


def test_an_experiment_file_is_validated_against_the_plan() -> None:
    validator = TypeAdapter(PartitionPlan)
    plan = validator.validate_python({"by": "attributes", "predicates": ["Male", "!Male"], "drop_small": True})
    assert plan == PartitionPlan(by="attributes", predicates=("Male", "!Male"), drop_small=True)
    with pytest.raises(ValidationError, match=r"client\n.*[Uu]nexpected"):
        validator.validate_python({"by": "equal", "clients": 5, "client": 3})
    with pytest.raises(ConfigError, match="`clients` must be at least 1"):
        validator.validate_python({"clients": 0})


COLUMNS = {
    "Male": np.array([0, 0, 1, 1], dtype=bool),
    "Young": np.array([0, 1, 0, 1], dtype=bool),
    "5_o_Clock_Shadow": np.array([1, 0, 0, 0], dtype=bool),
    "domain": np.array(["a", "b", "c", "d"]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Male", [0, 0, 1, 1]),
        (" ! Male ", [1, 1, 0, 0]),
        ("!!Male", [0, 0, 1, 1]),
        ("Male&Young", [0, 0, 0, 1]),
        ("Male | Young", [0, 1, 1, 1]),
        ("Male & !Young", [0, 0, 1, 0]),
        ("5_o_Clock_Shadow | Male & Young", [1, 0, 0, 1]),
        ("(5_o_Clock_Shadow | Male) & Young", [0, 0, 0, 1]),
        ("!(Male | Young) | Male & Young", [1, 0, 0, 1]),
        ("Male" + " & Male" * 5000, [0, 0, 1, 1]),
    ],
)
def test_predicates(text: str, expected: list[int]) -> None:
    assert parse(text).fits(COLUMNS).tolist() == [bool(value) for value in expected]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "an attribute is missing at the end"),
        ("Male &", "an attribute is missing at the end"),
        ("& Male", "an attribute is missing before '&'"),
        ("Male Young", "unexpected 'Young'"),
        ("(Male", "a parenthesis is not closed"),
        ("Male)", "unexpected ')'"),
        ("Male == 1", "cannot read '== 1'"),
        ("__import__('os').system('ls')", "cannot read \"'os').system('ls')\""),
        ("(" * 1000 + "Male" + ")" * 1000, "nested too deeply"),
        ("!" * 100_000 + "Male", "nested too deeply"),
    ],
)
def test_predicates_that_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(text)
    assert complaint in str(told.value)


@pytest.mark.parametrize(
    ("name", "hint"), [("Mail", "did you mean 'Male'?"), ("Q", "there are 5_o"), ("domain", "there")]
)
def test_unknown_attributes_are_named_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(f"Young & {name}").fits(COLUMNS)
    assert f"no attribute is called {name!r}; {hint}" in str(told.value)


def test_rows_of_ten_thousand_clients_are_found_fast() -> None:
    partition = PartitionPlan(by="one-identity").apply(face_set([10] * 10_000), 0)
    partition.rows("client-000")
    start = time.perf_counter()
    total = sum(len(partition.rows(name, Split.TRAIN)) for name in partition.clients)
    assert time.perf_counter() - start < 1
    assert total == (partition.split == Split.TRAIN).sum()


def test_the_summary_and_the_table_tell_the_same(tmp_path: Path) -> None:
    faces = face_set([10] * 12)
    partition = PartitionPlan(by="equal", clients=4, shared=0.5, new_clients=1).apply(faces, 0)
    partition.write_table(faces, tmp_path / "partition.csv")
    with (tmp_path / "partition.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 120
    for holding in partition.summary(faces):
        mine = [line for line in table if line["client"] == holding.client]
        assert len({line["identity"] for line in mine}) == holding.identities
        counts = [sum(line["split"] == split for line in mine) for split in ("train", "val", "test")]
        assert counts == [holding.train, holding.val, holding.test]
        assert holding.new == (holding.client == "client-003")
    row = faces.columns["path"].tolist().index(table[0]["image"])
    assert faces.identities[faces.identity[row]] == table[0]["identity"]


@pytest.mark.parametrize(
    "plan",
    [
        PartitionPlan(by="equal", clients=5),
        PartitionPlan(by="lognormal-identities", clients=20, new_clients=5),
        PartitionPlan(by="lognormal-images", clients=500, sigma=1, new_clients=50),
    ],
    ids=["five", "twenty", "five hundred"],
)
def test_a_partition_is_drawn(tmp_path: Path, plan: PartitionPlan) -> None:
    faces = face_set([4] * 1000)
    plot_partition(faces, plan.apply(faces, 0), tmp_path / "partition.png")
    with Image.open(tmp_path / "partition.png") as picture:
        assert picture.format == "PNG"
        assert picture.width >= 700
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(0x3B, 0x6E, 0xA5), (0xE0, 0xA3, 0x3E), (0xB5, 0x52, 0x3B)} <= colours
    assert list(tmp_path.iterdir()) == [tmp_path / "partition.png"]


def test_the_examples_of_the_guide_work_on_synthetic_faces() -> None:
    """Among them the twenty clients by attributes of a published study."""
    guide = (Path(__file__).parents[3] / "docs" / "howto" / "data.md").read_text(encoding="utf-8")
    shown = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", guide, re.DOTALL))
    examples = [example["partition"] for example in shown if "partition" in example]
    assert {example["by"] for example in examples} == set(get_args(By))
    people, shots = torch.arange(1500).repeat_interleave(20), torch.arange(20).repeat(1500)
    visible = synthetic.attributes(people, shots, seed=0).numpy()
    domain = np.where(people.numpy() % 2, "studio", "webcam")
    attributes = {name: visible[:, column] for column, name in enumerate(synthetic.ATTRIBUTES)}
    faces = face_set([20] * 1500, domain=domain, **attributes)
    for example in examples:
        plan = TypeAdapter(PartitionPlan).validate_python(example)
        partition = plan.apply(faces, 0)
        assert all(len(partition.rows(name, Split.TRAIN)) for name in partition.clients)
        if plan.by == "attributes":
            assert len(partition.trained) == 15
            assert len(partition.new) == 5
            for name, predicate in zip(partition.clients, plan.predicates, strict=True):
                assert parse(predicate).fits(faces.columns)[partition.rows(name)].all()
