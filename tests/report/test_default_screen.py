"""The first screen of the default audit: on one screen, in few lines of a terminal, on paper, and for everybody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedspill import AuditResult, run_audit
from fedspill.deployment.plan import default_plan
from fedspill.report import html, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAPER = 718  # pixels of a page's width between its margins


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """`FEDSPILL_DEFAULT_AUDIT` may name the folder of one that was made before."""
    made = os.environ.get("FEDSPILL_DEFAULT_AUDIT")
    folder = Path(made) if made else tmp_path_factory.mktemp("default") / "audit"
    return run_audit(default_plan().model_copy(update={"workers": 2}), folder)


@pytest.fixture(scope="module")
def opened(result: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    if CHROMIUM is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(result))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser, path.as_uri()
        browser.close()


def test_a_terminal_shows_it_in_forty_lines(result: AuditResult) -> None:
    lines = text.render(result).splitlines()
    assert len(lines) < 40  # one more names the report
    assert max(map(len, lines)) <= 100


def test_it_fits_one_screen(opened: tuple[Any, str]) -> None:
    browser, address = opened
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.goto(address)
    assert page.evaluate("document.querySelector('.sure').getBoundingClientRect().bottom") <= 1100


def test_no_part_of_it_is_wider_than_paper(opened: tuple[Any, str]) -> None:
    browser, address = opened
    page = browser.new_page(viewport={"width": PAPER, "height": 1000})
    page.goto(address)
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    right = "[...document.querySelectorAll('table, svg, pre, figure')].map(part => part.getBoundingClientRect().right)"
    assert max(page.evaluate(right)) <= PAPER


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_axe_finds_nothing(opened: tuple[Any, str], width: int, scheme: str) -> None:
    script = os.environ.get("FEDSPILL_AXE")
    if not script:
        pytest.skip("needs axe-core: npm pack axe-core, and FEDSPILL_AXE names its axe.min.js")
    browser, address = opened
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.evaluate(Path(script).read_text(encoding="utf-8"))
    assert [found["id"] for found in page.evaluate("axe.run()")["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
