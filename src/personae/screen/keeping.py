"""What was forgotten and deleted, for people and for scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from personae.experiment.forgetting_plan import Forgetting
from personae.experiment.purging import Due
from personae.privacy.forgotten_log import Checked, ForgottenEntry
from personae.screen.basics import print_json, say, size_text


def forgetting(planned: Forgetting, as_json: bool) -> None:
    """What would be done."""
    if as_json:
        print_json(_planned(planned))
        return
    say(f"forget {_whom(planned.clients, any(wish.person for wish in planned.wishes))}: {planned.how}")
    _say_traces(planned)


def has_forgotten(done: Forgetting, entry: ForgottenEntry, as_json: bool) -> None:
    if as_json:
        print_json({**_planned(done), "entry": asdict(entry)})
        return
    say(f"{done.run} has forgotten {_whom(done.clients, entry.person is not None)}: {entry.how}")
    for line in entry.verified:
        say(f"  checked: {line}")
    say(f"  membership before and after: {entry.membership}")
    _say_traces(done)
    say(f"the log is {done.run / 'forgotten.jsonl'}; check it with: personae forget {done.run} --verify")


def forgotten(checked: Checked, models: Mapping[str, str], as_json: bool) -> None:
    """A log that is whole, and whether the models are those that it ends with."""
    logged = dict(checked.entries[-1].after)
    same = not logged or logged == dict(models)  # over a network, they are made later
    if as_json:
        plain = {"entries": [asdict(entry) for entry in checked.entries], "keys": checked.keys, "head": checked.head}
        print_json({**plain, "models_as_logged": same})
        return
    for entry in checked.entries:
        say(f"{entry.when}  {_whom((entry.client,), entry.person is not None)}: {entry.how}")
    say(f"the log is whole; signed with {', '.join(checked.keys)}; its last line has the digest {checked.head}")
    say(f"the models are {'those' if same else 'not those'} that it ends with")


def purged(items: Sequence[Due], dry_run: bool, as_json: bool) -> None:
    if as_json:
        plain = [{"path": str(item.path), "kind": item.kind, "days": item.days, "bytes": item.bytes} for item in items]
        print_json({"deleted": not dry_run, "items": plain})
        return
    for item in items:
        say(f"{item.path}  ({item.kind}, {item.days:.0f} days, {size_text(item.bytes)})")
    verb = "would be deleted" if dry_run else "deleted"
    say(f"{verb}: {size_text(sum(item.bytes for item in items))}" if items else "nothing is due")


def _whom(clients: Sequence[str], person: bool) -> str:
    return ("a person of " if person else "") + ", ".join(clients)


def _planned(planned: Forgetting) -> dict[str, Any]:
    return {
        "run": str(planned.run),
        "clients": planned.clients,
        "how": planned.how,
        "trained_again": planned.again,
        "taken_over": dict(planned.rounds),
        "traces": [asdict(trace) for trace in planned.traces],
    }


def _say_traces(planned: Forgetting) -> None:
    for trace in planned.traces:
        say(f"  {trace.place}: {trace.fate}")
