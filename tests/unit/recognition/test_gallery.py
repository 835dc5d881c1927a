"""A gallery keeps what it is given, belongs to one model, forgets for good, and refuses what is not its own."""

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.errors import ConfigError, DataError
from personae.experiment.model import Model
from personae.recognition import gallery as galleries
from personae.recognition.gallery import APPLICATION, VERSION, Gallery
from personae.recognition.gallery_key import KEY_FILE, key_file
from personae.recognition.recogniser import Recogniser, enroll, open_gallery
from personae.recognition.threshold import Threshold, by_hand

WIDTH = 16


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "people.db"
    with Gallery.create(file, "a model", WIDTH, by_hand(0.5)) as made:
        made.add("Ada", drawn(3, 1))
        made.add("Grace", drawn(2, 2))
    return file


def test_what_is_kept_comes_back_to_the_bit(path: Path) -> None:
    with Gallery.open(path) as known:
        assert (known.model, known.width) == ("a model", WIDTH)
        assert known.people() == {"Ada": 3, "Grace": 2}
        assert known.threshold == Threshold(0.5, None, "set by hand")
        everybody = known.everybody()
        assert everybody.names == ("Ada", "Grace")
        assert torch.equal(everybody.vectors, torch.cat([drawn(3, 1), drawn(2, 2)]))
        assert everybody.person.tolist() == [0, 0, 0, 1, 1]
        assert torch.equal(known.of("Grace"), drawn(2, 2))
        known.threshold = Threshold(0.25, 1e-3, "lfw, 9 pairs")
    with Gallery.open(path) as known:
        assert known.threshold == Threshold(0.25, 1e-3, "lfw, 9 pairs")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no journal stays


def test_the_same_face_is_kept_once(path: Path) -> None:
    with Gallery.open(path) as known:
        assert known.add("Ada", torch.cat([drawn(3, 1), drawn(1, 9)])) == 1
        assert known.add("Grace", drawn(3, 1)) == 3  # of somebody else, it is another
        assert known.people() == {"Ada": 4, "Grace": 5}


def test_accents_are_spelt_one_way(path: Path) -> None:
    with Gallery.open(path) as known:
        known.add("José", drawn(1, 3))
        assert known.add(" Jose\N{COMBINING ACUTE ACCENT}", drawn(1, 4)) == 1
        assert known.people()["José"] == 2
        assert known.remove("Jose\N{COMBINING ACUTE ACCENT}") == 2


def test_who_is_removed_is_gone_from_the_file(path: Path) -> None:
    traces = [b"Ada", *(row.numpy().astype("<f4").tobytes() for row in drawn(3, 1))]
    assert all(trace in path.read_bytes() for trace in traces)
    with Gallery.open(path) as known:
        for number in range(4):  # so that pages are freed, and not only cells within one
            known.add(f"person {number}", drawn(100, 10 + number))
        before = path.stat().st_size
        known.remove("person 0")
        assert path.stat().st_size < 0.9 * before
        before = path.stat().st_size
        assert known.remove("Ada") == 3
        assert known.people()["Grace"] == 2
        with pytest.raises(ConfigError, match=r"people.db: nobody is called 'Ada'"):
            known.remove("Ada")
    content = path.read_bytes()
    assert not any(trace in content for trace in traces)
    assert drawn(100, 10)[50].numpy().tobytes() not in content
    assert drawn(100, 11)[50].numpy().tobytes() in content
    assert path.stat().st_size <= before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_deletion_alone_overwrites(path: Path) -> None:
    """Should the machine stop before the file is rewritten."""
    with Gallery.open(path) as known:
        known._connection.execute("DELETE FROM people WHERE name = 'Ada'")
    content = path.read_bytes()
    assert not any(row.numpy().astype("<f4").tobytes() in content for row in drawn(3, 1))


