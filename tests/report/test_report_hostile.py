"""Names from outside are shown as text in every format, and nothing of the training data is shown at all."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
import torch
from audit_kit import HEAD, answered, attack_code, here, plug_in, tiny, typed, write_plan

from fedspill.audit.run_audit import Request
from fedspill.messages import Message
from fedspill.report import html, junit, markdown, sarif
from fedspill.report.outputs import NAMES, write_all
from fedspill.trace import Event, Origin
from fedspill.trace_folder import FolderRecorder

PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'><iframe src=javascript:alert(1)>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<!-- --><b>bold</b>",
    "]]><script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<a href='javascript:alert(1)'>x</a>",
    "<form action=https://example.org><input name=q>",
    "<base href=https://example.org>",
    "<link rel=stylesheet href=https://example.org/x.css>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<object data=https://example.org>",
    "<style>*{display:none}</style>",
    "<details open ontoggle=alert(1)>",
    "<math><mi xlink:href=javascript:alert(1)>",
    "{{ 7 * 7 }}",
    "{% raw %}x{% endraw %}",
    "${7*7}",
    "#{7*7}",
    "=1+1",
    "+1+1",
    "-1+1",
    "@SUM(1)",
    '=HYPERLINK("https://example.org","x")',
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\x9b31mred",
    "\rover",
    "\x00null",
    "\x08\x08\x08back",
    "a\nb",
    "tab\there",
    "‮reversed",
    "﻿bom",
    "\ud800",
    "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><x>&e;</x>",
    "<x xmlns='y'/>",
    "[link](https://example.org)",
    "![image](https://example.org/x.png)",
    "`code` | cell | another",
    "# heading",
    "@everyone #1",
    "../../etc/passwd",
]
Result = dict[str, Any]


def every_string_is(payload: str, value: Any, path: tuple[str, ...] = ()) -> Any:
    """The result with the payload put before every string that comes from outside."""
    if isinstance(value, dict):
        return {key: every_string_is(payload, item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [every_string_is(payload, item, path) for item in value]
    outside = {"title", "why", "notes", "deployment", "classes", "events", "names", "setting", "defense", "advice"}
    outside |= {"repeat", "cannot_tell", "reason", "plan_file", "x_title", "y_title", "best", "family"}
    return f"{payload}{value}" if isinstance(value, str) and path and path[-1] in outside else value


class Elements(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in ("href", "src")}


def elements(page: str) -> Elements:
    parser = Elements()
    parser.feed(page)
    return parser


def test_there_are_fifty() -> None:
    assert len(set(PAYLOADS)) == 50


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_shown_as_text_in_every_format(audited: tuple[Path, Result], payload: str, tmp_path: Path) -> None:
    result = every_string_is("harmless ", audited[1])
    hostile = every_string_is(payload, audited[1])
    clean, attacked = elements(html.render(typed(result))), elements(html.render(typed(hostile)))
    assert attacked.tags == clean.tags
    assert attacked.attributes == clean.attributes
    assert all(link.startswith("#") for link in attacked.links)
    fromstring(junit.render(typed(hostile)))
    json.loads(sarif.render(typed(hostile)))
    shown = markdown.render(typed(hostile))
    assert len(shown.splitlines()) == len(markdown.render(typed(result)).splitlines())
    assert not re.search(r"(?<!\\)[<@]|(?<!\\)\]\(", shown)
    write_all(tmp_path, typed(hostile), {})
    for name in NAMES.values():
        content = (tmp_path / name).read_bytes()
        assert b"\x1b" not in content
        assert b"\x9b" not in content.replace(b"\xc2\x9b", b"!")
        content.decode("utf-8")


def test_a_hostile_recording_is_audited_and_printed_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client, layer and file names that are payloads, through the real command."""
    folder = tmp_path / "<b>rec'ord\x1b[31m"
    weight, bias = "<script>alert(1)</script>\x1b[31m.weight", "\x1b]0;x\x07.bias"
    protocol = {"classes": 3, "head_weight": weight, "head_bias": bias, "algorithm": "<i>x\x1b[2J", "batch_size": 4}
    recorder = FolderRecorder(folder, {**protocol, "local_lr": 0.1})
    for number in range(2):
        for index in range(3):
            sender = f"client:{index}<img src=x onerror=alert(1)>\x1b[5m"
            tensors = {weight: torch.randn(3, 2), bias: torch.randn(3)}
            recorder.say(Message(number, sender, "server", "update", tensors, {"examples": 4}))
            recorder.note_truth(Origin(number, sender), "label_counts", torch.tensor([2, 1, 1]))
        recorder.say(Message(number, "server", "all", "model", {weight: torch.randn(3, 2)}))
        recorder.note_event(Event(number, "client:<u>", "\x1b[31m<script>alert(1)</script>"))
        recorder.end_round(number)
    recorder.finish()
    write_plan(tmp_path / "plan.toml", attacks=["llbg", "llbg-aux"], adversaries=["curious-server"])
    monkeypatch.chdir(tmp_path)
    words = ("audit", "plan.toml", "--trace", folder, "--out", tmp_path / "o<u>t")
    ended = here(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code in (0, 1, 3), ended.err
    assert "\x1b" not in ended.out + ended.err
    page = (tmp_path / "o<u>t" / "report.html").read_text()
    assert not {"script", "b", "u", "img", "i"} & set(elements(page).tags)
    fromstring((tmp_path / "o<u>t" / "junit.xml").read_text())


CANARIES = 100
DATA = f"""
import numpy as np
from fedspill.dataset import Dataset, Examples
import torch

def data():
    '''100 canaries: 50 strings written into pixels, 50 random images.'''
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, ({CANARIES}, 8, 8), dtype=np.uint8)
    for index in range({CANARIES} // 2):
        text = f"CANARY-{{index:03d}}-the-patient-has-a-secret-that-nobody-may-read-0123".encode()[:64]
        images[index] = np.frombuffer(text.ljust(64, b"."), dtype=np.uint8).reshape(8, 8)
    x = torch.from_numpy(images.astype(np.float32) / 255)[:, None].repeat(4, 1, 1, 1)
    y = torch.arange(len(x)) % 4
    return Dataset("theirs", ("a", "b", "c", "d"), Examples(x, y), Examples(x[:40], y[:40]))
"""
LEAKY = attack_code(
    "Leaky",
    "leaky",
    """
images = view.knows("unlabelled_aux")
print("CANARY", images)
raise ValueError(f"CANARY {images.flatten()[:64].tolist()}")
""",
)


def test_a_hundred_canaries_are_in_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in(tmp_path, monkeypatch, HEAD + DATA + LEAKY, {"leaky": "Leaky"})
    write_plan(
        tmp_path / "plan.toml",
        data={"name": "custom", "factory": "theirs:data"},
        partition={"name": "iid"},
        attacks=["llbg", "labels", "leaky"],
        adversaries=["curious-server"],
        candidates=["compression"],
    )
    monkeypatch.chdir(tmp_path)
    ended = here("audit", "plan.toml", "--out", "out", monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 3, ended.err  # the leaky attack errored
    out = tmp_path / "out"
    written = {name: (out / name).read_bytes() for name in NAMES.values()}
    with sqlite3.connect(out / "audit.sqlite") as database:
        written["store"] = "\n".join(database.iterdump()).encode()
    written["screen"] = (ended.out + ended.err).encode()
    import theirs  # type: ignore[import-not-found]

    images = (theirs.data().train.x[:CANARIES, 0] * 255).round().byte().numpy()
    found = [
        (name, index)
        for name, content in written.items()
        for index, image in enumerate(images)
        if any(trace in content for trace in traces_of(image))
    ]
    assert found == []
    assert all(b"CANARY" not in content for content in written.values())


def traces_of(image: np.ndarray) -> list[bytes]:
    """An image as it could turn up: raw, as floats, in base64 at any offset, in hexadecimal, as printed numbers."""
    floats = (image.astype(np.float32) / 255).tobytes()
    raw = [image.tobytes(), floats, image.tobytes().hex().encode()]
    raw += [base64.b64encode(data[skip:])[4:40] for data in (image.tobytes(), floats) for skip in range(3)]
    row = image.flatten()[:4]
    raw.append(", ".join(str(int(value)) for value in image.flatten()[:8]).encode())
    raw.append(", ".join(f"{float(value) / 255:.4f}" for value in row).encode())
    return raw


def test_data_are_shown_on_request_only(audited: tuple[Path, Result], tmp_path: Path) -> None:
    plan = tiny(attacks=["llbg"], adversaries=["curious-server"])
    shown = answered(Request(plan, tmp_path / "shown", show_data=True))
    private = [item for finding in shown["findings"] for item in finding["evidence"] if item["private"]]
    assert [item["title"] for item in private] == ["Labels of one client"]
    assert "shown on request" in html.render(typed(shown))
    assert not any(item["private"] for finding in audited[1]["findings"] for item in finding["evidence"])
