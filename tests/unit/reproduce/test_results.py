"""The pages of results are what the files of finished reproductions say."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from personae.reproduce.results import pages
from personae.reproduce.systems import SYSTEMS

RESULTS = Path(__file__).parents[3] / "docs" / "results"
FEDFACE = {claim.id: claim for claim in SYSTEMS["fedface"].claims}


def test_the_pages_on_disk_are_made_from_the_files(tmp_path: Path):
    shutil.copytree(RESULTS / "claims", tmp_path / "claims", ignore=shutil.ignore_patterns("*.md"))
    subprocess.run([sys.executable, "-m", "personae.reproduce.results", tmp_path / "claims"], check=True)
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.md")}
    kept = [RESULTS / "claims.md", *(RESULTS / "claims").glob("*.md")]
    assert made == {str(path.relative_to(RESULTS)): path.read_text() for path in kept} == pages(RESULTS / "claims")


def test_its_claims_are_those_of_the_papers():
    for path in (RESULTS / "claims").glob("*.json"):
        content = json.loads(path.read_text())
        known = {claim.id: claim for claim in SYSTEMS[content["system"]].claims}
        first, number = content["seeds"][0], len(content["seeds"])
        assert content["seeds"] == list(range(first, first + number)), (
            "a row's command names the first and their number"
        )
        for claim in content["claims"]:
            assert (claim["claim"], claim["paper"]) == (known[claim["id"]].sentence, known[claim["id"]].paper)
            assert len(claim["gates"]) == len(known[claim["id"]].gates)
            assert [part["claims"] for part in claim["comparisons"]] == [part.text for part in known[claim["id"]].parts]


def test_the_figures_of_a_comparison_are_those_that_it_was_made_of():
    """Unless it is a slope, the mean difference is that of the two figures of the row."""
    compared = re.compile(r"^\| [^|\\]+ > [^|]+ \| (\S+), (\S+) \| (\S+) \(", re.MULTILINE)
    found = [each for name, text in pages(RESULTS / "claims").items() if "/" in name for each in compared.findall(text)]
    assert len(found) > 80
    for row in found:
        high, low, difference = (float(each.replace("−", "-")) for each in row)
        assert abs(high - low - difference) < 0.011  # of figures that are rounded


def test_every_claim_has_a_row_and_one_that_was_not_judged_says_so(tmp_path: Path):
    lines = pages(tmp_path)["claims.md"].splitlines()
    for system in SYSTEMS.values():
        for claim in system.claims:
            (row,) = (line for line in lines if line.startswith(f"| **{claim.id}** "))
            assert row.endswith("| – | – | – | not judged | – | – |")
    assert "- 38 claims of the papers: *not judged* 38." in lines
    assert "- 7 that we added, whose ids end in a letter: *not judged* 7." in lines
    assert "| together | **38** | **0 of 38** |" in lines


def test_at_a_glance_every_claim_is_under_its_verdict_and_the_papers_are_counted_without_ours(tmp_path: Path):
    judged(tmp_path, "large", "holds")
    judged(tmp_path, "small", "does not hold", claim="FF-4a")
    lines = pages(tmp_path)["claims.md"].splitlines()
    place = lines.index("|  | holds | does not hold | not judged | decided |")
    of = {line.split(" | ")[0].strip("| "): line.strip("|").split(" | ")[1:] for line in lines[place + 2 : place + 9]}
    assert of["[fedface](#fedface)"][:2] == ["[FF-5](claims/fedface.md#ff-5)", ""]
    assert of["[fedface](#fedface)"][2:] == ["FF-1, FF-2, FF-3, FF-4, FF-6", "1 of 6 "]
    assert of["together"] == ["**1**", "**0**", "**37**", "**1 of 38** "]
    assert of["added"][1:] == [
        "[FF-4a](claims/fedface.md#ff-4a)",
        "GC-1a, GC-1b, GC-4a, GC-4b, GC-7a, FF-1a",
        "1 of 7 ",
    ]


def judged(folder: Path, scale: str, verdict: str, passed: bool | None = True, claim: str = "FF-5") -> None:
    """A claim of one comparison or two as a reproduction with two seeds would have it."""
    definition = FEDFACE[claim]
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
    figures = [
        {"label": quantity.label, "unit": "%", "values": [80.0 + place, 81.0 + place]}
        for place, quantity in enumerate(definition.quantities)
    ]
    measured = {"mean": -2.0, "interval": [-3.0, -0.001], "half_of_paper": 1.25, "p": 0.97}
    missing = dict.fromkeys(measured)
    told = [{**missing, "verdict": "not measured"}, {**measured, "verdict": verdict}][-len(definition.parts) :]
    comparisons = [{"claims": part.text, **found} for part, found in zip(definition.parts, told, strict=True)]
    found = {"id": claim, "verdict": verdict, "gates": gates, "figures": figures, "comparisons": comparisons}
    content = {"system": "fedface", "scale": scale, "seeds": [0, 1], "remark": "It is so.", "claims": [found]}
    (folder / f"{scale}.json").write_text(json.dumps(content))


def row(folder: Path, claim: str = "FF-5") -> list[str]:
    start = f"| **[{claim}](claims/fedface.md#{claim.lower()})** "
    (line,) = (line for line in pages(folder)["claims.md"].splitlines() if line.startswith(start))
    return line.strip("| ").split(" | ")[1:]


def command(scale: str, seeds: str = "--seeds 2") -> str:
    return f"fedface --scale {scale} --claims FF-5 {seeds}"


def test_a_row_has_the_comparison_that_decides_and_the_page_of_its_paper_has_all(tmp_path: Path):
    judged(tmp_path, "paper", "does not hold")
    assert row(tmp_path) == [
        "Table 2: 99.28; 200 vs 450 rounds",
        "FedFace, mean over its rounds **82.50**; without mean, over its rounds **83.50**",
        "−2.00 (−3.00 to 0.00)*",
        "**does not hold**",
        "passed",
        f"`{command('paper')}`",
    ]
    comparisons = pages(tmp_path)["claims/fedface.md"]
    assert (
        f"""## FF-5

