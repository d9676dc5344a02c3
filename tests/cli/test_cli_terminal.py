"""The screen: nothing that comes from outside can move the cursor, colour the text or end it."""

import pytest

from fedspill.cli.terminal import Screen
from fedspill.plain_text import plain

HOSTILE = [
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "a\rb",
    "\x00nul",
    "\u202egnp.exe",
    "zero\u200bwidth",
    "\ud800lone",
    "\x9b31m",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_control_characters_are_shown_as_such(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert "�" in shown
    shown.encode("utf-8")
    assert not any(bad in shown for bad in ("\x1b", "\r", "\x00", "\x07", "\u202e", "\u200b", "\x9b"))


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("plain", "two\nlines\tand a tab", "ünïcode 数据 🙂", "[bold]markup[/bold]", ""):
        assert plain(text) == text


@pytest.mark.parametrize("text", [*HOSTILE, "[red]x[/red]", "[/nothing]", "[link=http://x]y[/link]"])
def test_the_screen_prints_hostile_text_without_obeying_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.say(text)
    screen.error(text)
    screen.table(["name"], [[text]])
    screen.facts({"name": text, "list": [text], "nothing": []})
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert plain(text) in out
    assert f"fedspill: {plain(text)}" in err
    assert "nothing:" not in out


def test_without_a_terminal_a_line_now_and_then_says_how_far_the_work_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    screen = Screen(lambda: now[0])
    with screen.bar("Trying", 60) as step:
        for done in range(60):
            now[0] = float(done)
            step(done, "labels/\x1b[31mcurious-server")
    out, err = capsys.readouterr()
    assert (out, "\x1b" in err) == ("", False)
    assert [line.partition(";")[0] for line in err.splitlines()] == [
        "fedspill: Trying, 20 of 60",
        "fedspill: Trying, 40 of 60",
    ]
    now[0] = 100.0
    assert list(screen.progress(range(3), "rounds")) == [0, 1, 2]
    assert capsys.readouterr().err == "fedspill: rounds, 0 of 3\n"


def test_progress_hands_over_every_item_and_short_work_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(Screen().progress(range(3), "rounds")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
