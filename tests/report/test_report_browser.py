"""The page in a real browser: no error, no request, no dialog, no sideways scrolling, all numbers of the JSON."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_kit import typed
from test_report_hostile import PAYLOADS, every_string_is

from fedspill.report import html

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """A page, opened once, and all that happened meanwhile."""

    def __init__(self, browser: Any, path: Path, *, width: int = 1200, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_load_state("load")


@pytest.fixture(scope="module")
def page_file(audited: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(typed(audited[1])))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1200])
def test_opens_clean(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    visit = Visit(browser, page_file, width=width, scheme=scheme)
    visit.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert visit.errors == []
    assert visit.requests == [page_file.as_uri()]
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = "[...document.querySelectorAll('svg, figure, pre, .card')].map(e => e.getBoundingClientRect().right)"
    assert max(visit.page.evaluate(boxes)) <= width


def test_can_be_read_by_machines_for_people(browser: Any, page_file: Path) -> None:
    page = Visit(browser, page_file).page
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('svg')].every(e => e.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('table')].every(e => e.querySelector('th[scope]'))")
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(e => e.tabIndex === 0 && e.ariaLabel)")
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    targets = "[...document.querySelectorAll('a')].every(e => document.getElementById(e.hash.slice(1)))"
    assert page.evaluate(targets)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough(browser: Any, page_file: Path, scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for text."""
    page = Visit(browser, page_file, scheme=scheme).page
    measure = """() => {
      const channel = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
      const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(x => channel(x / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const paper = getComputedStyle(document.body).backgroundColor;
      return [...document.querySelectorAll('p, td, th, dt, dd, li, summary, .tag, figcaption')].map(e => {
        const [more, less] = [light(getComputedStyle(e).color), light(paper)].sort((x, y) => y - x);
        return (more + 0.05) / (less + 0.05); }).reduce((x, y) => Math.min(x, y)); }"""
    assert page.evaluate(measure) >= 4.5


def test_prints(browser: Any, page_file: Path) -> None:
    pdf = Visit(browser, page_file).page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")


@pytest.mark.slow
def test_fifty_hostile_strings_are_shown_as_text(
    browser: Any, audited: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    result = audited[1]
    clean = tmp_path / "clean.html"
    clean.write_text(html.render(typed(every_string_is("harmless ", result))))
    count = "document.querySelectorAll('*').length"
    elements = Visit(browser, clean).page.evaluate(count)
    for index, payload in enumerate(PAYLOADS):
        path = tmp_path / f"{index}.html"
        path.write_bytes(html.render(typed(every_string_is(payload, result))).encode())
        visit = Visit(browser, path)
        assert visit.dialogs == [], payload
        assert visit.errors == [], payload
        assert visit.requests == [path.as_uri()], payload
        assert visit.page.evaluate(count) == elements, payload
        visit.page.close()
