"""The command line: the commands of all topics, and how errors end them."""

import errno
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NoReturn

import typer
from click import Context
from click.exceptions import NoArgsIsHelpError, UsageError
from typer.core import TyperGroup

from personae.commands import (
    about,
    admission,
    attacking,
    comparing,
    data,
    deployment,
    evaluation,
    keeping,
    partition,
    privacy,
    recipes,
    recognition,
    runs,
)
from personae.console import messages
from personae.errors import ConfigError, Interrupted, PersonaeError
from personae.interrupts import interruptible


class Commands(TyperGroup):
    """Typer would call an interrupted command aborted, with the exit code of a failure, and frame a wrong option."""

    def invoke(self, ctx: Context) -> Any:
        with interruptible("stopped"):
            try:
                return super().invoke(ctx)
            except NoArgsIsHelpError:
                raise
            except UsageError as error:
                command = error.ctx.command_path.removeprefix(ctx.command_path) if error.ctx else ""
                _say(f"{error.format_message().rstrip('.')}; see personae{command} --help")
                raise typer.Exit(error.exit_code) from None


TOPICS: Mapping[str, tuple[ModuleType, ...]] = {  # in the order of `personae --help`
    "Run experiments": (runs, comparing, recipes),
    "Look at faces and divide them": (data, partition),
    "Use models": (evaluation, recognition),
    "Train over a network": (deployment, admission),
    "Privacy and attacks": (privacy, keeping, attacking),
    "Look things up": (about,),
}
app = typer.Typer(
    cls=Commands,
    callback=about.personae,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does so itself
)
for topic, modules in TOPICS.items():
    for module in modules:
        for command in (*module.app.registered_commands, *module.app.registered_groups):
            command.rich_help_panel = topic
        app.add_typer(module.app)


def main() -> None:
    """Errors that a user can act on are one line and an exit code."""
    try:
        app()
    except PersonaeError as error:
        _fail(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(Interrupted(f"{error.filename or 'writing'}: the disk is full; free some space and resume"))
        _fail(ConfigError(f"{error.filename}: {error.strerror}"))


def _fail(error: PersonaeError) -> NoReturn:
    _say(str(error))
    sys.exit(error.exit_code)


def _say(problem: str) -> None:
    messages.print(f"personae: {problem}", style="red", markup=False, soft_wrap=True)
