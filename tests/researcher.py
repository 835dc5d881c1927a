"""A researcher's faces on disk: people with labels in one place, images without any in others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from personae.data import FaceSet, synthetic_faces

EXPERIMENT = """
name = "streets"
network = { height = 32, width = 32, embedding = 16 }
partition = { by = "domain", source = "office", val = 0.0, train = 0.8 }
evaluation = { folds = 2, pairs_per_fold = 10 }

[data.private.parts]
office = { source = "office" }
street = { source = "street", unlabelled = true }
station = { source = "station", unlabelled = true }

[data.heldout]
source = "others"

[[stages]]
name = "pretrain"
clients = "source"
algorithm = { name = "fedpe", head_init = "random", training = { epochs = 2, lr = 0.1 } }

[[stages]]
name = "cluster"
clients = "targets"
algorithm = { name = "cluster", clustering = { name = "c-finch", distance = 0.5 } }

[[stages]]
name = "adapt"
rounds = 2
algorithm = { name = "unsupervised", training = { iterations = 2 } }
"""


def write_faces(folder: Path, cache: Path, people: int = 6, images: int = 6) -> Path:
    """`office` and `others` with a folder per person, `street` and `station` flat; and the experiment."""
    for number, name in enumerate(("office", "others", "street", "station")):
        labelled = name in ("office", "others")
        domain = "studio" if labelled else "webcam"
        faces = synthetic_faces(
            identities=people, images=images, first=100 * number, domain=domain, size=32, cache=cache
        )
        write(faces, lambda row, who, root=folder / name, deep=labelled: root / (who if deep else "") / f"{row}.png")
    (folder / "streets.toml").write_text(EXPERIMENT)
    return folder / "streets.toml"


def write(faces: FaceSet, place: Callable[[int, str], Path]) -> None:
    for row in range(len(faces)):
        path = place(row, faces.identities[faces.identity[row]])
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(faces.images(np.array([row]))[0]).save(path)
