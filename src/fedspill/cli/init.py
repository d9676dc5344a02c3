"""`fedspill init`: six questions, and a commented plan that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedspill.cli.terminal import Screen
from fedspill.errors import UsageError

QUESTIONS = {
    "data": 'Data: a name from "fedspill list datasets", a .csv file, a folder of images, or "module:function"',
    "model": 'Model: a name from "fedspill list models", or "module:function"',
    "clients": "How many clients",
    "rounds": "How many rounds",
    "lr": "Learning rate of a client",
    "batch_size": "Samples in a client's step",
}


def init(
    to: Annotated[Path, typer.Argument(help="The plan to write.")] = Path("plan.toml"),
    data: Annotated[str | None, typer.Option(help="Data set, .csv file, image folder, or module:function.")] = None,
    label: Annotated[str, typer.Option(help="Of a .csv file: the column to learn.")] = "label",
    user: Annotated[str | None, typer.Option(help="Of a .csv file: the column that says whose a row is.")] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="Of a .csv file: a column that is no input.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, or module:function.")] = None,
    clients: Annotated[int | None, typer.Option(min=1)] = None,
    rounds: Annotated[int | None, typer.Option(min=1)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of a client.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples in a client's step.")] = None,
) -> None:
    """Asks six questions, or takes the answers as options, and writes a commented plan that runs."""
    from fedspill.deployment.first_plan import FirstAnswers, plan_text
    from fedspill.deployment.plan import read_plan
    from fedspill.files import write_bytes

    if to.exists():
        raise UsageError(f"{to} is already there.", remedy="Name another file.")
    given: dict[str, Any] = {
        "data": data,
        "model": model,
        "clients": clients,
        "rounds": rounds,
        "lr": lr,
        "batch_size": batch_size,
    }
    usual: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 10, "rounds": 10, "lr": 0.1, "batch_size": 16}
    asked: dict[str, Any] = {
        word: typer.prompt(QUESTIONS[word], default=usual[word], type=type(usual[word])) if value is None else value
        for word, value in given.items()
    }
    answers = FirstAnswers(**asked, label=label, user=user, leave_out=tuple(leave_out or ()))
    screen = Screen()
    try:
        write_bytes(to, plan_text(answers).encode())
        read_plan(to)
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror}.") from None
    screen.say(f"Wrote {to}. Next: fedspill doctor {to}, then fedspill audit {to}.")
