"""The pages of the documentation and the code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SMALL = [  # the pages extend the recipe `quick`; tests take fewer people, images and rounds
    "network.embedding=8",
    *(f"data.{role}.images=6" for role in ("public", "private", "heldout")),
    *("data.public.identities=8", "data.private.identities=12", "data.heldout.identities=8"),
    *("partition.clients=4", "evaluation.folds=2", "evaluation.pairs_per_fold=10"),
    *("stages.pretrain.rounds=1", "stages.federate.rounds=2", "stages.central.rounds=1"),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Every line of its shell blocks that calls personae, without its comment; continued lines are one."""
    joined = "\n".join(blocks(text, "sh")).replace("\\\n", " ").replace(" && ", "\n")
    return [line.partition(" #")[0].strip() for line in joined.splitlines() if line.startswith("personae ")]
