"""The page "Bring your own": every file on it runs as it stands there."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import lines, run_all
from PIL import Image

from fedspill.attack_run import run_attack
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import read_plan
from fedspill.errors import FedspillError, InputRefused, OwnCodeFailed
from fedspill.registry import make
from fedspill.threat import adversary
from fedspill.trace import MemoryTrace
from fedspill.trace_folder import FolderTrace
from fedspill.truth_table import FACTS, brought_truth

PAGE = Path(__file__).parents[2] / "docs" / "bring_your_own.md"
FILES = {name: text for name, text in re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)}
LINES = lines("docs/bring_your_own.md")
FOLDERS = sorted({name.partition("/")[0] for name in FILES})


@pytest.fixture
def laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files of the page, a made-up table and made-up pictures; modules of an earlier test are forgotten."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    draw = random.Random(1)
    lines = ["patient,hospital,age,sex,pressure,outcome"]
    for number in range(200):
        age, sex = draw.randint(20, 90), draw.choice("fm")
        pressure = draw.randint(90, 180)
        lines.append(f"p{number},h{number % 6},{age},{sex},{pressure},{int(age + pressure / 4 > 85)}")
    for folder in ("table", "own_table"):
        (tmp_path / folder / "patients.csv").write_text("\n".join(lines))
    for label, colour in (("cats", (200, 10, 10)), ("dogs", (10, 10, 200))):
        (tmp_path / "images" / "pictures" / label).mkdir(parents=True)
        for number in range(20):
            shade = tuple(min(255, part + draw.randint(0, 50)) for part in colour)
            Image.new("RGB", (20, 20), shade).save(tmp_path / "images" / "pictures" / label / f"{number}.png")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("clinic", "vision", "words", "wrapped", "kind"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.parametrize("folder", [name for name in FOLDERS if f"{name}/plan.toml" in FILES])
def test_each_plan_of_the_page_runs_and_its_labels_are_read(
    folder: str, laid_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(laid_out / folder)
    deployment = Deployment.of(read_plan(Path("plan.toml")), Path())
    heard = MemoryTrace(deployment.protocol())
    deployment.federation(heard).run()
    outcome = run_attack(make("attacks", "ebi"), heard, adversary("curious-server"), seed=1)
    assert outcome.status == "ok"
    assert (deployment.dataset.train.x.dtype == torch.int64) == (folder in ("tokens", "hugging"))


def test_the_plain_loop_of_the_page_is_recorded_and_its_truth_is_read(laid_out: Path) -> None:
    subprocess.run([sys.executable, "federate.py"], cwd=laid_out / "loop", check=True, timeout=120)
    trace = FolderTrace(laid_out / "loop" / "loop.trace")
    attack, server = make("attacks", "ebi"), adversary("curious-server")
    assert run_attack(attack, trace, server, seed=1).status == "read"
    truth = brought_truth(trace, laid_out / "loop" / "labels.csv")
    outcome = run_attack(attack, trace, server, seed=1, truth=truth)
    assert outcome.status == "ok"
    assert outcome.scores["label-asr"].n == 12


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_for_a_plan_run(laid_out: Path) -> None:
    """In the folder of the first plan of the page, the table."""
    run_all(laid_out / "table", *LINES[:2])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_for_a_recording_run(laid_out: Path) -> None:
    """One without truth, then with twins, then with truth: readings first, and scores where the truth is known."""
    loop = laid_out / "loop"
    run_all(loop, *LINES[2:])
    results = [json.loads((loop / name / "audit.json").read_text()) for name in ("fedspill-audit", "with-twins")]
    assert [result["target"] for result in results] == ["trace", "trace"]
    assert results[1]["twin"]["possible"]
    scored = json.loads((loop / "with-truth" / "audit.json").read_text())["findings"]
    assert "ok" in {finding["status"] for finding in scored}


def test_the_first_two_commands_are_for_a_plan_and_the_others_for_a_recording() -> None:
    assert [words[1] for words in LINES[:2]] == ["doctor", "audit"]
    assert LINES[2] == ["python", "federate.py"]
    assert all("--trace" in words for words in LINES[3:])


def test_the_page_names_every_fact() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == dict(FACTS)


def test_an_error_of_the_users_own_code_is_whole_for_the_terminal_and_bare_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def data():\n    raise RuntimeError('patient 17 has no age')\n")
    (tmp_path / "plan.toml").write_text('data = { name = "custom", factory = "mine:data" }\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(OwnCodeFailed) as caught:
        Deployment.of(read_plan(tmp_path / "plan.toml"))
    assert "patient 17" in caught.value.trace
    assert "patient 17" not in str(caught.value)
    assert "RuntimeError at mine.py:2" in str(caught.value)


def test_targets_of_a_regression_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices.py").write_text(
        "import torch\ndef data():\n    x = torch.rand(9, 2)\n    return x, x[:, 0], x, x[:, 0]\n"
    )
    (tmp_path / "plan.toml").write_text('data = { name = "custom", factory = "prices:data" }\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(InputRefused, match="regression"):
        Deployment.of(read_plan(tmp_path / "plan.toml"))


def test_users_by_the_name_of_a_column(laid_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(laid_out / "own_table")
    plan = read_plan(Path("plan.toml"))
    by_sex = {"partition": type(plan.partition)(name="by-user", column="sex")}  # type: ignore[call-arg]
    two = plan.model_copy(update={**by_sex, "federation": plan.federation.model_copy(update={"clients": 2})})
    clients = Deployment.of(two).shares.clients
    assert [len(own.x[:, 1].unique()) for own in clients] == [1, 1]
    wrong = plan.model_copy(update={"partition": type(plan.partition)(name="by-user", column="heigth")})  # type: ignore[call-arg]
    with pytest.raises(FedspillError, match="no column"):
        Deployment.of(wrong)
