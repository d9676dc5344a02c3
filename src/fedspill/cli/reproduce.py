"""`fedspill reproduce`: a published table, with our figures beside the printed ones."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fedspill.cli.options import DataDir, Device, JsonFile, cores, use_one_thread, write_json
from fedspill.cli.terminal import Screen


def reproduce(
    table: Annotated[str, typer.Argument(help="PAPER/TABLE as the paper names it, e.g. 003/1.")],
    scale: Annotated[Literal["quick", "full"], typer.Option(help="quick: minutes on 2 cores.")] = "quick",
    data_dir: DataDir = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(min=0)] = 2024,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes (default: one a core; one on a GPU).")] = None,
    json_file: JsonFile = None,
) -> None:
    """Runs a published table and prints our figures beside the printed ones."""
    from fedspill.reproduce import Run, rows_side_by_side
    from fedspill.reproduce import table as published_table

    screen = Screen()
    chosen = published_table(table)
    use_one_thread(device)
    screen.say(f"{table}: {chosen.title} ({scale})")
    rows = []
    workers = workers or (cores() if device == "cpu" else 1)
    for row in rows_side_by_side(chosen, Run(scale, data_dir, device, seed), workers):
        rows.append(row)
        screen.say(row.line())
        # Written after every row, so that an interrupted run keeps what it has.
        paper, _, name = table.partition("/")
        write_json(json_file, {"paper": paper, "table": name, "scale": scale, "rows": [r.as_json() for r in rows]})
