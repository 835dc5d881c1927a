"""Templates, and the metadata of IJB in files that the tests write."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from personae.data.ijb import read_ijb
from personae.errors import DataError
from personae.evaluation.identification import search, tpir_at_fpir
from personae.evaluation.templates import Roster, Templates, pool, template_identification, template_pairs

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
        ({"face_tid_mid": "1.jpg seven 1\n"}, "is no number"),
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
