"""The tables of the pages on attackers are those of the results that are kept."""

import importlib
import re

import pytest

from pages import ROOT


def test_the_tables_follow_from_the_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pages = importlib.import_module("attack_pages")
    found = pages.board()
    assert found.present
    for page in pages.PAGES:
        text = page.read_text()
        assert pages.filled(text) == text
        assert set(re.findall("<!-- table: (.*) -->", text)) <= set(pages.tables(found))
