"""Forget a client, or a person of a client: train again from before it took part, as if it had never answered.

The new run is made beside the old one, in `.NAME.forgetting`, and takes its place when it is finished. Until then the
old one stays as it is. What was interrupted goes on when the same is asked for again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from personae.core.events import RoundTime, Transfer, entries, ledger
from personae.errors import ConfigError, DataError
from personae.experiment.assembly import checkpoints_of
from personae.experiment.auditing import evidence_of
from personae.experiment.execution import Execution
from personae.experiment.forgetting_plan import Forgetting, execution_for
from personae.experiment.forgotten import absent, people_of, pseudonym
from personae.experiment.materials import Materials
from personae.experiment.run import conduct
from personae.experiment.successor import alone_in, folder_of_new, log_and_swap
from personae.files import read_json
from personae.privacy.audit import PRIVACY_ATTACKS
from personae.privacy.forgotten_log import ForgottenEntry
from personae.report.records import read_events
from personae.runtime.past import OF_NO_CLIENT, Past
from personae.runtime.store import PrivateStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NOT_MEASURED = "not measured"
MEMBERSHIP = "membership"  # the attack that is made before and after


def forget(forgetting: Forgetting, execution: Execution, key: "Ed25519PrivateKey") -> ForgottenEntry:
    """Do it. The run takes the place of the old one when it is finished, checked and logged."""
    run, out = forgetting.run, folder_of_new(forgetting.run)
    with alone_in(run):
        execution = execution_for(run, execution)
        _require_same_wish(out, forgetting)
        past, digests = _past(forgetting, execution), model_digests(run)
        conduct(forgetting.after, out, execution, resume=True, past=past)
        entry = ForgottenEntry(
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            client=", ".join(forgetting.clients),
            person=", ".join(wish.person for wish in forgetting.wishes if wish.person is not None) or None,
            how=forgetting.how,
            verified=_verified(out, forgetting, execution),
            membership=_membership(out, forgetting, execution),
            before=digests,
            after=model_digests(out),
        )
        log_and_swap(run, entry, key)
    return entry


def _require_same_wish(out: Path, forgetting: Forgetting) -> None:
    known = out / "config.json"
    if known.is_file() and read_json(known, dict) != json.loads(json.dumps(forgetting.after.resolved())):
        raise ConfigError(
            f"{out}: there is a forgetting of somebody else that was not finished; finish that, or delete the folder"
        )


def _past(forgetting: Forgetting, execution: Execution) -> Past:
    run, materials = forgetting.run, Materials(forgetting.before, execution)
    wish = forgetting.wishes[0]
    whole = wish.person is None
    return Past(
        rounds=forgetting.rounds,
        checkpoints=checkpoints_of(forgetting.before, run, materials.digest(), execution.acceleration),
        records=[*read_events(run), *_transfers(run), *_times(run)],
        private=run / "private",
        forgotten=wish.client if whole else None,
        index=materials.partition.clients.index(wish.client) if whole else None,
    )


def _transfers(run: Path) -> list[Transfer]:
    path = run / "ledger.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as lines:
        return [entry for entry in ledger(lines, path) if isinstance(entry, Transfer)]


def _times(run: Path) -> list[RoundTime]:
    path = run / "timing.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as lines:
        return list(entries(RoundTime, lines, path))


# ---------------------------------------------------------------------------------------------------------- checking


def model_digests(run: Path) -> dict[str, str]:
    """The models of a run by file."""
    return {
        f"models/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((run / "models").glob("*.safetensors"))
    }


def _verified(out: Path, forgetting: Forgetting, execution: Execution) -> tuple[str, ...]:
    """What was looked at in the new run, before it takes the place of the old one."""
    materials = Materials(forgetting.after, execution)
    gone = absent(forgetting.wishes)
    found = []
    if gone:
        _require_none(out, gone, "its records", named_in_records(out))
        checkpoints = checkpoints_of(forgetting.after, out, materials.digest(), execution.acceleration)
        states = [checkpoints.finished(stage.name) for stage in forgetting.after.recipe]
        known = {name for state in states for field in state.by_client() for name in getattr(state, field)}
        _require_none(out, gone, "a state of the server", known)
        kept = {name for name in gone if PrivateStore.of(out / "private", name).root.exists()}
        _require_none(out, gone, "private state", kept)
        asked = "in none of the further rounds" if forgetting.further else "in no round"
        found += [f"it was asked {asked} and is in no record", "no state of the server has an entry of it"]
        found += ["it has no private state"]
    for wish in forgetting.wishes:
        if wish.person is not None:
            people = people_of(materials.partition, materials.private, wish.client)
            remaining = {pseudonym(wish.client, name) for name in people}
            _require_none(out, {wish.person}, f"the faces of {wish.client}", remaining)
            found.append(f"{wish.client} was given no face of this person")
    if not forgetting.further:
        found.append("nothing that it took part in was taken over")
    return tuple(found)


def _membership(out: Path, forgetting: Forgetting, execution: Execution) -> str:
    """How well an attack tells that the people of the client were trained on, with the models before and after."""
    if not forgetting.further:
        return f"{NOT_MEASURED}: nothing that it took part in was taken over"
    if MEMBERSHIP not in PRIVACY_ATTACKS:
        return NOT_MEASURED
    attack, digest = PRIVACY_ATTACKS[MEMBERSHIP](), Materials(forgetting.after, execution).digest()
    after = checkpoints_of(forgetting.after, out, digest, execution.acceleration)
    told = []
    for stage, whole in evidence_of(forgetting.run, forgetting.before, execution).items():
        people = [person for person in whole.people if person.client in forgetting.clients]
        known = replace(whole, people=people, received=(), templates={}, rows={})
        now = replace(known, model=after.finished(stage).model)
        told += [
            f"{stage}, {one.target}: {one.figure} {_percent(one.value)} before, {_percent(two.value)} after"
            f" (chance {_percent(one.chance)})"
            for one, two in zip(attack.findings(known), attack.findings(now), strict=True)
            if one.value is not None
        ]
    return "; ".join(told) or NOT_MEASURED


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f}%"


def named_in_records(run: Path) -> set[str]:
    """All names by which the records of a run tell of clients, and some others."""
    named = {transfer.client for transfer in _transfers(run)}
    for event in read_events(run):
        said = {name: value for name, value in event.plain().items() if name not in OF_NO_CLIENT}
        named |= {name for value in said.values() if isinstance(value, Mapping | tuple) for name in value}
    return named


def _require_none(out: Path, gone: Iterable[str], where: str, found: Iterable[str]) -> None:
    if left := set(gone) & set(found):
        raise DataError(f"{out}: {where} still has {sorted(left)[0]}; the old run was left as it is")
