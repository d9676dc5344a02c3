"""The site as it is built: no warning, no dead link, nothing from elsewhere, no barrier for who cannot see it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from fedspill.registry import entries

pytest.importorskip("mkdocs", reason="needs fedspill[docs]")
# One group: a single worker builds the site, for all of these.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("site")]
ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Links(HTMLParser):
    """Where a page points, what it loads, and which places it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and "href" in given:
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a warning of mkdocs, of a plug-in or of our hooks fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_no_link_is_dead(site: Path) -> None:
    found = pages(site)
    dead = []
    for path, page in found.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target / "index.html" if target.is_dir() else target
            if not there.is_file():
                dead.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and there in found and unquote(parts.fragment) not in found[there].places:
                dead.append(f"{path.relative_to(site)}: {link} (no such place)")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    outside = re.compile(r"^(https?:)?//")
    assert [(str(path), one) for path, page in pages(site).items() for one in page.loaded if outside.match(one)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", styles) == []


def test_every_leak_has_a_page_that_names_its_attacks(site: Path) -> None:
    from fedspill.registry import load

    on = {entry.name: load("attacks", entry.name).leak.name for entry in entries("attacks")}
    for leak in entries("leaks"):
        text = (site / "leaks" / f"{leak.name}.html").read_text(encoding="utf-8")
        assert [name for name, of in on.items() if of == leak.name and f"<code>{name}</code>" not in text] == []
        assert "generated:" not in text


PAGES = [
    "index.html",
    "start.html",
    "bring_your_own.html",
    "leaks/labels.html",
    "defenses.html",
    "notebooks/attack_by_hand.html",
    "reference.html",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_barrier(site: Path, browser: Any, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    page = browser.new_page(color_scheme=scheme)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / name).as_uri())
    page.wait_for_load_state("load")
    found = axe.run(page).response["violations"]
    page.close()
    told = [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
    assert told == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