{FEDFACE["FF-5"].sentence}. The paper: {FEDFACE["FF-5"].paper}.

### FF-5, paper scale, 2 seeds: does not hold

`personae reproduce {command("paper")}`

| comparison | figures | difference | half of the paper's | verdict |
|---|---|---|---|---|
| \\|without mean − FedFace\\| < 1 | 80.50, 81.50 | – | – | not measured |
| {FEDFACE["FF-5"].parts[1].text} | 82.50, 83.50 | −2.00 (−3.00 to 0.00) | 1.25 | does not hold |

| gate | figures |  |
|---|---|---|
| central > FedFace + 1 | 92.50, – | passed |
"""
        in comparisons
    )
    assert comparisons.endswith("## Remarks\n\n- `paper.json`: It is so.\n")
    assert "Remarks" not in pages(tmp_path)["claims/fedgc.md"]


def test_what_the_figures_share_is_said_once_and_what_is_asked_is_said_unless_it_is_zero(tmp_path: Path):
    judged(tmp_path, "paper", "does not hold", claim="FF-4")
    assert row(tmp_path, "FF-4")[1:3] == [
        "FedFace **82.50**; without spreadout **81.50**",
        "−2.00 (−3.00 to 0.00)*, asked: above 5",
    ]
    assert "in turn: FedFace **" in pages(RESULTS / "claims")["claims.md"]
    assert "equal, HF-MAML: tuned, trained − untuned, trained **" in pages(RESULTS / "claims")["claims.md"]
    assert FEDFACE["FF-5"].parts[0].asked == "within 1"


def test_of_several_scales_the_row_has_the_one_that_says_most(tmp_path: Path):
    judged(tmp_path, "small", "does not hold")
    judged(tmp_path, "paper", "regime not reached", passed=False)
    assert row(tmp_path)[3:] == ["**does not hold**", "passed", f"`{command('small')}`"]
    judged(tmp_path, "large", "holds", passed=None)
    assert row(tmp_path)[3:] == ["**holds**", "not measured", f"`{command('large')}`"]
    judged(tmp_path, "paper", "within noise")
    assert row(tmp_path)[5] == f"`{command('large')}`"
    assert re.findall(r"### FF-5, (\w+)", pages(tmp_path)["claims/fedface.md"]) == ["large", "small", "paper"]


def test_a_row_of_later_seeds_says_where_they_begin(tmp_path: Path):
    judged(tmp_path, "small", "holds")
    content = json.loads((tmp_path / "small.json").read_text())
    (tmp_path / "small.json").write_text(json.dumps(content | {"seeds": [5, 6]}))
    assert row(tmp_path)[-1] == f"`{command('small', '--seeds 2 --first-seed 5')}`"


def test_what_only_half_of_the_papers_difference_decides_is_marked(tmp_path: Path):
    judged(tmp_path, "small", "does not hold")
    content = json.loads((tmp_path / "small.json").read_text())
    content["claims"][0]["comparisons"][1]["p"] = 0.94  # the plain test of the opposite asks for 0.95
    (tmp_path / "small.json").write_text(json.dumps(content))
    assert row(tmp_path)[3] == "**does not hold** (half)"
    assert "- 38 claims of the papers: *does not hold* 1 (1 of them by half), " in pages(tmp_path)["claims.md"]
    assert "### FF-5, small scale, 2 seeds: does not hold (half)" in pages(tmp_path)["claims/fedface.md"]


def test_a_row_has_what_the_paper_reports_in_the_same_order():
    table = pages(RESULTS / "claims")["claims.md"]
    assert re.search(r"\*\*\[FF-2\].* \| 99\.15; 94\.61 \| pre-trained \*\*[\d.]+\*\*; random, fixed ", table)


def test_every_claim_has_a_short_form():
    claims = [claim for system in SYSTEMS.values() for claim in system.claims]
    assert [claim.id for claim in claims if not 0 < len(claim.short) < 75] == []
