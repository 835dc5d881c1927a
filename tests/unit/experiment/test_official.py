"""The layouts of the field's benchmarks, in small files that the tests write."""

import io
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image
from typer.testing import CliRunner

from personae.cli import app
from personae.data import open_faces, read_group_pairs, read_pairs
from personae.data.readers.official import FOLDS, LAYOUTS, find_layout, read_official
from personae.errors import ConfigError, DataError
from personae.evaluation.protocols import GroupBenchmark, PairBenchmark
from personae.experiment.benchmarks import Setting, open_protocol
from personae.experiment.config import load_experiment
from personae.experiment.execution import Execution
from personae.experiment.materials import Materials

PEOPLE = 12


def image(root: Path, path: str) -> None:
    seed = sum(map(ord, path))
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(stream.getvalue())


def names() -> list[str]:
    return [f"Ann_{chr(97 + at)}" for at in range(PEOPLE)]


def genuine_then_impostor(name: str) -> list[tuple[str, str]]:
    """Two genuine pairs a fold, and one impostor pair, by position in the folds."""
    people = names()
    same = [
        (f"{people[at % PEOPLE]}_{1 + at // PEOPLE:{name}}", f"{people[at % PEOPLE]}_{2 + at // PEOPLE:{name}}")
        for at in range(20)
    ]
    other = [(f"{one}_{1:{name}}", f"{two}_{1:{name}}") for one, two in list(pairwise(people))[:10]]
    return same + other


def calfw(root: Path) -> Path:
    pairs = genuine_then_impostor("04")
    lines = []
    for at, ends in enumerate(pairs):
        label = at // 2 + 1 if at < 20 else 0  # the fold of a genuine pair
        lines += [f"{end}.jpg {label}" for end in ends]
        for end in ends:
            image(root, f"aligned images/{end}.jpg")
    (root / "pairs_CALFW.txt").write_text("\n".join(lines) + "\n")
    return root


def cplfw(root: Path) -> Path:
    lines = []
    for at, ends in enumerate(genuine_then_impostor("")):
        lines += [f"{end}.jpg {int(at < 20)}" for end in ends]
        for end in ends:
            image(root, f"images/{end}.jpg")
    (root / "pairs_CPLFW.txt").write_text("\n".join(lines) + "\n")
    return root


def sllfw(root: Path) -> Path:
    lines = []
    pairs = genuine_then_impostor("04")
    for fold in range(FOLDS):
        for left, right in (*pairs[2 * fold : 2 * fold + 2], pairs[20 + fold]):
            for end in (left, right):
                path = f"{end.rpartition('_')[0]}/{end}.jpg"
                lines.append(path)
                image(root, path)
    (root / "pair_SLLFW.txt").write_text("\n".join(lines) + "\n")
    return root


def cfp(root: Path, kind: str = "FP") -> Path:
    protocol = root / "Protocol"
    for letter, folder in (("F", "frontal"), ("P", "profile")):
        lines = []
        for at in range(24):
            path = f"Data/Images/{at // 2 + 1:03}/{folder}/{at % 2 + 1:02}.jpg"
            image(root, path)
            lines.append(f"{at + 1} ../{path}")
        protocol.mkdir(exist_ok=True)
        (protocol / f"Pair_list_{letter}.txt").write_text("\n".join(lines) + "\n")
    for fold in range(FOLDS):
        folder = protocol / "Split" / kind / f"{fold + 1:02}"
        folder.mkdir(parents=True)
        (folder / "same.txt").write_text(f"{2 * fold + 1},{2 * fold + 2}\n{2 * fold + 2},{2 * fold + 1}\n")
        (folder / "diff.txt").write_text(f"{2 * fold + 1},{2 * fold + 3}\n")
    return root


def three_words(root: Path, file: str, folder: str) -> Path:
    lines = []
    for at in range(30):
        lines.append(f"{2 * at}.jpg {2 * at + 1}.jpg {int(at % 3 < 2)}")
        for end in (2 * at, 2 * at + 1):
            image(root, f"{folder}{end}.jpg")
    (root / file).write_text("\n".join(lines) + "\n")
    return root


