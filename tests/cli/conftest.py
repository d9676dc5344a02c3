"""Runs the command line in this process, as the entry point does."""

import sys
from pathlib import Path

import pytest
from command_line import Result, Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    from fedspill.cli.main import main

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["fedspill", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(0 if code is None else int(code), out, err)

    return run


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A federation of handwritten digits that takes a moment."""
    path = tmp_path / "plan.toml"
    path.write_text(
        """
        seed = 5
        data = "digits"
        model = {name = "mlp", widths = [16]}
        partition = {name = "half-quarter-rest", batch = 24}
        [federation]
        clients = 3
        rounds = 2
        [training]
        lr = 0.01
        batch_size = 8
        """
    )
    return path
