"""Every test that the page on faults names exists."""

import re

import pytest

from pages import DOCS, ROOT

PAGE = (DOCS / "concepts" / "faults.md").read_text()
TESTS = {path.relative_to(ROOT / "tests").as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_a_test_that_guards_a_fault_is_there(name: str):
    assert any(f"def {name}(" in text for text in TESTS.values())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", PAGE))))
def test_a_file_that_guards_a_fault_is_there(name: str):
    assert any(path.endswith(name) for path in TESTS)


@pytest.mark.parametrize(
    "row", [line for line in PAGE.splitlines() if line.startswith("| ") and "| fault |" not in line]
)
def test_every_fault_has_a_remedy_and_a_test(row: str):
    _, fault, remedy, guard, _ = map(str.strip, row.split("|"))
    assert fault
    assert remedy
    assert "`" in guard
