"""The plan: one TOML file and one object, checked whole, with lines and nearest names."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from audit_kit import here, tiny, write_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspill.deployment.plan import Plan, check_plan, default_plan, read_plan
from fedspill.deployment.toml_lines import line_of
from fedspill.errors import FedspillError, PlanError

EIGHT = """seed = -1
adversaries = [
  "curious-server",
  "curius-client",
]
fail_on = "hihg"
typo = 1

[data]
name = "digitz"

[training]
optimizer = "sgdd"

[federation]
clients = "ten"

[[attacks]]
name = "labels"

[[attacks]]
name = "llbg-gamma"
gamme = 0.5
"""


def test_eight_mistakes_are_listed_at_once_with_line_and_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(EIGHT)
    with pytest.raises(PlanError) as caught:
        read_plan(tmp_path / "plan.toml")
    mistakes = caught.value.mistakes
    assert len(mistakes) == 8, mistakes
    wanted = {
        1: "seed",
        4: "Did you mean 'curious-client'",
        6: "Did you mean 'high'",
        7: "there is no such key",
        10: "Did you mean 'digits'",
        13: "Did you mean 'sgd'",
        16: "got 'ten'",
        23: "Did you mean 'gamma'",
    }
    for mistake, (line, words) in zip(mistakes, wanted.items(), strict=True):
        assert mistake.startswith(f"line {line},"), mistake
        assert words in mistake


def test_the_command_says_them_all_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.toml").write_text(EIGHT)
    ended = here("audit", tmp_path / "plan.toml", monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 2
    assert ended.err.count("  - line") == 8


def test_file_and_object_are_the_same(tmp_path: Path) -> None:
    assert read_plan(write_plan(tmp_path / "plan.toml", repeats=2)) == tiny(repeats=2)
    assert check_plan(Plan().model_dump(mode="json"), "itself") == Plan()
    assert read_plan(None) == default_plan()
    assert default_plan().model_copy(update={"record": Plan().record, "candidates": None}) == Plan()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"federation": {"clients": 3, "clients_per_round": 4}}, "there are 3"),
        ({"record": {"rounds": [99]}}, "names 99"),
        ({"candidates": [{"name": "clip-noise", "strengths": [{"sigmma": 1}]}]}, "Did you mean 'sigma'"),
        ({"candidates": ["clip-noize"]}, "Did you mean 'clip-noise'"),
        ({"training": {"lr": -1}}, "lr > 0"),
        ({"device": "gpu"}, "device"),
        ({"data": {"x": 1}}, "data.name: is missing"),
    ],
)
def test_what_cannot_be_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match="mistake") as caught:
        check_plan(content, "plan")
    assert words in str(caught.value)


def test_what_does_not_change_results_does_not_change_the_plan() -> None:
    assert tiny(workers=2, fail_on="high", limits={"seconds": 5}).essence() == tiny().essence()
    assert tiny(seed=8).essence() != tiny().essence()


def test_lines_of_keys() -> None:
    text = 'a = 1\n[b]\nc.d = """\nx = 1\n"""\n[[e]]\nname = "p"\n[[e]]\nname = "q"\n'
    assert line_of(text, ("a",)) == 1
    assert line_of(text, ("b", "c", "d")) == 3
    assert line_of(text, ("b", "zzz")) == 2
    assert line_of(text, ("e", 1, "name")) == 9
    assert line_of(text, ("x",)) is None


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*Plan.model_fields, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_any_content_is_a_plan_or_a_refusal(content: dict[str, Any]) -> None:
    with suppress(FedspillError):
        check_plan(content, "plan", "x = 1")