def test_a_failure_half_way_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    with Gallery.open(path) as known:
        blob = drawn(1, 5)[0].numpy().tobytes()[:-1]  # a byte short
        monkeypatch.setattr(known, "_checked", lambda vectors: [_Row(blob)])
        with pytest.raises(DataError, match=r"people.db: this gallery is damaged \(CHECK constraint failed"):
            known.add("Eve", drawn(1, 5))
        assert "Eve" not in known.people()
    assert path.read_bytes() == before


class _Row:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def numpy(self) -> "_Row":
        return self

    def astype(self, kind: str) -> "_Row":
        return self

    def tobytes(self) -> bytes:
        return self.content


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 201, "\0"])
def test_names_that_are_none(path: Path, name: str) -> None:
    with Gallery.open(path) as known, pytest.raises(ConfigError, match=" is not a valid name; give 1 to 200 printable"):
        known.add(name, drawn(1))


@pytest.mark.parametrize("vectors", [torch.zeros(2, WIDTH + 1), torch.zeros(WIDTH), torch.zeros(0, WIDTH)])
def test_vectors_of_another_shape(path: Path, vectors: torch.Tensor) -> None:
    with Gallery.open(path) as known, pytest.raises(DataError, match=r"people.db: keeps vectors of 16 numbers"):
        known.add("Eve", vectors)
    with Gallery.open(path) as known, pytest.raises(DataError, match="not finite"):
        known.add("Eve", torch.full((1, WIDTH), torch.nan))


def test_two_processes_take_turns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "_WAIT", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Gallery.open(path) as known:
        assert known.people() == {"Ada": 3, "Grace": 2}
        with pytest.raises(ConfigError, match=r"people.db: another process is changing this gallery"):
            known.add("Eve", drawn(1))
        other.execute("ROLLBACK")
        assert known.add("Eve", drawn(1)) == 1
    other.close()


def test_a_gallery_is_made_where_nothing_is(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"people.db: no gallery can be made here \(File exists\)"):
        Gallery.create(path, "a model", WIDTH)
    with pytest.raises(ConfigError, match="1 to 16384"):
        Gallery.create(tmp_path / "wide.db", "a model", 2**20)
    with pytest.raises(ConfigError, match=r"absent.db: cannot be read \(No such file"):
        Gallery.open(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()
    assert not (tmp_path / "wide.db").exists()


def altered(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


MARK = (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {VERSION}")
HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "text": lambda file: file.write_bytes(b"not a database, but long enough to have a header" * 4),
    "somebody else's": lambda file: (file.unlink(), altered(file, "CREATE TABLE t (x)")),
    "a marked stranger": lambda file: (file.unlink(), altered(file, *MARK, "CREATE TABLE t (x)")),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 7]),
    "a page cut short": lambda file: file.write_bytes(file.read_bytes()[:-200]),
    "garbage inside": lambda file: file.write_bytes(file.read_bytes()[:4096] + os.urandom(file.stat().st_size - 4096)),
    "a later format": lambda file: altered(file, f"PRAGMA user_version = {VERSION + 1}"),
    "a trigger": lambda file: altered(file, "CREATE TRIGGER t AFTER INSERT ON people BEGIN DELETE FROM people; END"),
    "a view that never ends": lambda file: altered(
        file,
        "ALTER TABLE gallery RENAME TO kept",
        "CREATE VIEW gallery AS WITH RECURSIVE n(model, width) AS"
        " (SELECT 'a', 1 UNION ALL SELECT model, width + 1 FROM n) SELECT * FROM n ORDER BY width DESC",
    ),
    "another column": lambda file: altered(file, "ALTER TABLE people ADD COLUMN secret"),
    "two owners": lambda file: altered(file, "INSERT INTO gallery SELECT * FROM gallery"),
    "no owner": lambda file: altered(file, "DELETE FROM gallery"),
    "a width that lies": lambda file: altered(file, "UPDATE gallery SET width = 1000000000"),
    "a width that is none": lambda file: altered(file, "UPDATE gallery SET width = 'x'"),
}


