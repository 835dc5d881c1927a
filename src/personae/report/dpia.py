"""An annex for a data-protection impact assessment: what a run's records say, and what only people can answer."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from personae.files import write_text
from personae.privacy.audit.finding import known_attacks
from personae.report.privacy import (
    COLUMNS,
    FORGOTTEN,
    UNMEASURED,
    attack_rows,
    beyond_chance,
    differential_privacy,
    findings_of,
    forgotten,
    seen,
    threats,
    unmeasured_rows,
)
from personae.report.records import Run, is_networked, read_run
from personae.words import counted

FILE = "dpia.md"
QUESTIONS = {
    "Purpose and legal ground": (
        "What is the model for, and could the same be had without biometric data?",
        "On which legal ground are these faces processed (in the European Union: which of Article 9(2) GDPR)?",
        "Who is the controller, who are joint controllers, and who has signed what with whom?",
    ),
    "The people": (
        "Who are the people on the photographs, and are there children, employees or others who cannot freely refuse?",
        "How were they told, what have they agreed to, and how can they take that back?",
        "Were the people asked for their views on this processing?",
    ),
    "Use": (
        "Who will use the model, on whom, and what follows from a wrong answer for that person?",
        "Which error rates are acceptable, for every group of people that will meet the model?",
        "Who looks at an answer before it has consequences?",
    ),
    "Keeping and ending": (
        "How long are faces, updates, checkpoints, models and galleries kept, and who removes them?",
        "What happens where a person or a client asks to be forgotten after the model was given away?",
        "Is the remaining risk acceptable, and has the supervisory authority to be asked before the processing begins?",
    ),
}


def write_annex(run: Path, to: Path | None = None) -> Path:
    """Write the annex of a run, into its folder unless told otherwise, and say where."""
    target = to or run / FILE
    write_text(target, annex(read_run(run)))
    return target


def annex(run: Run) -> str:
    parts = (_head(run), _processing(run), _crossed(run), _bounds(run), _attacks(run), _rights(run), _open())
    return "\n".join(chain.from_iterable(parts))


def _head(run: Run) -> Iterator[str]:
    yield f"# Annex to an impact assessment: {run.name}"
    yield ""
    yield "Written by `personae dpia` from the records of the run. It says what the records say. It is no legal advice"
    yield "and no assessment: the questions at the end are for people, and nothing here answers them."


def _processing(run: Run) -> Iterator[str]:
    yield from ("", "## What was processed", "")
    data = run.config.get("data")
    sources = {role: each for role, each in data.items() if isinstance(each, dict)} if isinstance(data, dict) else {}
    for role, source in sources.items():
        origin, people = Path(str(source.get("source", "not known"))).name, source.get("identities")
        count = f", {counted(people, 'person', 'people')}" if isinstance(people, int) else ""
        yield f"- {role} faces: {origin}{count}"
    clients = {client for record in run.records.values() for client in record.last_clients}
    where = "on machines of their own" if is_networked(run) else "in one place: this was a simulation"
    yield f"- {counted(len(clients), 'client')}, {where}"
    yield from _table(
        ["stage", "method", "rounds", "clients took part"],
        [
            [each.label, each.algorithm, str(each.rounds or "not known"), "yes" if each.federated else "no"]
            for each in run.stages
        ],
    )
    if pooled := [each.label for each in run.stages if each.pools_faces]:
        yield f"\n**Faces of all clients were pooled in one place** in {', '.join(pooled)}."


def _crossed(run: Run) -> Iterator[str]:
    yield from ("", "## Who saw what", "")
    yield "Vectors of faces and class embeddings are biometric data. Weights may say something about the faces that"
    yield "they were computed from."
    yield from _table(["stage", "payload", "from", "to", "rounds", "messages", "what it is"], seen(run))


def _bounds(run: Run) -> Iterator[str]:
    yield from ("", "## Whom this is about, and what bounds it", "")
    yield f"Differential privacy: {differential_privacy(run)}"
    yield from _table(["who", "what is assumed"], threats(run))


def _attacks(run: Run) -> Iterator[str]:
    yield from ("", "## What attacks found", "")
    yield "A figure beside chance. That an attack does not get far does not show that no attack would."
    yield from ("", f"Beyond chance: {beyond_chance(run)}" if run.audit else "No attack was made: `personae audit`.")
    yield from _table(COLUMNS, attack_rows(findings_of(run)))
    yield from _table(UNMEASURED, unmeasured_rows(findings_of(run)))
    yield from _table(
        ["attack", "the attacker has", "and tries", "how strong the attack is"],
        [[each.name, each.has, each.tries, each.strength] for each in known_attacks()],
    )


def _rights(run: Run) -> Iterator[str]:
    yield from ("", "## What was forgotten", "")
    if not run.forgotten:
        yield "Nothing. `personae forget` takes a client or a person out of a run."
        return
    yield from _table(FORGOTTEN, forgotten(run))


def _open() -> Iterator[str]:
    yield from ("", "## Questions that only people can answer")
    for title, questions in QUESTIONS.items():
        yield from ("", f"### {title}", "")
        for question in questions:
            yield f"- [ ] {question}"
            yield "  Answer:"
    yield ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from ("", "| " + " | ".join(head) + " |", "|" + "---|" * len(head))
    for row in rows:
        cells = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in row)
        yield "| " + " | ".join(cells) + " |"
