"""Links between the pages of the documentation lead somewhere."""

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT, name_of

FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_internal_link_has_a_target(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in targets if not _exists(page, target)] == []


def _exists(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in _anchors(file))


def _anchors(page: Path) -> set[str]:
    """Of all headings, as GitHub and MyST make them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_source_and_recipes_name_pages_that_exist() -> None:
    files = [ROOT / "Makefile", *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.toml")]
    named = {name for file in files for name in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
