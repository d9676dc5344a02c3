"""`fedspill doctor`: what an audit of a plan would run, what it could not, and what one more fact would add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspill.cli.options import DataDir, use_one_thread
from fedspill.cli.terminal import Screen


def doctor(
    plan: Annotated[Path, typer.Argument(help="The plan (TOML).")],
    data_dir: DataDir = None,
) -> None:
    """Trains a few rounds of the plan, tries each attack on them for a moment, and says what an audit would run."""
    from fedspill.audit.examination import examine
    from fedspill.deployment.plan import read_plan

    screen = Screen()
    use_one_thread("cpu")
    found = examine(read_plan(plan), data_dir, screen)
    screen.say(f"{found.description}.")
    for line in found.tried:
        screen.say(f"- {line}")
    screen.table(["leak", "attacks that would run", "by"], found.runs)
    if found.reasons:
        screen.say("Would not run:")
        for reason, attacks in found.reasons:
            screen.say(f"- {reason}: {', '.join(attacks)}")
    screen.say("One more fact would add:" if found.more else "No further fact of the plan would add an attack.")
    for fact, attacks in found.more:
        screen.say(f"- {fact}: {', '.join(attacks)}")
