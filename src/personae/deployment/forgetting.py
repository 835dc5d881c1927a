"""Forget a client in a run over a network: the server starts again, and asks the others again without it.

The faces and private states are with the clients. So the run gets a new number, under which every client starts again,
too: nothing of the rounds before is used by anybody. `personae serve --resume` then trains.
"""

import shutil
import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from personae.deployment.job import Job
from personae.deployment.plan import SERVING, WORKING, Plan
from personae.deployment.serve import LEFT_BEHIND
from personae.errors import ConfigError
from personae.experiment.explain import nearest
from personae.experiment.forgetting import NOT_MEASURED, model_digests
from personae.experiment.forgetting_plan import Forgetting, Trace
from personae.experiment.forgotten import Forgotten, absent, pseudonym
from personae.experiment.rundir import RunDirectory
from personae.experiment.successor import MADE, alone_in, finish_swap, folder_of_new, log_and_swap, others_in
from personae.files import hold, read_json
from personae.privacy.forgotten_log import ForgottenEntry
from personae.runtime.excluded import Exclusions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def plan_forgetting(run: Path, client: str | None, person: str | None = None, *, further: int = 0) -> Forgetting:
    """Find out what is to be done; nothing is changed."""
    finish_swap(run)
    plan = Plan.read(run)
    before = plan.job.parsed()
    if further:
        raise ConfigError(
            f"{run}: over a network there is no --approximate; the server starts again without the client"
        )
    if client is None:
        raise ConfigError(f"{run}: say which client; over a network, only the clients know whose faces they have")
    if client not in plan.clients:
        raise ConfigError(f"{run}: no client is called {client!r}{nearest(client, plan.clients)}")
    if client in absent(before.forgotten):
        raise ConfigError(f"{run}: {client} was forgotten already; personae forget {run} --verify tells when and how")
    if not person and set(plan.clients) - absent(before.forgotten) == {client}:
        raise ConfigError(f"{run}: {client} is the only client that is left; delete the run instead")
    wish = Forgotten(client=client, person=pseudonym(client, person) if person else None)
    gone = () if person else (wish,)  # a client that takes a person out of its faces takes part again
    return Forgetting(
        run=run,
        wishes=(wish,),
        before=before,
        after=before.model_copy(update={"forgotten": (*before.forgotten, *gone)}) if gone else before,
        rounds={},
        traces=tuple(_traces(run, client, person)),
    )


def forget(forgetting: Forgetting, key: "Ed25519PrivateKey") -> ForgottenEntry:
    """Put a run without any round in the place of the old one."""
    run, out, (wish,) = forgetting.run, folder_of_new(forgetting.run), forgetting.wishes
    with ExitStack() as alone:
        alone.enter_context(alone_in(run))
        for name in (SERVING, WORKING):
            taken = f"{run}: a server is at work in this run; stop it, or wait for it"
            alone.callback(hold(run / name, taken).release)
        shutil.rmtree(out, ignore_errors=True)
        plan, after = Plan.read(run), forgetting.after
        where = read_json(run / "environment.json", dict)
        RunDirectory.create(out, after.resolved(), after.recipe, where).close()
        job = Job.of(uuid.uuid4().hex, after, plan.job.coding, plan.job.max_bytes)
        replace(plan, job=job).write(out)
        Exclusions.of(out).take_over(Exclusions.of(run), [wish.client] if wish.person is None else [])
        entry = ForgottenEntry(
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            client=wish.client,
            person=wish.person,
            how="exact: the server starts again, under another number, at the next personae serve --resume"
            + forgetting.about_noise,
            verified=("nothing of the rounds before was taken over", *_told(wish)),
            membership=NOT_MEASURED,
            before=model_digests(run),
            after={},
        )
        log_and_swap(run, entry, key, left_out=LEFT_BEHIND, report=False)
    return entry


def _told(wish: Forgotten) -> tuple[str, ...]:
    if wish.person is None:
        return ("the client is in the list of those who are not asked",)
    return ("whether the client has removed the faces of this person is for the client to say",)


def _traces(run: Path, client: str, person: str | None) -> list[Trace]:
    found = [Trace(str(run / name), "deleted") for name in _own_of(run)]
    found += [Trace(str(path), "kept: look whether it holds anything of it") for path in others_in(run, LEFT_BEHIND)]
    if person:
        found.append(Trace(f"the faces at {client}", f"{client} removes them before it takes part again"))
    found.append(Trace(f"the home of {client}", f"at {client}: personae purge HOME --older-than 0d"))
    found.append(Trace("the homes of the others", "the old models are there: personae purge HOME --older-than 0d"))
    found.append(Trace("exports and galleries made of the old models", "kept where they are: make them again"))
    return found


def _own_of(run: Path) -> list[str]:
    return [name for name in (*MADE, *sorted(LEFT_BEHIND)) if (run / name).exists()]
