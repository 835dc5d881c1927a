"""Templates, and the metadata of IJB in files that the tests write."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from personae.core.embedder import embed
from personae.data.align import TEMPLATE, similarity, template, warp
from personae.data.ijb import read_ijb
from personae.errors import DataError
from personae.evaluation.identification import search, tpir_at_fpir
from personae.evaluation.suite import evaluate
from personae.evaluation.templates import Roster, Templates, pool, template_identification, template_pairs
from personae.experiment.benchmarks import Setting, open_protocol

FILES = {
    "ijbc_face_tid_mid.txt": "1.jpg 7 100\n2.jpg 7 100\n3.jpg 7 200\n4.jpg 3 100\n5.jpg 9 5\n6.jpg 11 6\n",
    "ijbc_template_pair_label.txt": "7 3 1\n7 9 0\n3 9 0\n",
    "ijbc_1N_gallery_G1.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n3,40,img/4.jpg\n",
    "ijbc_1N_gallery_G2.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n9,50,img/5.jpg\n",
    "ijbc_1N_probe_mixed.csv": 'TEMPLATE_ID,SUBJECT_ID,FILENAME\n11,50,img/6.jpg\n7,40,"a,b"\n7,40,img/2.jpg\n7,40,x\n',
}


def write(folder, **changes):
    for name, text in FILES.items():
        key = name.removeprefix("ijbc_").split(".")[0]
        if (text := changes.get(key, text)) is not None:
            (folder / name).write_text(text)
    return folder


def test_the_official_files(tmp_path):
    meta = read_ijb(write(tmp_path), "ijbc")
    assert meta.images == ("1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg", "6.jpg")
    assert meta.templates.tolist() == [7, 7, 7, 3, 9, 11]
    assert meta.media.tolist() == [100, 100, 200, 100, 5, 6]
    assert (meta.left.tolist(), meta.right.tolist(), meta.same.tolist()) == ([7, 7, 3], [3, 9, 9], [True, False, False])
    assert [[side.tolist() for side in gallery] for gallery in meta.galleries] == [[[3], [40]], [[9], [50]]]
    assert [side.tolist() for side in meta.probes] == [[7, 11], [40, 50]]


def test_without_the_files_of_1_to_n(tmp_path):
    parts = dict.fromkeys(("1N_gallery_G1", "1N_gallery_G2", "1N_probe_mixed"))
    meta = read_ijb(write(tmp_path, **parts), "ijbc")
    assert meta.galleries == ()
    assert meta.probes is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"face_tid_mid": None}, "tid_mid.txt: cannot be read"),
        ({"face_tid_mid": "1.jpg 7\n"}, "line 1: 2 words, not 3"),
        ({"face_tid_mid": "1.jpg seven 1\n"}, "is not a number"),
        ({"template_pair_label": "7 3 2\n"}, "neither 0 nor 1"),
        ({"template_pair_label": "7 8 1\n"}, "template 8 is compared, but has no image"),
        ({"1N_gallery_G2": None}, "gallery_G2.csv: cannot be read .* belong together"),
        ({"1N_gallery_G1": "TEMPLATE_ID,SUBJECT_ID\n"}, "not a table"),
        ({"1N_probe_mixed": "TEMPLATE_ID\n3\n"}, "not a table"),
    ],
)
def test_files_that_are_wrong(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_ijb(write(tmp_path, **changes), "ijbc")


def test_media_first_and_then_templates():
    embeddings = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]])
    pooled = pool(embeddings, torch.tensor([7, 7, 7, 3, 3]), torch.tensor([100, 100, 200, 100, 100]))
    assert pooled.numbers.tolist() == [3, 7]
    # Of 7, the two images of medium 100 count half each; medium 100 of template 3 is another one.
    expected = F.normalize(torch.tensor([[0, 0.5, 0.5], [0.5, 0.5, 1]]))
    assert torch.allclose(pooled.vectors, expected)


def test_pairs_of_templates():
    pooled = Templates(torch.tensor([3, 7, 9]), torch.tensor([[1.0, 0], [0.6, 0.8], [0, 1]]))
    found = template_pairs(pooled, torch.tensor([9, 7]), torch.tensor([7, 3]), torch.tensor([True, False]))
    assert (found.genuine, found.impostor) == (pytest.approx([0.8]), pytest.approx([0.6]))
    with pytest.raises(DataError, match="template 8 has no image"):
        template_pairs(pooled, torch.tensor([9, 8]), torch.tensor([7, 3]), torch.tensor([True, False]))
    with pytest.raises(DataError, match="template 10 has no image"):
        template_pairs(pooled, torch.tensor([9, 10]), torch.tensor([7, 3]), torch.tensor([True, False]))


def test_identification_is_the_mean_over_the_galleries():
    random = torch.Generator().manual_seed(0)
    subjects = torch.arange(20).repeat(4)
    centres = torch.randn(20, 6, generator=random)
    vectors = F.normalize(centres[subjects] + 0.8 * torch.randn(80, 6, generator=random))
    numbers = torch.arange(80) * 3 + 5
    pooled = Templates(numbers, vectors)
    one, other, probing = torch.arange(10), torch.arange(10, 20), torch.arange(20, 80)
    galleries = [Roster(numbers[part], subjects[part]) for part in (one, other)]
    found = template_identification(pooled, galleries, Roster(numbers[probing], subjects[probing]), [0.1, 0.3])
    searches = [search(vectors[part], subjects[part], vectors[probing], subjects[probing]) for part in (one, other)]
    for fpir in (0.1, 0.3):
        assert found.tpir[fpir] == np.mean([tpir_at_fpir(each, [fpir])[fpir] for each in searches])
    assert found.rank[1] == np.mean([each.right[each.mated].mean() for each in searches])
    assert found.rank[5] == np.mean([(each.rank[each.mated] <= 5).mean() for each in searches])
    assert 0 < found.tpir[0.1] < found.rank[1] < found.rank[5] < 1


LANDMARKS = "".join(f"{at}.jpg {' '.join(str(10 * at + point) for point in range(10))} 0.9\n" for at in range(1, 7))


def test_galleries_of_ijb_b_have_other_names(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name.replace("ijbc", "ijbb").replace("_G", "_S")).write_text(text)
    meta = read_ijb(tmp_path, "ijbb")
    assert [gallery[0].tolist() for gallery in meta.galleries] == [[3], [9]]


def test_landmarks_belong_to_the_images_in_their_order(tmp_path):
    assert read_ijb(write(tmp_path), "ijbc").landmarks is None
    (tmp_path / "ijbc_name_5pts_score.txt").write_text(LANDMARKS)
    found = read_ijb(tmp_path, "ijbc").landmarks
    assert found.shape == (6, 5, 2)
    assert found[1].tolist() == [[20, 21], [22, 23], [24, 25], [26, 27], [28, 29]]
    for text, message in (
        (LANDMARKS.replace("2.jpg", "9.jpg"), "not the images of the list"),
        (LANDMARKS.replace("20 ", "x "), "a coordinate is not a number"),
        (LANDMARKS.replace(" 0.9", "", 1), "line 1: 11 words"),
    ):
        (tmp_path / "ijbc_name_5pts_score.txt").write_text(text)
        with pytest.raises(DataError, match=message):
            read_ijb(tmp_path, "ijbc")


def pictures(folder, names, size=(40, 40)):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name) + sum(map(ord, name))).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name, "PNG")


def grey(images):
    """The mean colours of four quarters: as good an embedder as any."""
    quarters = [images[:, y : y + 16, x : x + 16].float().mean(dim=(1, 2)) for y in (0, 16) for x in (0, 16)]
    return F.normalize(torch.cat(quarters, dim=1) - 110)


def test_ijb_c_from_its_folder(tmp_path):
    (tmp_path / "meta").mkdir()
    write(tmp_path / "meta")
    points = " ".join(f"{x:.2f} {y:.2f}" for x, y in TEMPLATE * 40 / 112)
    landmarks = "".join(f"{at}.jpg {points} 0.9\n" for at in range(1, 7))
    (tmp_path / "meta" / "ijbc_name_5pts_score.txt").write_text(landmarks)
    pictures(tmp_path / "loose_crop", [f"{at}.jpg" for at in range(1, 7)])
    setting = Setting(height=32, width=32, fars=(0.5,), resamples=20)
    result = evaluate(grey, [open_protocol("IJB-C", tmp_path, setting)]).results["IJB-C"]
    assert list(result.metrics) == ["tar@5e-01", "tpir@1e-01", "tpir@1e-02", "rank1", "rank5", "rank10"]
    assert (result.genuine_pairs, result.impostor_pairs) == (1, 2)
    assert set(result.intervals) <= {"tar@5e-01"}
    # Each image again by itself, aligned, embedded, pooled and compared.
    vectors = []
    for at in range(1, 7):
        pixels = np.asarray(Image.open(tmp_path / "loose_crop" / f"{at}.jpg"))
        moved = warp(pixels, similarity((TEMPLATE * 40 / 112).round(2), template(32, 32)), 32, 32)
        vectors.append(grey(torch.from_numpy(np.array(moved))[None])[0])
    seven = F.normalize((vectors[0] + vectors[1]) / 2 + vectors[2], dim=0)
    scores = [float(a @ b) for a, b in ((seven, vectors[3]), (seven, vectors[4]), (vectors[3], vectors[4]))]
    assert result.metrics["tar@5e-01"] == float(scores[0] > min(scores[1:]))
    (tmp_path / "loose_crop" / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"1\.jpg is neither in loose_crop"):
        open_protocol("ijbc", tmp_path, setting)
    with pytest.raises(DataError, match="no such folder"):
        open_protocol("ijbc", tmp_path / "nowhere", setting)


HEADER = "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"


def ijba(root):
    """Ten splits of four subjects: templates 1 to 8 for 1:1, and 1 to 4 in the gallery with 5 to 10 as probes."""
    rows = [(number, number % 4 + 1, f"img/{number}.jpg") for number in range(1, 11)]

    def lines(numbers):
        return "".join(f"{n},{s},{f},{n},1,,2,3,30,35\n" for n, s, f in rows if n in numbers)

    for split in range(1, 11):
        verify, search_ = (root / f"IJB-A_{kind}_sets" / f"split{split}" for kind in ("11", "1N"))
        for folder in (verify, search_):
            folder.mkdir(parents=True)
        (verify / f"verify_metadata_{split}.csv").write_text(HEADER + lines(range(1, 9)))
        (verify / f"verify_comparisons_{split}.csv").write_text("1,5\n2, 6\n1,2\n3,8\n1,4\n\n")
        (search_ / f"search_gallery_{split}.csv").write_text(HEADER + lines((1, 2, 3)))
        (search_ / f"search_probe_{split}.csv").write_text(HEADER + lines((5, 6, 7, 8)))
    pictures(root / "images", [f for _, _, f in rows])
    return root


def test_ijb_a_is_the_mean_over_ten_splits(tmp_path):
    ijba(tmp_path)
    setting = Setting(height=32, width=32, fars=(0.5,))
    protocol = open_protocol("ijba", tmp_path, setting)
    assert len(protocol.samples) == 8  # an image is embedded once, in however many splits it is
    result = evaluate(grey, [protocol]).results["ijba"]
    assert (result.genuine_pairs, result.impostor_pairs) == (20, 30)
    assert result.metrics["tar@5e-01_std"] == 0  # all splits are the same here
    split = protocol.splits[0]
    assert split.same.tolist() == [True, True, False, False, False]
    assert split.galleries[0].subjects.tolist() == [2, 3, 4]
    assert split.probes.subjects.tolist() == [2, 3, 4, 1]
    vectors = embed(grey, protocol.samples)
    pooled = pool(vectors[split.rows], split.templates, split.media)
    found = search(
        pooled.vectors[pooled.positions(split.galleries[0].templates)],
        split.galleries[0].subjects,
        pooled.vectors[pooled.positions(split.probes.templates)],
        split.probes.subjects,
    )
    assert result.metrics["rank1"] == found.right[found.mated].mean()
    assert result.metrics["tpir@1e-01"] == tpir_at_fpir(found, [0.1])[0.1]


def test_splits_that_are_wrong(tmp_path):
    ijba(tmp_path)
    setting = Setting(height=32, width=32)
    file = tmp_path / "IJB-A_11_sets/split4/verify_comparisons_4.csv"
    for text, message in (("1,5\n1,77\n", "split 4 compares template 77"), ("1,5,6\n", "not a table of two templates")):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            open_protocol("ijba", tmp_path, setting)
    file.unlink()
    with pytest.raises(DataError, match=r"cannot be read .* ten splits"):
        open_protocol("ijba", tmp_path, setting)
    table = tmp_path / "IJB-A_1N_sets/split1/search_probe_1.csv"
    table.write_text(HEADER.replace("MEDIA_ID", "MEDIUM") + "1,2,img/1.jpg,1,1,,2,3,30,35\n")
    with pytest.raises(DataError, match="not a table with the columns TEMPLATE_ID"):
        open_protocol("ijba", tmp_path, setting)
