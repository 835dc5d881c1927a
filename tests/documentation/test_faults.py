"""Every test that the page on faults names exists, and the table of tries is that of the results that are kept."""

import importlib
import re

import pytest

from pages import DOCS, ROOT

PAGE = (DOCS / "concepts" / "faults.md").read_text()
FAULTS = re.sub(r"<!-- table: .*?<!-- end -->", "", PAGE, flags=re.DOTALL)
TESTS = {path.relative_to(ROOT / "tests").as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_a_test_that_guards_a_fault_is_there(name: str):
    assert any(f"def {name}(" in text for text in TESTS.values())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", PAGE))))
def test_a_file_that_guards_a_fault_is_there(name: str):
    assert any(path.endswith(name) for path in TESTS)


@pytest.mark.parametrize(
    "row", [line for line in FAULTS.splitlines() if line.startswith("| ") and "| fault |" not in line]
)
def test_every_fault_has_a_remedy_and_a_test(row: str):
    _, fault, remedy, guard, _ = map(str.strip, row.split("|"))
    assert fault
    assert remedy
    assert "`" in guard


def test_the_table_of_tries_follows_from_the_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    hostile = importlib.import_module("hostile")
    assert hostile.filled(PAGE) == PAGE
    rows = [line for line in PAGE.partition(hostile.BEGIN)[2].partition(hostile.END)[0].splitlines() if line]
    assert len(rows) > 2
    assert all(row.endswith("| 0 |") for row in rows[2:])  # a fault that is known has a remedy
