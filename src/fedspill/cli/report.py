"""`fedspill report`: every output of an audit made again from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspill.cli.options import Accept, FailOn, Html, Json, Junit, Markdown, Sarif
from fedspill.cli.terminal import Screen


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an audit.")],
    fail_on: FailOn = None,
    accept: Accept = None,
    html: Html = None,
    json_file: Json = None,
    sarif: Sarif = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Makes every output of an audit again from its store, finished or not."""
    from fedspill.audit.accepted import read_accepted
    from fedspill.audit.run_audit import result_of
    from fedspill.cli.finish import finish

    result = result_of(folder, read_accepted(accept) if accept else None)
    if fail_on is not None:
        result = result.model_copy(update={"plan": {**result.plan, "fail_on": fail_on}})
    finish(Screen(), folder, result, html, json_file, sarif, junit, markdown)
