"""A sign from one process of a server to another."""

from pathlib import Path

from personae.deployment.bells import Bells


def test_a_bell_is_heard_once_by_the_other_side_and_from_when_it_listens(tmp_path: Path) -> None:
    server = Bells.of_the_server(tmp_path)
    server.ring()
    gate = Bells.of_the_gate(tmp_path)
    assert not gate.rung()
    server.ring()
    server.ring()
    assert gate.rung()
    assert not gate.rung()
    assert not server.rung()
    gate.ring()
    assert server.rung()
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
