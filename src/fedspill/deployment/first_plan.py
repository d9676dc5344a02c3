"""The plan that six answers make: every line with the word that a reader needs to change it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FirstAnswers:
    """What was asked, and of a table what its columns are."""

    data: str
    model: str
    clients: int
    rounds: int
    lr: float
    batch_size: int
    label: str = "label"
    user: str | None = None
    leave_out: tuple[str, ...] = ()


def plan_text(answers: FirstAnswers) -> str:
    """TOML with comments."""
    partition = {"name": "by-user"} if answers.user else {"name": "dirichlet", "alpha": 0.5}
    words = (
        '# whole users to clients; "iid" gives everybody the same mix'
        if answers.user
        else '# unlike mixes of classes; larger alpha: more alike. "by-user" gives whole users to clients'
    )
    return f"""# A federation to audit: fedspill audit, and the name of this file. All keys: docs/audit.md.
# fail_on = "high"         # exit code 1 from this severity on, for CI
# repeats = 3              # federations with seeds of their own; narrower intervals

[data]                     # what clients train on; "fedspill list datasets", or your own (docs/bring_your_own.md)
{_lines(_data(answers))}

[model]                    # "fedspill list models", or your own function of (shape, classes)
{_lines(_model(answers))}

[partition]                {words}
{_lines(partition)}

[federation]
clients = {answers.clients}
rounds = {answers.rounds}
# clients_per_round = 5    # where not all take part in each round
# secure_aggregation = true   # where the server sees sums alone

[training]                 # of a client
lr = {answers.lr}
batch_size = {answers.batch_size}
# epochs = 1
# optimizer = "sgd"        # or "adam", "adadelta"

[adversary_data]           # what attackers hold: it is taken out before clients get any
per_class = 5              # labelled samples of each class; 0: attacks that need them do not run
# shadow = 500             # much data of the kind, fewer where rows are few: attacks train models with it
"""


def _data(answers: FirstAnswers) -> dict[str, object]:
    if ":" in answers.data:
        return {"name": "custom", "factory": answers.data}
    if answers.data.endswith(".csv"):
        columns: dict[str, object] = {"label": answers.label}
        if answers.user:
            columns["user"] = answers.user
        if answers.leave_out:
            columns["leave_out"] = list(answers.leave_out)
        return {"name": "csv", "path": answers.data, **columns}
    return {"name": "image-folder", "path": answers.data} if Path(answers.data).is_dir() else {"name": answers.data}


def _model(answers: FirstAnswers) -> dict[str, object]:
    return {"name": "custom", "factory": answers.model} if ":" in answers.model else {"name": answers.model}


def _lines(values: Mapping[str, object]) -> str:
    """Keys and values; JSON and TOML write texts, numbers and lists of these alike."""
    return "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
