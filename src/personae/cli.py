"""The command line: the commands of all topics, and how errors end them."""

import copy
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer
from click import Command, Context, HelpFormatter
from click.exceptions import NoArgsIsHelpError, UsageError
from typer.core import TyperCommand, TyperGroup

from personae.commands.catalogue import Catalogue
from personae.console import messages
from personae.errors import ConfigError, Interrupted, PersonaeError, lacks_memory, lacks_space
from personae.interrupts import interruptible
from personae.version import version


class Commands(TyperGroup):
    """The commands of the catalogue, each of which is imported when it is called.

    Typer would call an interrupted command aborted, with the exit code of a failure, and frame a wrong option.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {}})
        self.commands: Mapping[str, Command] = Catalogue()  # type: ignore[assignment]

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """With the words of each command, and without importing any."""
        brief = copy.copy(self)
        brief.commands = {
            name: TyperCommand(name, help=each.summary, rich_help_panel=each.heading)
            for name, each in Catalogue().entries.items()
        }
        super(Commands, brief).format_help(ctx, formatter)

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


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"personae {version()}")
        raise typer.Exit


def personae(
    asked: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated face recognition: train one model together, share no faces, and keep a personal model if you like."""


MEMORY = "this machine has not enough memory for that; free some, or give fewer --workers, and start or resume again"

app = typer.Typer(
    cls=Commands,
    callback=personae,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does so itself
)


def main() -> None:
    """Errors that a user can act on are one line and an exit code."""
    try:
        app()
    except PersonaeError as error:
        _fail(error)
    except OSError as error:
        if lacks_memory(error):
            _fail(Interrupted(MEMORY))
        if lacks_space(error):
            _fail(Interrupted(f"{error.filename or 'writing'}: the disk is full; free some space and resume"))
        _fail(ConfigError(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        _fail(Interrupted(MEMORY))


def _fail(error: PersonaeError) -> NoReturn:
    _say(str(error))
    sys.exit(error.exit_code)


def _say(problem: str) -> None:
    messages.print(f"personae: {problem}", style="red", markup=False, soft_wrap=True)
