"""A SuperLink and three SuperNodes as processes of their own, with TLS and keys: the same bits as in one process."""

import ast
from pathlib import Path

from lab import lab

EXPERIMENT = """
name = "tiny"
seed = 3

[network]
name = "small"
embedding = 8
height = 32
width = 32

[data.private]
identities = 6
images = 6

[partition]
by = "equal"
clients = 3

[[stages]]
name = "federate"
rounds = 2

[stages.algorithm]
name = "fedpe"
training = { batch_size = 8, iterations = 2 }
"""


FLOWER = {"flower-superlink", "flower-superexec", "flower-supernode", "flwr", "flwr-serverapp", "flwr-clientapp"}


def test_a_run_over_a_network_ends_in_the_same_bits_and_calls_nobody_else(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", EXPERIMENT) as here:
        here.serve("--deadline", "120")
        for client in here.clients:
            here.join(client)
        alone = here.alone()
        here.done()
        assert here.model() == here.model(alone)
        assert here.records("ledger") == here.records("ledger", alone)
        for client in here.clients:
            assert len(set(map(str, here.private(client, alone)))) == 1
        calls = [ast.literal_eval(line) for line in (here.folder / "calls.log").read_text().splitlines()]
    assert_only_loopback(calls)


def assert_only_loopback(calls: list[object]) -> None:
    started = {address[1] for address in calls if isinstance(address, tuple) and address[0] == "starts"}
    hosts = {address[0] for address in calls if isinstance(address, tuple) and address[0] != "starts"}
    assert hosts <= {"127.0.0.1", "::1"}
    assert hosts
    assert started <= {*FLOWER, "uname", "file"}  # and no installer