EDITED: dict[str, tuple[str, ...]] = {
    "a threshold that lets all in": ("""UPDATE gallery SET threshold = '{"score": -1, "far": null, "source": ""}'""",),
    "no threshold": ("UPDATE gallery SET threshold = NULL",),
    "another model": ("UPDATE gallery SET model = 'another'",),
    "another's face": ("UPDATE faces SET person = 1 WHERE person = 2",),
    "an altered face": ("UPDATE faces SET vector = zeroblob(64) WHERE id = 1",),
    "another name": ("UPDATE people SET name = 'Mallory' WHERE name = 'Ada'",),
    "somebody more": (
        "INSERT INTO people (name) VALUES ('Mallory')",
        "INSERT INTO faces (person, vector) SELECT 3, zeroblob(64)",
    ),
    "somebody less": ("DELETE FROM faces WHERE person = 1", "DELETE FROM people WHERE id = 1"),
    "no seal": ("UPDATE gallery SET seal = x'', faces_seal = x''",),
}


@pytest.mark.parametrize("kind", EDITED)
def test_what_something_else_has_changed_is_refused(path: Path, kind: str) -> None:
    with Gallery.open(path) as known:
        altered(path, *EDITED[kind])  # while it is in use, too
        with pytest.raises(DataError, match="something else than personae has changed this gallery"):
            _ = known.threshold, known.everybody()
        with pytest.raises(DataError, match="something else than personae has changed this gallery"):
            _ = known.add("Eve", drawn(1)), known.threshold  # and what is false is not sealed
    with pytest.raises(DataError, match="something else than personae has changed this gallery"):
        Gallery.open(path)


def test_the_key_lies_elsewhere_and_is_for_its_owner(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "elsewhere" / "key"))
    with pytest.raises(ConfigError, match="its key is not here"):
        Gallery.open(path)
    Gallery.create(tmp_path / "other.db", "a model", WIDTH).close()  # which makes a key of its own
    with pytest.raises(DataError, match="made with another key"):
        Gallery.open(path)
    key_file().chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Gallery.open(tmp_path / "other.db")
    key_file().chmod(0o600)
    key_file().write_bytes(b"short")
    with pytest.raises(ConfigError, match="not the key of a gallery"):
        Gallery.open(tmp_path / "other.db")


def test_no_flipped_byte_is_accepted_or_ends_in_a_traceback(path: Path) -> None:
    whole, chance = path.read_bytes(), random.Random(5)
    with Gallery.open(path) as known:
        kept = known.threshold, known.people(), known.everybody().vectors
    for place in [*range(100), *(chance.randrange(len(whole)) for _ in range(300))]:
        content = bytearray(whole)
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with suppress(ConfigError, DataError), Gallery.open(path) as known:
            assert (known.threshold, known.people()) == kept[:2]  # it was free space, or a counter
            assert torch.equal(known.everybody().vectors, kept[2])
        for leftover in path.parent.glob("people.db-*"):
            leftover.unlink()


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_are_not_ours(path: Path, kind: str) -> None:
    HOSTILE[kind](path)
    with pytest.raises(DataError, match=r"^\S*people\.db: [^\n]+$") as refused:
        Gallery.open(path)
    if kind in ("empty", "text", "somebody else's"):
        assert "no gallery; give a file that `personae enroll` made" in str(refused.value)


def test_a_vector_that_was_cut_is_named(path: Path) -> None:
    altered(path, "PRAGMA ignore_check_constraints = ON", "UPDATE faces SET vector = x'00' WHERE id = 4")
    with pytest.raises(DataError, match=r"people\.db: [^\n]*(damaged|CHECK)[^\n]*$"):
        Gallery.open(path).everybody()
    altered(path, "PRAGMA ignore_check_constraints = ON", "UPDATE faces SET vector = zeroblob(20000000) WHERE id = 4")
    with pytest.raises(DataError, match=r"people\.db: "):
        Gallery.open(path).everybody()


