"""Plug-ins that cheat get no score above their control, and hurt no other unit of the audit."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from audit_kit import audit, tiny

HERE = Path(__file__).parent
CHEATS = (
    "ByGc",
    "ByFrames",
    "ByFiles",
    "ByProc",
    "BySqlite",
    "ByEnvironment",
    "BySockets",
    "ByPtrace",
    "ByMonkeypatch",
    "ByPipe",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_cheats_get_nothing_and_an_honest_attack_beside_them_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HERE / "cheats.py", tmp_path / "cheats_of_test.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SECRET_OF_THE_AUDITOR", "x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port.txt").write_text(str(server.getsockname()[1]))
        attacks = [*(f"cheats_of_test:{name}" for name in CHEATS), "llbg"]
        plan = tiny(attacks=attacks, adversaries=["curious-server"], candidates=[])
        result = audit(plan, tmp_path / "out")
    found = {finding["attack"]: finding for finding in result["findings"]}
    for name in CHEATS:
        finding = found[f"cheats_of_test:{name}"]
        assert finding["severity"] in (None, "info"), finding
        assert finding["state"] != "found", finding
        assert all("found 0 facts" in note for note in finding["notes"] if ": found" in note), finding["notes"]
    assert found["llbg"]["status"] == "ok", found["llbg"]
    assert not (tmp_path / "pwned").exists()
