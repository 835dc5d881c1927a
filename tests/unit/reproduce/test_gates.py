"""The situation that a claim speaks of: verdicts from planted figures, and what is shown of a gate."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from personae import screen
from personae.console import output
from personae.reproduce.claims import Above, Claim, Comparison, Gate, Near, Rising
from personae.reproduce.findings import Finding, find
from personae.reproduce.pages import markdown, write_findings
from personae.reproduce.quantities import Quantity, constant
from personae.reproduce.reproduce import Reproduction
from personae.reproduce.statistics import Verdict
from personae.reproduce.systems import SYSTEMS

BETTER, WORSE, EITHER = (2.0, 2.1, 1.9), (-2.0, -2.1, -1.9), (2.0, -2.1, 0.3)
OUTCOMES: Any = {seed: {"oracle": seed} for seed in range(3)}  # the number of the seed in place of a run
ABOUT = {"system": "planted", "scale": "paper", "paper": "Nobody, Nothing", "seeds": [0, 1, 2]}


def planted(label: str, values: tuple[float, ...]) -> Quantity:
    """A figure by seed, read without any run."""
    return Quantity(label, (), lambda outcomes: values[outcomes["oracle"]])  # type: ignore[index]


def found(difference: tuple[float, ...], *conditions: Comparison) -> Finding:
    gates = tuple(Gate("it is there", condition) for condition in conditions)
    claim = Claim("T-1", "new > old", "1 > 0", (Above(planted("new", difference), constant(0)),), gates=gates)
    return find(claim, OUTCOMES)


def oracle(*values: float) -> Above:
    return Above(planted(f"oracle {values}", values), constant(90), by=1)  # a label stands for one quantity


@pytest.mark.parametrize(
    ("difference", "plain"), [(BETTER, Verdict.HOLDS), (WORSE, Verdict.FAILS), (EITHER, Verdict.NOISE)]
)
def test_a_gate_that_is_not_passed_takes_the_place_of_any_verdict(difference: tuple[float, ...], plain: Verdict):
    assert found(difference).verdict is plain
    assert found(difference, oracle(91.5, 92.0, 91.2)).verdict is plain
    assert found(difference, oracle(90.5, 90.2, 91.2)).verdict is Verdict.UNREACHED
    both = found(difference, oracle(91.5, 92.0, 91.2), oracle(90.5, 90.2, 91.2))
    assert both.verdict is Verdict.UNREACHED
    assert [situation.passed for situation in both.situations] == [True, False]


def test_a_gate_is_passed_by_the_mean_over_the_seeds():
    assert found(BETTER, oracle(90.5, 91.0, 91.5)).verdict is Verdict.HOLDS
    assert found(BETTER, oracle(90.5, 91.0, 91.4)).verdict is Verdict.UNREACHED


def test_a_gate_without_its_runs_leaves_the_claim_unmeasured_unless_another_gate_is_closed():
    assert found(BETTER, oracle(91.5, math.nan, 91.5)).verdict is Verdict.MISSING
    assert found(BETTER, oracle(91.5, math.nan, 91.5), oracle(90, 90, 90)).verdict is Verdict.UNREACHED
    assert found((1.0, math.nan, 1.0), oracle(91.5, 92.0, 91.2)).verdict is Verdict.MISSING


@pytest.mark.parametrize(
    ("condition", "met", "not_met"),
    [
        (Above(constant(1), constant(0), by=1), 1.0, 0.99),
        (Above(constant(1), constant(0), by=-2), -2.0, -2.01),  # adds at most two points
        (Near(constant(1), constant(0), within=5), -5.0, 5.1),
        (Rising((constant(0), constant(1))), 0.1, -0.1),
    ],
)
def test_every_comparison_can_be_a_gate(condition: Comparison, met: float, not_met: float):
    assert condition.met(met)
    assert not condition.met(not_met)


def test_the_gate_and_its_figure_are_on_the_page_in_the_file_and_on_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    claim = Claim(
        "T-1",
        "new > old",
        "1 > 0",
        (Above(planted("new", WORSE), constant(0)),),
        gates=(Gate("there is something to gain", Above(_needing_a_run("oracle"), constant(90), by=1)),),
    )
    finding = find(claim, OUTCOMES)
    write_findings([finding], ABOUT, tmp_path)
    (written,) = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert written["verdict"] == "regime not reached"
    assert written["comparisons"][0]["verdict"] == "does not hold"  # what was measured is not hidden
    (gate,) = written["gates"]
    assert gate == {
        "situation": "there is something to gain",
        "condition": "oracle > 90% + 1",
        "figures": gate["figures"],
        "differences": [0.0, 0.5, 1.0],
        "mean": 0.5,
        "passed": False,
    }
    assert gate["figures"][0] == {"label": "oracle", "variants": ["oracle"], "unit": "%", "values": [90.0, 90.5, 91.0]}
    row = "| T-1 | there is something to gain | oracle > 90% + 1 | oracle 90.50 ± 0.50 | no |"
    assert row in markdown([finding], ABOUT)
    assert row in (tmp_path / "claims.md").read_text()
    monkeypatch.setattr(output, "_width", 160)
    screen.findings_of_claims(Reproduction((finding,), ()), tmp_path, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "gate: there is something to gain (oracle > 90% + 1)" in shown
    assert "oracle 90.50 ± 0.50" in shown
    assert "not passed" in shown
    assert "regime not reached" in shown


def _needing_a_run(variant: str) -> Quantity:
    return Quantity(variant, (variant,), lambda outcomes: 90 + outcomes[variant] / 2)  # type: ignore[operator]


def test_a_claim_waits_for_the_runs_of_its_gates_and_shows_their_figures_there_alone():
    claim = Claim(
        "T-1",
        "",
        "",
        (Above(planted("new", BETTER), constant(0)),),
        gates=(Gate("", Above(_needing_a_run("oracle"), constant(90))),),
    )
    assert claim.variants == ("oracle",)
    assert [quantity.label for quantity in claim.quantities] == ["new", "0%"]


@pytest.mark.parametrize(
    ("name", "gated"), [("fedgc", 12), ("fedface", 8), ("fedfr", 9), ("hf_maml", 7), ("unsupervised", 9)]
)
def test_the_papers_whose_situation_can_be_measured_have_gates(name: str, gated: int):
    assert sum(bool(claim.gates) for claim in SYSTEMS[name].claims) == gated
