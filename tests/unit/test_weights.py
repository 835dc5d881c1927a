import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from personae.errors import DataError
from personae.models import NETWORKS, Network, load_weights

NETWORK = Network(embedding=24, height=48, width=32)


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return NETWORK.build(torch.Generator().manual_seed(1)).state_dict()


def save(path: Path, content: object) -> Path:
    if path.suffix == ".safetensors":
        assert isinstance(content, dict)
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


def assert_equal(loaded: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) and loaded[key].dtype == state[key].dtype for key in state)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_weights_survive_a_file(tmp_path: Path, state: dict[str, Tensor], suffix: str) -> None:
    path = save(tmp_path / f"weights{suffix}", state)
    for network in (None, NETWORK):
        found, loaded = load_weights(path, network)
        assert found == NETWORK
        assert_equal(loaded, state)
        NETWORK.build().load_state_dict(loaded)


def test_a_linear_layer_after_the_backbone_is_recognised(tmp_path: Path) -> None:
    network = Network(name="small", embedding=5, height=48, width=48, hidden=20)
    state = network.build(torch.Generator().manual_seed(3)).state_dict()
    found, loaded = load_weights(save(tmp_path / "weights.pth", state))
    assert found == network
    assert_equal(loaded, state)
    with pytest.raises(DataError, match=r"not the weights of small \(5-d, 48x48, norm batch, hidden 21\)"):
        load_weights(tmp_path / "weights.pth", Network(name="small", embedding=5, height=48, width=48, hidden=21))


@pytest.mark.parametrize(
    ("network", "height", "width"),
    [(Network(name=name), 112, 96) for name in NETWORKS]
    + [(Network(name="iresnet18"), 112, 112), (Network(name="mobilefacenet"), 64, 48), (Network(norm="group"), 64, 64)]
    + [(Network(name="mobilefacenet", norm="group"), 64, 48), (Network(name="iresnet18", norm="group"), 64, 64)],
    ids=lambda value: value.name if isinstance(value, Network) else str(value),
)
def test_every_network_is_recognised(tmp_path: Path, network: Network, height: int, width: int) -> None:
    network = Network(name=network.name, norm=network.norm, embedding=16, height=height, width=width)
    state = {
        key: torch.zeros((), dtype=meta.dtype).expand(meta.shape) for key, meta in network.layout().state_dict().items()
    }
    found, loaded = load_weights(save(tmp_path / "weights.pth", state))
    assert found == network
    assert loaded.keys() == state.keys()


@pytest.mark.parametrize(
    "prefix", ["module.", "arcface.", "backbone.", "model.", "_orig_mod.", "module.model.backbone."]
)
def test_a_shared_prefix_is_removed(tmp_path: Path, state: dict[str, Tensor], prefix: str) -> None:
    path = save(tmp_path / "weights.safetensors", {prefix + key: tensor for key, tensor in state.items()})
    assert_equal(load_weights(path)[1], state)


def test_a_checkpoint_may_hold_more_than_the_weights(tmp_path: Path, state: dict[str, Tensor]) -> None:
    checkpoint = {
        "epoch": 3,
        "state_dict": OrderedDict(state),
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
    }
    assert_equal(load_weights(save(tmp_path / "checkpoint.pt", checkpoint))[1], state)


def test_half_precision_becomes_float32(tmp_path: Path, state: dict[str, Tensor]) -> None:
    half = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    _, loaded = load_weights(save(tmp_path / "weights.safetensors", half))
    assert_equal(loaded, {key: tensor.to(state[key].dtype) for key, tensor in half.items()})


class Payload:
    """Unpickled carelessly, it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_pickle_is_refused_and_never_runs(tmp_path: Path, state: dict[str, Tensor], protocol: int) -> None:
    target = tmp_path / "executed"
    archive = save(tmp_path / "archive.pth", {**state, "payload": Payload(target)})
    bare = tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps({"payload": Payload(target)}, protocol=protocol))
    for path in (archive, bare):
        with pytest.raises(DataError, match=f"{path.name}: holds no weights that can be read safely"):
            load_weights(path)
    assert not target.exists()

    pickle.loads(bare.read_bytes())
    assert target.exists(), "the payload is a real one"


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 64, b"not weights at all", b"PK\x03\x04 half an archive", b"\x80\x02}"]
)
def test_garbage_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"garbage{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=path.name):
        load_weights(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_truncated_file_is_refused(tmp_path: Path, state: dict[str, Tensor], suffix: str) -> None:
    path = save(tmp_path / f"weights{suffix}", state)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=path.name):
        load_weights(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.pth: cannot be read \(No such file"):
        load_weights(tmp_path / "absent.pth")
    with pytest.raises(DataError, match="cannot be read"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([torch.zeros(3)], "no set of weights"),
        ({}, "no set of weights"),
        ({"epoch": 3}, "no set of weights"),
        (
            {"teacher": {"a": torch.zeros(1)}, "student": {"a": torch.zeros(1)}},
            r"2 sets of weights \(teacher, student\)",
        ),
        ({"encoder.weight": torch.zeros(3)}, "no known network; there are small, "),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load_weights(save(tmp_path / "other.pth", content))


def test_mismatches_are_named_and_counted(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = save(tmp_path / "weights.safetensors", state)
    with pytest.raises(
        DataError, match=r"small \(32-d, 48x32.*fc.weight is float \[24, 576\] instead of float \[32, 576\]"
    ) as caught:
        load_weights(path, Network(embedding=32, height=48, width=32))
    assert "and 2 more" in str(caught.value)
    with pytest.raises(DataError, match=r"is missing.*and \d+ more"):
        load_weights(path, Network(name="iresnet18"))


def test_one_name_too_few_or_too_many(tmp_path: Path, state: dict[str, Tensor]) -> None:
    few = {key: tensor for key, tensor in state.items() if key != "stem.0.weight"}
    with pytest.raises(DataError, match=r"stem.0.weight is missing"):
        load_weights(save(tmp_path / "few.pth", few))
    with pytest.raises(DataError, match=r"head.weight is not part of it"):
        load_weights(save(tmp_path / "many.pth", {**state, "head.weight": torch.zeros(2)}))


@pytest.mark.parametrize("last", [None, torch.zeros(3), torch.zeros(24, 96), torch.zeros(24, 0)])
def test_sizes_that_cannot_be_told(tmp_path: Path, state: dict[str, Tensor], last: Tensor | None) -> None:
    odd = {key: tensor for key, tensor in state.items() if key != "fc.weight"}
    if last is not None:
        odd["fc.weight"] = last
    with pytest.raises(DataError, match="looks like small, but its last layers do not tell"):
        load_weights(save(tmp_path / "odd.pth", odd))


def test_counts_are_not_taken_for_numbers(tmp_path: Path, state: dict[str, Tensor]) -> None:
    odd = {**state, "stem.1.weight": torch.ones(16, dtype=torch.int64)}
    with pytest.raises(DataError, match=r"stem.1.weight is integer \[16\] instead of float \[16\]"):
        load_weights(save(tmp_path / "odd.pth", odd))


def test_weights_that_diverged_are_refused(tmp_path: Path, state: dict[str, Tensor]) -> None:
    broken = {**state, "fc.bias": torch.full((24,), torch.nan)}
    with pytest.raises(DataError, match=r"fc.bias holds values that are not finite"):
        load_weights(save(tmp_path / "broken.pth", broken))
