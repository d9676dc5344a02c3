"""`fedspill dp`: whether the differential privacy that a plan's defenses claim is really there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspill.cli.options import DataDir, JsonFile, use_one_thread, write_json
from fedspill.cli.terminal import Screen
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import read_plan
from fedspill.dp_audit.of_plan import audit_defenses
from fedspill.errors import ExitCode


def dp(
    plan: Annotated[Path, typer.Argument(help="The plan (TOML) whose defenses are tested.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the canaries; another one is a second opinion.")] = 1,
    data_dir: DataDir = None,
    json_file: JsonFile = None,
) -> None:
    """Tests whether the differential privacy that a plan's defenses claim is really there.

    The defenses' own code is called with canaries. Exit 1 when a claim is violated. No test shows that a claim holds.
    """
    screen = Screen()
    use_one_thread("cpu")
    results = audit_defenses(Deployment.of(read_plan(plan), data_dir), seed)
    for result in results:
        screen.say(f"{result.what}: claimed epsilon {result.claimed:.4g} at delta {result.delta:g}")
        rows = [
            [test.name, f"{test.estimate:.3g}", f"{test.lower:.3g}", f"{test.largest:.3g}", test.assumption]
            for test in result.tests
        ]
        if rows:
            screen.table(["test", "estimate", "at least", "could show", "if"], rows)
        for note in result.notes:
            screen.say(note)
        screen.say(f"{result.what}: {result.verdict}.")
    if not results:
        screen.say("No defense of this plan claims differential privacy that can be tested.")
    dumped = [
        {**result.model_dump(mode="json"), "verdict": result.verdict, "violated": result.violated} for result in results
    ]
    write_json(json_file, {"schema": 1, "results": dumped})
    if any(result.violated for result in results):
        raise typer.Exit(ExitCode.FINDINGS)