class Colours:
    """The vector of an image is its first few pixels."""

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return F.normalize(images.flatten(1)[:, :WIDTH].float() - 127.5, dim=1)


MODEL = Model(Colours(), 4, 4, "colours")


def faces(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def unit(images: torch.Tensor) -> np.ndarray:
    rows = images.flatten(1)[:, :WIDTH].double().numpy() - 127.5
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_people_are_the_mean_directions_of_their_faces(tmp_path: Path) -> None:
    people = {"Ada": faces(3, 1), "Grace": faces(2, 2), "Joan": faces(1, 3)}
    means = {name: unit(images).mean(axis=0) for name, images in people.items()}
    means = {name: mean / np.linalg.norm(mean) for name, mean in means.items()}
    with open_gallery(tmp_path / "people.db", MODEL) as known:
        for name, images in people.items():
            assert enroll(known, MODEL, name, images) == len(images)
        used = Recogniser(MODEL, by_hand(0.4), known)
        probes = torch.cat([faces(5, 7), people["Grace"]])
        found = used.identify(probes)
        for probe, match in zip(unit(probes), found, strict=True):
            scores = {name: float(probe @ mean) for name, mean in means.items()}
            assert match.name == max(scores, key=lambda name: scores[name])
            assert match.score == pytest.approx(scores[match.name], abs=1e-6)
            assert match.accepted == (match.score >= 0.4)
        assert found[-1].name == "Grace"
        assert found[-1].accepted
        claim = used.verify("Ada", people["Grace"][0])
        assert claim.score == pytest.approx(float(unit(people["Grace"])[0] @ means["Ada"]), abs=1e-6)
        assert (claim.name, claim.accepted) == ("Ada", claim.score >= 0.4)
        two = used.compare(people["Ada"][0], people["Ada"][1])
        assert two.score == pytest.approx(float(unit(people["Ada"])[0] @ unit(people["Ada"])[1]), abs=1e-6)
        assert Recogniser(MODEL, by_hand(two.score), known).compare(people["Ada"][0], people["Ada"][1]).accepted
        above = by_hand(float(np.nextafter(np.float32(two.score), np.float32(2))))
        assert not Recogniser(MODEL, above, known).compare(people["Ada"][0], people["Ada"][1]).accepted


def test_a_gallery_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"people.db: this gallery is of another model"):
        open_gallery(path, MODEL)
    with Gallery.open(path) as known:
        with pytest.raises(ConfigError, match="of another model"):
            Recogniser(MODEL, by_hand(0.5), known)
        with pytest.raises(ConfigError, match="of another model"):
            enroll(known, MODEL, "Eve", faces(1, 1))
    assert Gallery.open(path).people() == {"Ada": 3, "Grace": 2}


def test_misuse_is_one_line(tmp_path: Path) -> None:
    with open_gallery(tmp_path / "people.db", MODEL) as known:
        used = Recogniser(MODEL, by_hand(0.5), known)
        with pytest.raises(DataError, match=r"people.db: nobody is enrolled yet"):
            used.identify(faces(1, 1))
        with pytest.raises(ConfigError, match=r"people.db: nobody is called 'Eve'"):
            used.verify("Eve", faces(1, 1)[0])
        for wrong in (torch.zeros(1, 5, 4, 3, dtype=torch.uint8), torch.zeros(1, 4, 4, 3), faces(0, 1)):
            with pytest.raises(DataError, match=r"the model takes uint8 \[N, 4, 4, 3\]"):
                used.identify(wrong) if known.people() else enroll(known, MODEL, "Eve", wrong)
    with pytest.raises(ConfigError, match="this needs a gallery"):
        Recogniser(MODEL, by_hand(0.5)).identify(faces(1, 1))
    with pytest.raises(ConfigError, match="from -1 to 1"):
        by_hand(1.5)
