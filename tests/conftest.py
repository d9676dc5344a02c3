"""Fixtures for all tests: one torch thread, no network, and the folder of real data where there is one."""

import os
import socket
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in Fedspill talks to the outside unless asked: a connection beyond this machine fails the test."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "::1", "localhost")):  # type: ignore[index]
            raise AssertionError(f"a test tried to reach {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


def real_data_folder() -> Path | None:
    """FEDSPILL_DATA, else the data folder that stands beside the checkout."""
    candidates = [os.environ.get("FEDSPILL_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    return next((Path(folder) for folder in candidates if folder and Path(folder).is_dir()), None)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets; tests that need it are skipped where there is none."""
    folder = real_data_folder()
    if folder is None:
        pytest.skip("needs real data: set FEDSPILL_DATA to a folder of data sets")
    return folder
