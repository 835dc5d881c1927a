"""Every claim that does not hold is explained on the page of its paper."""

import re

import pytest

from pages import DOCS
from personae.reproduce.systems import SYSTEMS

RESULTS = DOCS / "results"


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_the_list_of_reasons_is_that_of_the_claims_that_do_not_hold(system):
    ids = {claim.id for claim in system.claims}
    rows = re.findall(
        r"^\| \*\*\[(\S+)\]\(\S+ .* \| \*\*(.+?)\*\*(?: \(half\))? \|",
        (RESULTS / "claims.md").read_text(),
        re.MULTILINE,
    )
    failed = [claim for claim, verdict in rows if claim in ids and verdict == "does not hold"]
    page = (RESULTS / f"{system.name.replace('_', '-')}.md").read_text()
    _, _, reasons = page.partition("\n## Why claims do not hold\n")
    explained = [re.findall(r"\[(\S+)\]", cell) for cell in re.findall(r"^\| (\[.+?) \|", reasons, re.MULTILINE)]
    assert failed == [claim for row in explained for claim in row]
    assert failed
    for row in re.findall(r"^\| (\[.+) \|$", reasons, re.MULTILINE):
        _, _, control = row.split(" | ")
        assert control
        assert not control.startswith("No control")
