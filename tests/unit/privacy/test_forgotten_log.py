"""The log of what was forgotten: every change of a line, and of their order, is noticed."""

import json
from pathlib import Path

import pytest

from personae.errors import ConfigError, DataError
from personae.privacy.forgotten_log import LOG, ForgottenEntry, append, operator_key, read_log, verify


def entry(client: str) -> ForgottenEntry:
    return ForgottenEntry(
        when="2026-01-01T00:00:00+00:00",
        client=client,
        person=None,
        how="exactly",
        verified=("it is in no record",),
        membership="not measured",
        before={"models/a.safetensors": "00"},
        after={"models/a.safetensors": "11"},
    )


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


def written(run: Path, *clients: str) -> Path:
    for client in clients:
        append(run / LOG, entry(client), operator_key())
    return run / LOG


def test_a_log_is_read_and_verified(tmp_path: Path) -> None:
    written(tmp_path, "ann", "bob")
    checked = verify(tmp_path)
    assert checked.entries == read_log(tmp_path) == (entry("ann"), entry("bob"))
    assert len(checked.keys) == 1
    assert (tmp_path / "settings" / "personae" / "operator.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("field", ["client", "when", "before", "previous", "signature", "key"])
def test_a_changed_line_is_noticed(field: str, line: int, tmp_path: Path) -> None:
    path = written(tmp_path, "ann", "bob", "eve")
    lines = path.read_text().splitlines()
    content = json.loads(lines[line])
    content[field] = {"before": {"models/a.safetensors": "22"}}.get(field, "ab" * 32)
    lines[line] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=rf"{LOG}, line {line + 1}"):
        verify(tmp_path)


def test_a_missing_line_is_noticed_but_at_the_end_which_the_head_tells(tmp_path: Path) -> None:
    path = written(tmp_path, "ann", "bob", "eve")
    head, lines = verify(tmp_path).head, path.read_bytes().splitlines(keepends=True)
    for missing in (0, 1):
        path.write_bytes(b"".join(line for number, line in enumerate(lines) if number != missing))
        with pytest.raises(DataError, match="does not follow"):
            verify(tmp_path)
    path.write_bytes(b"".join(lines[:2]))
    assert verify(tmp_path).head != head


def test_what_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="made to forget nobody"):
        verify(tmp_path)
    with pytest.raises(ConfigError, match=r"--key .*none.key: there is no such file"):
        operator_key(tmp_path / "none.key")
    garbage = tmp_path / "garbage.key"
    garbage.write_text("no key")
    garbage.chmod(0o600)
    with pytest.raises(ConfigError, match="not a private key"):
        operator_key(garbage)
    garbage.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        operator_key(garbage)
    for content, words in (("[]", "it is no table"), ("{}", "it has no 'previous'"), ("{", "Expecting property name")):
        (tmp_path / LOG).write_text(f"{content}\n")
        with pytest.raises(DataError, match=rf"{LOG}, line 1, cannot be read: {words}"):
            read_log(tmp_path)
