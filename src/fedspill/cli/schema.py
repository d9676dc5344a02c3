"""`fedspill schema`: the JSON schema of plans and results, and whether files keep to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedspill.cli.options import JsonFile, write_json
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode, FedspillError


def schema(
    what: Annotated[Literal["plan", "result"], typer.Argument(help="Of which the schema is wanted.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Check these files (plans, or audit.json) instead of printing.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Prints the JSON schema of a plan or of audit.json; given files, says what is wrong with each."""
    from fedspill.report.schema import schema as schema_of

    found = schema_of(what)
    write_json(json_file, found)
    if files:
        _check(what, files)
    elif json_file is None:
        typer.echo(json.dumps(found, indent=2))  # for a pipe: not wrapped to the width of a screen


def _check(what: Literal["plan", "result"], files: list[Path]) -> None:
    """Every file is looked at before the command ends; the code is that of the first that is wrong."""
    from fedspill.audit.compare import read_result
    from fedspill.deployment.plan import read_plan

    screen, code = Screen(), ExitCode.OK
    for path in files:
        try:
            read_plan(path) if what == "plan" else read_result(path)
            screen.say(f"{path}: ok")
        except FedspillError as error:
            screen.error(str(error))
            code = code or error.exit_code
    if code:
        raise typer.Exit(code)
