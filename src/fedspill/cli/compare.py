"""`fedspill compare`: what is new, fixed, or changed by more than noise between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspill.cli.options import JsonFile, Level
from fedspill.cli.terminal import Screen
from fedspill.errors import ExitCode, UsageError


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="An audit folder, or the JSON of an audit.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The later one.")],
    fail_on: Annotated[
        Level | None, typer.Option(help="Exit 1 when something new or worse is at or above this.")
    ] = None,
    json_file: JsonFile = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write both first screens side by side.")] = None,
) -> None:
    """Shows what is new, fixed, or changed by more than noise between two audits."""
    from fedspill.audit.compare import apart, read_result, too_few_federations
    from fedspill.audit.compare import compare as differences
    from fedspill.audit.severity import Severity
    from fedspill.report import comparison
    from fedspill.report.json import as_text

    first, second = read_result(before), read_result(after)
    found, between = differences(first, second), apart(first, second)
    if json_file is not None:
        content = {
            "schema": 1,
            "differences": [d.as_json() for d in found],
            "deployment": list(between.deployment),
            "audit": list(between.audit),
            "too_few_federations": too_few_federations(first, second),
        }
        _write(json_file, as_text(content))
    if html is not None:
        _write(html, comparison.render(first, second))
    screen, too_few = Screen(), too_few_federations(first, second)
    if too_few:
        screen.say(too_few)
    if between.words:
        screen.say(between.words)
    changed = [difference for difference in found if difference.change != "same"]
    if changed:
        screen.table(["change", "finding", "before", "after"], [[d.change, d.id, d.before, d.after] for d in changed])
    screen.say(f"{len(changed)} changed beyond noise, {len(found) - len(changed)} did not.")
    bad = [d for d in changed if d.change in ("new", "worse") and d.severity]
    if fail_on and any(Severity[d.severity.upper()] >= Severity[fail_on.upper()] for d in bad if d.severity):
        raise typer.Exit(ExitCode.FINDINGS)


def _write(path: Path, text: str) -> None:
    from fedspill.files import write_bytes

    try:
        write_bytes(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
