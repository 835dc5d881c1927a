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
            assert "| not judged with its gates |" in row
            assert f"`personae reproduce {system.name} --scale paper --claims {claim.id}`" in row


def test_a_row_by_hand(tmp_path: Path):
    gates = [
        {
            "condition": "oracle > FedPE + 1",
            "figures": [
                {"variants": ["oracle"], "values": [92.0, 93.0]},
                {"variants": [], "values": [1.0, 1.0]},
                {"variants": ["fedpe"], "values": [90.0, None]},
            ],
            "passed": None,
        }
    ]
    parts = [
        {"claims": "a > b", "mean": 0.5, "interval": [-1.0, 2.0]},
        {"claims": "|a − b| < 1", "mean": None, "interval": None},
    ]
    claim = {"id": "T-1", "claim": "it is so", "paper": "1 > 0", "verdict": "not measured"}
    content = {
        "system": "tiny",
        "scale": "paper",
        "seeds": [0, 1],
        "claims": [{**claim, "gates": gates, "comparisons": parts}],
    }
    (tmp_path / "tiny.json").write_text(json.dumps(content))
    assert page(tmp_path).splitlines()[-1] == (
        "| **T-1** it is so | 1 > 0 | a > b<br>/a − b/ < 1 | 0.50, -1.00 to 2.00<br>– | **not measured** | "
        "oracle > FedPE + 1: 92.50, –, not measured | `personae reproduce tiny --scale paper --claims T-1 --seeds 2` |"
    )
