"""Photographs of real people, where they are at hand: every image is read, and clients are made of them."""

from pathlib import Path

import numpy as np
import pytest

from personae.data import PartitionPlan, open_faces, synthetic_faces
from personae.data.partition import Split

CELEBA = Path(__file__).resolve().parents[3] / "shared" / "data" / "celeba299_112.zip"

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not CELEBA.exists(), reason=f"{CELEBA.name} is not at hand")
def test_real_faces_are_read_and_divided(tmp_path: Path) -> None:
    faces = open_faces(CELEBA, height=112, width=112, cache=tmp_path)
    assert len(faces) == 6236
    assert len(faces.identities) == 299
    assert faces.unreadable == 0
    assert faces.identities == tuple(sorted(faces.identities, key=int))
    means = np.array([faces.images(rows).mean() for rows in np.array_split(np.arange(6236), 20)])
    assert ((means > 60) & (means < 180)).all()
    spread = np.array([faces.images(np.array([row])).std() for row in range(0, 6236, 50)])
    assert (spread > 15).all()  # none of them blank
    again = open_faces(CELEBA, height=112, width=112, cache=tmp_path)
    assert again.fingerprint == faces.fingerprint
    partition = PartitionPlan(by="lognormal-identities", clients=20, new_clients=5, drop_small=True).apply(faces, 0)
    assert len(partition.trained) == 15
    images = np.array([[len(partition.rows(name, split)) for split in Split] for name in partition.clients])
    assert images[:, Split.TRAIN].min() >= 1
    assert np.abs(images.sum(axis=0) / images.sum() - [0.7, 0.1, 0.2]).max() < 0.02


def test_faces_rendered_by_several_processes_are_the_same(tmp_path: Path) -> None:
    one, two = (
        synthetic_faces(identities=410, images=10, size=16, cache=tmp_path / str(workers), workers=workers)
        for workers in (1, 2)
    )
    assert one.fingerprint == two.fingerprint
    rows = np.arange(len(one))
    np.testing.assert_array_equal(one.images(rows), two.images(rows))
