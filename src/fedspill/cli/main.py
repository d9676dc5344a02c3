"""The command line: one file per command. Nothing heavy is imported before a command runs: `--help` needs no torch."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode, FedspillError, OwnCodeFailed
from fedspill.version import __version__

if TYPE_CHECKING:
    import click  # typer brings its own copy from some version on, so that it need not be installed

# The commands, in the order of --help, with the one line that it shows; each is a function of the file of its name.
COMMANDS = {
    "list": "Lists what there is, without importing any of it.",
    "init": "Asks six questions and writes a commented plan that runs.",
    "doctor": "Says what an audit of a plan would run, what it could not, and what one more fact would add.",
    "explain": "Says what a thing is, where it comes from, what it needs and which options it takes.",
    "simulate": "Runs the federation of a plan and records what is sent.",
    "attack": "Runs one attack on a recorded trace and scores it.",
    "reproduce": "Runs a published table and prints our figures beside the printed ones.",
    "inspect": "Reads label counts out of two checkpoints or one gradient, without any model code.",
    "audit": "Runs every attack that an adversary of the deployment could run, ranks what leaked and writes a report.",
    "dp": "Tests whether the differential privacy that a plan's defenses claim is really there.",
    "report": "Makes every output of an audit again from its store, finished or not.",
    "compare": "Shows what is new, fixed, or changed by more than noise between two audits.",
    "schema": "Prints the JSON schema of plans or results, or checks files against it.",
}


@final
class LazyCommands(TyperGroup):
    """Knows every command by its line in --help, and imports the one that is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            return super().resolve_command(ctx, args)  # says what is wrong with it
        return args[0], _imported(args[0]), args[1:]


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"fedspill {__version__}")
        raise typer.Exit


@app.callback()
def fedspill(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measures what a federated-learning deployment leaks, to whom, how surely, and what stops it."""


def _imported(name: str) -> click.Command:
    function = getattr(import_module(f"fedspill.cli.{name}"), "list_" if name == "list" else name)
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name)(function)
    return get_command(one)


def main() -> None:
    """The entry point: our errors become one message and an exit code; anything else is never a success."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except FedspillError as error:
        if isinstance(error, OwnCodeFailed):
            Screen().error(error.trace)  # to its owner, who sits here; it goes into no output
        Screen().error(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:  # Typer makes the second of the first, and says nothing
        if isinstance(end, SystemExit) and end.code != ExitCode.INTERRUPTED:
            raise
        Screen().error("Interrupted. An audit keeps what it has done: the same command goes on from there.")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        # A fault of ours. Not its text, which may quote data; and not Python's own code 1, which means findings.
        if os.environ.get("FEDSPILL_DEBUG"):
            raise
        from fedspill.failing_line import failed_with

        Screen().error(f"Internal error: {failed_with(error)}. Please report it; FEDSPILL_DEBUG=1 shows all.")
        sys.exit(ExitCode.INCOMPLETE)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends a command as Ctrl-C does, with the code that shells expect."""
    sys.exit(128 + number)
