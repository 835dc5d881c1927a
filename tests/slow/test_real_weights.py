"""Published weights on their own benchmark: layout, input convention and loading all have to be right."""

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from personae.models import Network, load_weights

DATA = Path(__file__).parents[3] / "shared" / "data"
WEIGHTS, FACES = DATA / "weights" / "mobilefacenet_casia.pth", DATA / "lfw_112.zip"
PUBLISHED = 98.62

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (WEIGHTS.exists() and FACES.exists()), reason="no real faces or weights at ../shared/data"),
]


def test_mobilefacenet_reproduces_its_accuracy_on_lfw(capsys: pytest.CaptureFixture[str]) -> None:
    network, state = load_weights(WEIGHTS)
    assert network == Network(name="mobilefacenet", embedding=128, height=112, width=112)
    model = network.build()
    model.load_state_dict(state)

    with zipfile.ZipFile(FACES) as archive:
        pairs = read_pairs(archive.read("pairs.txt").decode())
        paths = sorted({path for first, second, _ in pairs for path in (first, second)})
        embeddings = dict(zip(paths, embed(model.eval(), archive, paths), strict=True))
    distances = np.array([float((embeddings[a] - embeddings[b]).square().sum()) for a, b, _ in pairs])
    accuracy = 100 * ten_fold_accuracy(distances, np.array([same for _, _, same in pairs]))

    with capsys.disabled():
        print(f"\nLFW, 10 folds: {accuracy.mean():.2f} +- {accuracy.std():.2f}")
    assert accuracy.mean() == pytest.approx(PUBLISHED, abs=0.1)


def read_pairs(text: str) -> list[tuple[str, str, bool]]:
    """Lines `name i j` are two images of one person, `name i other j` of two."""
    pairs = []
    for line in text.splitlines()[1:]:
        match line.split():
            case [name, i, j]:
                pairs.append((image_path(name, i), image_path(name, j), True))
            case [name, i, other, j]:
                pairs.append((image_path(name, i), image_path(other, j), False))
    assert len(pairs) == 6000
    return pairs


def image_path(name: str, number: str) -> str:
    return f"images/{name}/{name}_{int(number):04d}.jpg"


@torch.inference_mode()
def embed(model: nn.Module, archive: zipfile.ZipFile, paths: list[str], batch: int = 64) -> Tensor:
    """Each image plus its mirror, normalised."""
    model = model.to(memory_format=torch.channels_last)
    embeddings = []
    for start in range(0, len(paths), batch):
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(path)))) for path in paths[start : start + batch]]
        images = (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
        embeddings.append(F.normalize(model(images) + model(images.flip(3))))
    return torch.cat(embeddings)


def ten_fold_accuracy(distances: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Accuracy on each fold at the threshold that is best on the other nine."""
    thresholds = np.arange(0, 4, 0.01)
    correct = (distances[:, None] < thresholds) == same[:, None]
    counts = correct.reshape(10, -1, len(thresholds)).sum(axis=1)
    best = (counts.sum(axis=0) - counts).argmax(axis=1)
    return counts[np.arange(10), best] / (len(same) // 10)
