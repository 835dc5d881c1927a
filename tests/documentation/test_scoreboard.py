"""The tables of the page on attackers are those of the results that are kept."""

import importlib.util
import sys
from pathlib import Path

import pytest

from pages import ROOT


def test_the_tables_follow_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("attacks_benchmark", ROOT / "benchmarks" / "attacks.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, benchmark)  # dataclasses look their module up
    spec.loader.exec_module(benchmark)
    assert benchmark.cells(benchmark.RESULTS)
    written = tmp_path / "security.md"
    written.write_text(benchmark.PAGE.read_text())
    benchmark.page(benchmark.RESULTS, written)
    assert written.read_text() == benchmark.PAGE.read_text()
