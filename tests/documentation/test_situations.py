"""The tables of the recommended method are those of the kept measurements, and the situations are what they say."""

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from pages import ROOT
from personae.core.algorithm import ClientInfo
from personae.core.selection import Occasion


@pytest.fixture
def situations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("situations")


def test_the_page_has_the_kept_figures(situations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = situations.PAGE.read_text()
    monkeypatch.setattr(situations, "PAGE", tmp_path / "page.md")
    before, _, rest = written.partition(situations.BEGIN)
    (tmp_path / "page.md").write_text(f"{before}{situations.BEGIN}{situations.END}{rest.partition(situations.END)[2]}")
    situations.page(situations.RESULTS)
    assert (tmp_path / "page.md").read_text() == written


def test_the_curves_are_those_of_the_kept_runs(
    situations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = importlib.import_module("situation_curves")
    drawn = curves.IMAGE.read_text()
    monkeypatch.setattr(curves, "IMAGE", tmp_path / "curves.svg")
    curves.draw(curves.RESULTS)
    assert (tmp_path / "curves.svg").read_text() == drawn
    kept, ends = curves.known(curves.RESULTS), situations.known(situations.RESULTS)
    assert kept
    for (method, seed), line in kept.items():
        assert line["visits"][-1] == 10 * situations.VISITS
        if "heldout" in ends.get(("usual", method, seed), {}):  # evaluations on the way change nothing
            assert line["heldout"][-1] == ends["usual", method, seed]["heldout"]


@pytest.mark.parametrize("method", ["fedpe", "recommended"])
def test_of_twelve_clients_three_are_there_at_a_time_and_all_are_asked_as_often(
    situations: ModuleType, method: str
) -> None:
    (stage,) = situations.plan_of(("stretches", method, 0))["stages"]
    policy = situations.InStretches(**{name: value for name, value in stage["selection"].items() if name != "name"})
    clients = [ClientInfo(f"c{number}", number) for number in range(12)]
    asked = [policy.select(Occasion(clients, 0, "train", at, stage["rounds"])) for at in range(1, stage["rounds"] + 1)]
    visits = Counter(client.name for cohort in asked for client in cohort)
    assert visits == Counter({client.name: situations.VISITS for client in clients})
    stretch = stage["rounds"] // 16
    for begin in range(0, stage["rounds"], stretch):
        assert len({client.name for cohort in asked[begin : begin + stretch] for client in cohort}) == 3
    assert [len(cohort) for cohort in asked] == [
        policy.count(12, at, stage["rounds"]) for at in range(1, stage["rounds"] + 1)
    ]


def test_every_method_has_the_same_client_work(situations: ModuleType) -> None:
    for name, situation in situations.SITUATIONS.items():
        if not situation.unlabelled:
            plans = {method: situations.plan_of((name, method, 0))["stages"][-1] for method in situation.methods}
            there = situation.available or situation.clients
            groups = situation.clients // there
            for method, stage in plans.items():
                cohort = stage["selection"].get("clients") or there
                passes = stage["rounds"] / -(-there // cohort) / (1 if method == "pooled" else groups)
                assert passes == situations.VISITS, (name, method)
