"""Privacy of a run: who could see what, what bounds that, what attacks found, and what was forgotten."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from personae.core.events import PrivacySpent
from personae.privacy.audit.finding import Finding, known_attacks
from personae.privacy.small_cohorts import seen_of_few
from personae.privacy.spent import in_words
from personae.report.content import Note, Section, Table
from personae.report.records import Run, StageRecord
from personae.words import counted

UNMEASURED = ("attack", "stages", "why it was not made")
NOT_TRIED = "nobody has tried it (personae audit)"
COLUMNS = ("stage", "attack", "on", "figure", "found", "95%", "chance", "trials")
FORGOTTEN = ("when", "client", "person", "how", "verified")
NO_BOUND = "none. Nothing bounds mathematically what the model or an update says about a person."
NOT_COUNTED = (
    "Epsilon does not count figures of evaluations on clients' own faces, failures, and who took part: keep these "
    "apart from the model."
)
WORTHLESS = 10  # an epsilon: the factor is 22,000
THE_SERVER = (
    "the server",
    "It keeps to the method and looks at everything that it receives. It receives faces only in stages that pool "
    "them. Nothing here stops a server that sends a client something else than the method says.",
)
OTHERS = (
    (
        "whoever has the model",
        "It can look inside, and try it on any photograph. A model that was published cannot be called back.",
    ),
    (
        "whoever may ask the model",
        "It gets answers, and no scores unless somebody shows them (--scores): from scores a template can be computed.",
    ),
    (
        "not covered",
        "The client's own machine and the people who use it; how faces were collected; what is done with the answers.",
    ),
)


def privacy_section(run: Run) -> Section:
    """The privacy page of a report."""
    notes = [Note(differential_privacy(run), "notice", "Differential privacy: ")]
    tables = [
        Table(["who", "what is assumed"], threats(run), "Threat model: whom this page is about.", texts=2),
        Table(
            ["stage", "payload", "from", "to", "rounds", "messages", "what it is"],
            seen(run),
            "Who saw what: by payload, party and round.",
            texts=7,
        ),
    ]
    if run.audit is None:
        notes.append(Note("`personae audit` tries attacks on this run.", "notice", "Attacks: not measured. "))
    else:
        notes.append(Note(beyond_chance(run), "notice", "Attacks beyond chance: "))
        tables += _attacks(run)
    if run.forgotten:
        tables.append(Table(FORGOTTEN, forgotten(run), "What was forgotten.", texts=5))
    else:
        notes.append(Note("nothing.", "notice", "Forgotten: "))
    lead = "Who could see what, what limits it, and what attacks found."
    return Section("privacy", "Privacy", lead, notes=notes, tables=[table for table in tables if table.rows])


def _attacks(run: Run) -> list[Table]:
    made = "Attacks that were made on this run. Chance is the figure of a guess."
    assumed = [[each.name, each.has, each.tries, each.strength] for each in known_attacks()]
    return [
        Table(COLUMNS, attack_rows(findings_of(run)), made, texts=4),
        Table(UNMEASURED, unmeasured_rows(findings_of(run)), "Attacks that could not be made.", texts=3),
        Table(
            ["attack", "the attacker has", "and tries", "how strong the attack is"],
            assumed,
            "What the attacks assume.",
            texts=4,
        ),
    ]


def threats(run: Run) -> list[tuple[str, str]]:
    """Whom the page is about, and what each of them is assumed to see and do."""
    few = "".join(f" {stage.label}: {text}." for stage in run.stages if (text := _seen_of_few(run, stage)))
    another = (
        "It sees the models that the server sends. Each is a mean over the clients of a round, so that all others "
        f"of a round together can work out what is left.{few} Clients that work together with the server see what "
        "the server sees."
    )
    return [THE_SERVER, ("another client", another), *OTHERS]


def _seen_of_few(run: Run, stage: StageRecord) -> str | None:
    """By the smallest cohort so far, where clients send models."""
    cohorts = [cohort for cohort in run.records[stage.name].visits.values() if cohort]
    return seen_of_few(min(cohorts)) if cohorts and run.has_shared_model(stage) else None


def differential_privacy(run: Run) -> str:
    """Epsilon in words and how to read it, or that there is none."""
    if not run.spent:
        return NO_BOUND
    return " ".join([*(f"{in_words(each)}. {_reading(each)}" for each in run.spent), NOT_COUNTED])


def _reading(spent: PrivacySpent) -> str:
    """What a number promises, for people who do not compute with it."""
    if spent.epsilon > WORTHLESS:
        return f"An epsilon above {WORTHLESS} promises nothing that anybody could rely on."
    factor = math.exp(spent.epsilon)
    return (
        f"That is: nothing that anybody observes is more than {factor:.2g} times as probable with one {spent.unit} as "
        f"without, but for a probability of {spent.delta:g}."
        if factor < 100
        else f"That is a weak promise: what anybody observes may be up to {round(factor, -2):,.0f} times as probable "
        f"with one {spent.unit} as without."
    )


def beyond_chance(run: Run) -> str:
    """Which attacks got further than somebody who guesses."""
    made = [each for each in (run.audit.findings if run.audit else ()) if each.value is not None]
    found = [each for each in made if each.beyond_chance]
    if not made:
        return "not known, because no attack could be made."
    if not found:
        return "none of those that were made."
    return (
        "; ".join(
            f"{each.attack} on {each.target}, {each.figure} {_told(each, each.value or 0)} where chance is "
            f"{_told(each, each.chance or 0)}"
            for each in found
        )
        + "."
    )


def plain_privacy(run: Run, stages: Sequence[str]) -> dict[str, Any]:
    """For the card of a model that these stages led to."""
    made = run.audit.of(stages) if run.audit else ()
    return {
        "differential_privacy": differential_privacy(run),
        "attacks": [dict(zip(COLUMNS, attack_row(each), strict=True)) for each in made],
        "forgotten": [dict(zip(FORGOTTEN, each, strict=True)) for each in forgotten(run)],
    }


def seen(run: Run) -> list[list[str]]:
    """What crossed, from whom to whom, and in which rounds."""
    rows = []
    for stage in run.stages:
        record = run.records[stage.name]
        for (way, payload), rounds in sorted(record.payload_rounds.items(), reverse=True):
            clients = counted(len(record.payload_clients[way, payload]), "client")
            parties = [clients, "the server"] if way == "up" else ["the server", f"{clients}, each its own"]
            count = f"{record.messages[way, payload]:,}"
            rows.append([stage.label, payload, *parties, _rounds(rounds), count, run.described(payload).meaning])
        if stage.pools_faces:
            rows.append([stage.label, "faces", "all clients", "one place", "all", "–", "the images themselves"])
    return rows


def attack_rows(findings: Iterable[Finding]) -> list[list[str]]:
    """What was measured."""
    return [attack_row(each) for each in findings if each.value is not None]


def unmeasured_rows(findings: Iterable[Finding]) -> list[list[str]]:
    """What could not be measured, with the stages for which one reason holds."""
    stages: dict[tuple[str, str], list[str]] = {}
    for each in findings:
        if each.value is None:
            stages.setdefault((each.attack, each.reason), []).append(each.stage)
    return [[attack, ", ".join(of), why] for (attack, why), of in stages.items()]


def findings_of(run: Run) -> list[Finding]:
    """Of all attacks on all stages in which clients took part, under the labels of these stages."""
    found = []
    for stage in (each for each in run.stages if each.federated):
        done = run.audit.of([stage.name]) if run.audit else ()
        tried = {each.attack for each in done}
        missing = [each.name for each in known_attacks() if each.name not in tried]
        found += [replace(each, stage=stage.label) for each in done]
        found += [Finding(attack=name, stage=stage.label, target="–", figure="–", reason=NOT_TRIED) for name in missing]
    return found


def attack_row(finding: Finding) -> list[str]:
    """Stage, attack, target, figure, value, interval, chance, trials."""
    cells = [finding.stage, finding.attack, finding.target, finding.figure]
    if finding.value is None:
        return [*cells, f"not measured: {finding.reason}", "–", "–", "–"]
    interval = "–" if finding.low is None or finding.high is None else f"{_told(finding, finding.low)} to "
    interval += "" if finding.high is None else _told(finding, finding.high)
    chance = "–" if finding.chance is None else _told(finding, finding.chance)
    return [*cells, _told(finding, finding.value), interval, chance, f"{finding.trials:,}"]


def _told(finding: Finding, value: float) -> str:
    return f"{value:.2f}" if finding.figure.startswith("epsilon") else f"{100 * value:.3g}%"


def forgotten(run: Run) -> list[list[str]]:
    return [
        [each.when, each.client, each.person or "everybody", each.how, "; ".join(each.verified)]
        for each in run.forgotten
    ]


def _rounds(rounds: set[int]) -> str:
    """`1 to 8`, or how many of them where some are missing."""
    first, last = min(rounds), max(rounds)
    if first == last:
        return str(first)
    between = "" if len(rounds) == last - first + 1 else f", {len(rounds)} of them"
    return f"{first} to {last}{between}"
