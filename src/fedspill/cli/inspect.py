"""`fedspill inspect`: label counts straight from checkpoint files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspill.cli.options import JsonFile, write_json
from fedspill.cli.terminal import Screen
from fedspill.errors import UsageError
from fedspill.plain_text import plain


def inspect(
    before: Annotated[Path | None, typer.Option(help="Checkpoint before local training (safetensors).")] = None,
    after: Annotated[Path | None, typer.Option(help="Checkpoint after local training (safetensors).")] = None,
    gradient: Annotated[Path | None, typer.Option(help="One mean gradient (safetensors).")] = None,
    lr: Annotated[float | None, typer.Option(help="The client's learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per local step; always needed.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples in all.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Local steps in all.")] = None,
    head: Annotated[str | None, typer.Option(help="Name of the last linear layer (default: found).")] = None,
    unchecked: Annotated[bool, typer.Option(help="Accept a head whose gradient does not add up to zero.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Reads label counts out of two checkpoints or one gradient, without any model code."""
    from fedspill.leaks.labels.checkpoints import inspect_gradient, inspect_update

    if gradient is not None and (before or after):
        raise UsageError("Give either --gradient, or --before and --after.")
    if gradient is not None:
        result = inspect_gradient(gradient, batch_size=batch_size, head=head, unchecked=unchecked)
    elif before is not None and after is not None and lr is not None:
        result = inspect_update(
            before,
            after,
            lr=lr,
            batch_size=batch_size,
            samples=samples,
            local_steps=local_steps,
            head=head,
            unchecked=unchecked,
        )
    else:
        raise UsageError("Give --before, --after and --lr, or --gradient.")
    write_json(json_file, result.as_json())
    screen = Screen()
    screen.say(f"Last layer: {plain(result.head.name)}, {result.head.weight.shape[0]} classes.")
    classes = range(result.head.weight.shape[0])
    present = [index for index in classes if any(int(counts[index]) for counts in result.counts.values())]
    rows = [[str(index), *(str(int(counts[index])) for counts in result.counts.values())] for index in present]
    screen.table(["class", *(f"{name} (best)" if name == result.best else name for name in result.counts)], rows)
    if result.expects is not None:
        screen.say(f"{result.best} expects {round(100 * result.expects)} of 100 labels to be right.")
    for note in result.notes:
        screen.say(f"Note: {plain(note)}.")
