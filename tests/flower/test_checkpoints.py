"""`fedspill inspect` on two checkpoints that a Flower server saved."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from inprocess import InProcess
from little import all_nodes
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedspill.cli.main import app


def test_labels_from_the_global_models_of_two_rounds(tmp_path: Path, digits_app: Callable[[], Any]) -> None:
    client_app, _ = digits_app()
    from digits_app.task import Net, load_data  # type: ignore[import-not-found]

    def save(number: int, arrays: ArrayRecord) -> None:
        save_file(arrays.to_torch_state_dict(), tmp_path / f"round{number}.safetensors")

    random.seed(0)
    torch.manual_seed(0)
    all_nodes().start(
        InProcess(client_app.app, 4),
        ArrayRecord(Net().state_dict()),
        num_rounds=1,
        train_config=ConfigRecord({"lr": 0.01, "local-epochs": 1, "batch-size": 16}),
        evaluate_fn=save,
    )
    arguments = ["--lr", "0.01", "--batch-size", str(4 * 16), "--samples", "1797"]  # four clients are one of 64
    files = ["--before", f"{tmp_path}/round0.safetensors", "--after", f"{tmp_path}/round1.safetensors"]
    result = CliRunner().invoke(app, ["inspect", *files, *arguments, "--json", f"{tmp_path}/labels.json"])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "labels.json").read_text())
    assert found["head"]["name"] == "fc2"
    counts = torch.tensor(found["best"]["counts"])
    real = torch.bincount(load_data(0, 1).tensors[1], minlength=10)
    assert int(counts.sum()) == 1797
    assert float(torch.minimum(counts, real).sum()) / 1797 > 0.9
