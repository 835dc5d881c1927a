"""The page of results is what the files of finished reproductions say."""

import json
import subprocess
import sys
from pathlib import Path

from personae.reproduce.results import page
from personae.reproduce.systems import SYSTEMS

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_the_page_is_made_from_the_files():
    made = subprocess.run(
        [sys.executable, "-m", "personae.reproduce.results", RESULTS / "claims"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (RESULTS / "claims.md").read_text() == page(RESULTS / "claims")


def test_its_claims_are_those_of_the_papers():
    for path in (RESULTS / "claims").glob("*.json"):
        content = json.loads(path.read_text())
        known = {claim.id: claim for claim in SYSTEMS[content["system"]].claims}
        for claim in content["claims"]:
            assert (claim["claim"], claim["paper"]) == (known[claim["id"]].sentence, known[claim["id"]].paper)
            assert len(claim["gates"]) == len(known[claim["id"]].gates)


def test_every_claim_has_a_row_and_one_that_was_not_judged_says_so(tmp_path: Path):
    lines = page(tmp_path).splitlines()
    for system in SYSTEMS.values():
        for claim in system.claims:
            (row,) = (line for line in lines if line.startswith(f"| **{claim.id}** "))
            assert row.endswith("| – | not judged | – | – | – |")
    count = sum(len(system.claims) for system in SYSTEMS.values())
    assert f"Verdicts on {count} claims: *not judged* {count}." in lines


def judged(folder: Path, scale: str, verdict: str, passed: bool | None = True) -> None:
    """FF-3 as a reproduction with two seeds would have it."""
    gates = [
        {
            "condition": "central > FedFace + 1",
            "figures": [
                {"variants": ["central"], "values": [92.0, 93.0]},
                {"variants": [], "values": [1.0, 1.0]},
                {"variants": ["fedface"], "values": [90.0, None]},
            ],
            "passed": passed,
        }
    ]
    parts = [
        {"claims": "a > b", "mean": 0.5, "interval": [-1.0, 2.0], "half_of_paper": 1.25, "p": 0.01, "verdict": "holds"},
        {
            "claims": "|a − b| < 1",
            "mean": None,
            "interval": None,
            "half_of_paper": None,
            "p": None,
            "verdict": "not measured",
        },
        {
            "claims": "c > d",
            "mean": -2.0,
            "interval": [-3.0, -1.0],
            "half_of_paper": None,
            "p": 0.97,
            "verdict": verdict,
        },
    ]
    claim = {"id": "FF-3", "claim": "it is so", "paper": "1 > 0", "verdict": verdict}
    content = {
        "system": "fedface",
        "scale": scale,
        "seeds": [0, 1],
        "claims": [{**claim, "gates": gates, "comparisons": parts}],
    }
    (folder / f"{scale}.json").write_text(json.dumps(content))


def row(folder: Path) -> list[str]:
    (line,) = (line for line in page(folder).splitlines() if line.startswith("| **FF-3** "))
    return line.strip("| ").split(" | ")[2:]


def test_a_row_has_the_comparison_that_decides_and_below_are_all(tmp_path: Path):
    judged(tmp_path, "paper", "does not hold")
    assert row(tmp_path) == ["-2.00, -3.00 to -1.00*", "**does not hold**", "passed", "paper", "2"]
    assert """### FF-3, paper: does not hold

it is so.

| comparison | difference | half of the paper's | verdict |
|---|---|---|---|
| a > b | 0.50, -1.00 to 2.00 | 1.25 | holds |
| /a − b/ < 1 | – | – | not measured |
| c > d | -2.00, -3.00 to -1.00 | – | does not hold |

| gate | figures | |
|---|---|---|
| central > FedFace + 1 | 92.50, – | passed |
""" in page(tmp_path)


def test_of_several_scales_the_row_has_the_one_that_says_most(tmp_path: Path):
    judged(tmp_path, "small", "does not hold")
    judged(tmp_path, "paper", "regime not reached", passed=False)
    assert row(tmp_path)[1:] == ["**does not hold**", "passed", "small", "2"]
    judged(tmp_path, "large", "holds", passed=None)
    assert row(tmp_path)[1:] == ["**holds**", "not measured", "large", "2"]
    judged(tmp_path, "paper", "within noise")
    assert row(tmp_path)[3] == "large"