def agedb(root: Path) -> Path:
    """As MATLAB writes ten cells of a struct with 2 x N cells of names in structs, and labels."""
    splits = np.empty((FOLDS, 1), dtype=object)
    for fold in range(FOLDS):
        ends = [
            (f"{fold}_Ann{fold}_31_f", f"{fold + 50}_Ann{fold}_62_f", 1),
            (f"{fold}_Ann{fold}_31_f", f"{fold + 70}_Ann{fold}_65_f", 1),
            (f"{fold}_Ann{fold}_31_f", f"{fold + 90}_Bob{fold}_61_m", -1),
        ]
        cells = np.empty((2, 3), dtype=object)
        for at, (first, second, _) in enumerate(ends):
            cells[0, at], cells[1, at] = ({"name": end} for end in (first, second))
            for end in (first, second):
                image(root, f"03_Protocol_Images/{end}.jpg")
        splits[fold, 0] = {"pair": cells, "labels": np.array([[label for *_, label in ends]])}
    scipy.io.savemat(root / "04_FINAL_protocol_30_years.mat", {"splits": splits})
    return root


MADE = {
    "calfw": calfw,
    "cplfw": cplfw,
    "sllfw": sllfw,
    "cfpfp": cfp,
    "agedb30": agedb,
    "agedb30 text": lambda root: three_words(root, "agedb_30_pair.txt", "agedb30_align_112/"),
    "cfpfp text": lambda root: three_words(root, "cfp_fp_pair.txt", "CFP_FP_aligned_112/"),
    "vgg2fp": lambda root: three_words(root, "vgg2_fp_pair.txt", ""),
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


def test_every_layout_is_tried():
    assert {name.split()[0] for name in MADE} | {"cfpff"} == {layout.name for layout in LAYOUTS}


@pytest.mark.parametrize("kind", MADE)
def test_a_fold_has_its_share_of_either_kind(kind, root, tmp_path):
    """All of the sets written here have ten folds of two genuine pairs and an impostor pair."""
    MADE[kind](root)
    faces = open_faces(root, height=16, width=16, cache=tmp_path / "cache")
    pairs = read_pairs(root, faces)
    assert (pairs.folds, pairs.alone) == (10, True)
    assert pairs.same.tolist() == [True, True, False] * 10
    assert pairs.named == ("text" not in kind and kind != "vgg2fp")
    if pairs.named:
        assert ((faces.identity[pairs.left] == faces.identity[pairs.right]) == pairs.same).all()
    benchmark = open_protocol(kind.split()[0], root, Setting(height=16, width=16, cache=tmp_path / "cache"))
    assert isinstance(benchmark, PairBenchmark)
    assert benchmark.pairs.same.tolist() == pairs.same.tolist()


def test_calfw_keeps_its_numbered_folds_together(root, tmp_path):
    calfw(root)
    faces = open_faces(root, height=16, width=16, cache=tmp_path / "cache")
    pairs = read_pairs(root, faces)
    listed = genuine_then_impostor("04")
    paths = [Path(path).stem for path in faces.columns["path"]]
    for fold in range(10):
        ends = [(paths[pairs.left[at]], paths[pairs.right[at]]) for at in range(3 * fold, 3 * fold + 3)]
        assert ends == [*listed[2 * fold : 2 * fold + 2], listed[20 + fold]]
    assert "Ann_a" in faces.identities


def test_cfp_numbers_frontal_and_profile_images_apart(root):
    cfp(root)
    pairs, _ = read_official(root, find_layout(root))
    assert pairs[0] == ("Data/Images/001/frontal/01.jpg", "Data/Images/001/profile/02.jpg", True)
    assert pairs[2] == ("Data/Images/001/frontal/01.jpg", "Data/Images/002/profile/01.jpg", False)


def test_cfp_has_frontal_pairs_too(root):
    cfp(root, "FF")
    pairs, _ = read_official(root, find_layout(root, "cfpff"))
    assert pairs[0] == ("Data/Images/001/frontal/01.jpg", "Data/Images/001/frontal/02.jpg", True)


def test_a_folder_with_several_lists_needs_a_name(root, tmp_path):
    calfw(cplfw(root))
    with pytest.raises(DataError, match=r"has the lists of calfw and cplfw; say which is meant: calfw=/.+ or cplfw=/"):
        open_faces(root, height=16, width=16, cache=tmp_path)
    chosen = open_faces(root, height=16, width=16, cache=tmp_path, layout="cplfw")
    assert "images/Ann_a_1.jpg" in chosen.columns["path"]
    assert find_layout(root, "cplfw").file == "pairs_CPLFW.txt"
    (root / "pairs.txt").write_text("1 1\n")
    assert find_layout(root) is None  # LFW, as ever


def test_inspect_proposes_the_benchmarks_of_a_folder_and_takes_their_names(root):
    cfp(cfp(root), "FF")

    def tell(*words):
        return CliRunner().invoke(app, ["data", "inspect", *words], env={"COLUMNS": "300"})

    told = tell(str(root))
    assert told.exit_code == 0, told.output
    assert f"{root}: cfpfp and cfpff" in told.output
    assert "42 images of 11 identities" in told.output
    assert f"say which is meant: cfpfp={root} or cfpff={root}" in told.output
    assert f"personae evaluate MODEL --on cfpfp={root} --on cfpff={root}" in told.output
    for name, images in (("cfpfp", 41), ("CFP-FF", 21)):
        told = tell(f"{name}={root}", "--json")
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert (found["images"], found["identities"], found["faults"]) == (images, 11, [])
        assert found["advice"]["commands"] == [f"personae evaluate MODEL --on {found['layout']}={root}"]
    found = json.loads(tell(f"{root}/Data/Images", "--json").stdout)  # 12 people and no domains
    assert (found["identities"], found["domains"]) == (12, {})
    found = json.loads(tell(str(root.parent), "--json").stdout)
    assert any(fault.endswith(f"in set it is laid out as cfpfp and cfpff; give {root}") for fault in found["faults"])
    assert "ijbc is read by `personae evaluate` alone" in str(tell(f"ijbc={root}").exception)
    assert "there is no path" in str(tell("cfpfp=").exception)


def test_an_experiment_names_the_layout_of_its_held_out_faces(root, tmp_path):
    cfp(cfp(root), "FF")
    settings = [f"data.heldout.source={root}"]
    with pytest.raises(DataError, match=r"say which is meant: .+, or layout = \"cfpfp\""):
        _ = Materials(load_experiment("quick", settings), Execution(cache=tmp_path)).heldout
    faces = Materials(
        load_experiment("quick", [*settings, "data.heldout.layout=CFP-FP"]), Execution(cache=tmp_path)
    ).heldout
    assert (len(faces), len(faces.identities)) == (41, 11)
    with pytest.raises(ConfigError, match=r"no layout is called 'cfpf'.+did you mean"):
        load_experiment("quick", [*settings, "data.heldout.layout=cfpf"])
    with pytest.raises(ConfigError, match="layout does not go with synthetic faces"):
        load_experiment("quick", ["data.heldout.layout=cfpfp"])


def test_where_names_and_labels_disagree_the_labels_count(root, tmp_path):
    calfw(root)
    file = root / "pairs_CALFW.txt"
    lines = file.read_text().splitlines()
    lines[0], lines[2] = lines[2], lines[0]
    file.write_text("\n".join(lines))
    faces = open_faces(root, height=16, width=16, cache=tmp_path / "cache")
    pairs = read_pairs(root, faces)
    assert not pairs.named
    assert pairs.same[0]
    assert len(faces.identities) == len(faces)


@pytest.mark.parametrize(
    ("kind", "file", "change", "message"),
    [
        ("calfw", "pairs_CALFW.txt", lambda text: text.rpartition("\n")[0].rpartition("\n")[0], "59 lines, and a pair"),
        ("calfw", "pairs_CALFW.txt", lambda text: text.replace(" 3\n", " 4\n", 1), "line 9: a pair is two lines"),
        ("calfw", "pairs_CALFW.txt", lambda text: text.replace(" 3\n", " x\n"), "line 9: a pair is two lines"),
        ("calfw", "pairs_CALFW.txt", lambda text: "", "lists no pairs"),
        ("calfw", "pairs_CALFW.txt", lambda text: "\n".join(text.splitlines()[:-2]), "do not make 10 equal folds"),
        ("calfw", "pairs_CALFW.txt", lambda text: text.replace("Ann_c_0001", "../../secret"), "leaves the folder"),
        ("calfw", "pairs_CALFW.txt", lambda text: text.replace("Ann_c_0001", "Ann_q_0001"), "Ann_q_0001.jpg .no such"),
        (
            "calfw",
            "pairs_CALFW.txt",
            lambda text: text.replace("Ann_", "Bob_"),
            "neither in aligned images",
        ),
        ("sllfw", "pair_SLLFW.txt", lambda text: text.replace("Ann_a/", "", 1), "line 1: not a path"),
        ("sllfw", "pair_SLLFW.txt", lambda text: "\n".join(text.splitlines()[:-1]), "59 lines, and a pair"),
        ("vgg2fp", "vgg2_fp_pair.txt", lambda text: text.replace(" 0\n", " 2\n", 1), "line 3: not `image image label`"),
        (
            "cfpfp",
            "Protocol/Pair_list_P.txt",
            lambda text: text.replace("3 ../", "three ../", 1),
            "line 3: not `number",
        ),
        (
            "cfpfp",
            "Protocol/Pair_list_P.txt",
            lambda text: text.replace("../Data", "../../Data", 1),
            "leaves the folder",
        ),
        ("cfpfp", "Protocol/Split/FP/03/diff.txt", lambda text: "5,999\n", "not two numbers of the lists"),
        ("cfpfp", "Protocol/Split/FP/03/diff.txt", lambda text: None, "diff.txt: cannot be read"),
        ("agedb30", "04_FINAL_protocol_30_years.mat", lambda text: "not a table", "not AgeDB's protocol"),
    ],
)
def test_lists_that_are_wrong(root, tmp_path, kind, file, change, message):
    MADE[kind](root)
    changed = change("" if file.endswith(".mat") else (root / file).read_text())
    (root / file).unlink()
    if changed is not None:
        (root / file).write_text(changed)
    with pytest.raises(DataError, match=message):
        open_faces(root, height=16, width=16, cache=tmp_path / "cache")


def test_folds_that_are_missing(root, tmp_path):
    cfp(root)
    for file in (root / "Protocol/Split/FP/10").iterdir():
        file.unlink()
    (root / "Protocol/Split/FP/10").rmdir()
    with pytest.raises(DataError, match="9 folders, where 10 folds"):
        open_faces(root, height=16, width=16, cache=tmp_path / "cache")


@pytest.mark.parametrize(("name", "file"), [("CALFW", "pairs_CALFW.txt"), ("AgeDB-30", "04_FINAL.*agedb_30_pair.txt")])
def test_a_named_benchmark_has_to_be_there(root, tmp_path, name, file):
    image(root, "someone/1.jpg")
    with pytest.raises(DataError, match=f"no {file} in it"):
        open_protocol(name, root, Setting(height=16, width=16, cache=tmp_path / "cache"))


def rfw(root: Path) -> Path:
    for number, group in enumerate(("African", "Asian")):
        lines = []
        for at in range(20):
            name = f"m.{number}{at:02}"
            for photo in (1, 2):
                image(root, f"data/{group}/{name}/{name}_{photo:04}.jpg")
            lines.append(f"{name}\t1\t2")
        lines += [f"m.{number}{at:02}\t1\tm.{number}{at + 1:02}\t2" for at in range(10)]
        (root / "txts" / group).mkdir(parents=True)
        (root / "txts" / group / f"{group}_pairs.txt").write_text("\n".join(lines) + "\n")
    return root


def test_groups_have_pairs_and_people_of_their_own(root, tmp_path):
    rfw(root)
    faces = open_faces(root, height=16, width=16, cache=tmp_path / "cache")
    groups = read_group_pairs(root, faces)
    assert list(groups) == ["African", "Asian"]
    for name, pairs in groups.items():
        assert pairs.same.tolist() == [True, True, False] * 10
        assert set(faces.columns["domain"][pairs.left]) == {name}
        assert ((faces.identity[pairs.left] == faces.identity[pairs.right]) == pairs.same).all()
        assert faces.columns["path"][pairs.left[0]].startswith(f"data/{name}/m.")
    benchmark = open_protocol("rfw", root, Setting(height=16, width=16, cache=tmp_path / "cache"))
    assert isinstance(benchmark, GroupBenchmark)
    assert read_group_pairs(tmp_path, faces) is None


def test_groups_that_are_wrong(root, tmp_path):
    rfw(root)
    file = root / "txts/Asian/Asian_pairs.txt"
    text = file.read_text()
    for changed, message in (
        (text.replace("m.100\t1\t2", "m.100\t1"), "line 1: 2 words"),
        (text.replace("m.100\t1\t2", "m.100\tone\t2"), "'one' is not the number"),
        (text.replace("m.100\t1\t2", "m.100\t1\t7"), "m.100_0007.jpg .no such file"),
        ("", "lists no pairs"),
        (text.replace("m.100\t1\t2\n", ""), "do not make 10 equal folds"),
    ):
        file.write_text(changed)
        with pytest.raises(DataError, match=message):
            open_faces(root, height=16, width=16, cache=tmp_path / "cache")
    image(root.parent / "plain", "someone/1.jpg")
    with pytest.raises(DataError, match=r"no txts/GROUP/GROUP_pairs\.txt"):
        open_protocol("RFW", root.parent / "plain", Setting(height=16, width=16, cache=tmp_path / "cache"))
