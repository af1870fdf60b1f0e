"""A real Chromium for the page: the one on PATH, else Playwright's own, else a skip.

With KVRECLAIM_REQUIRE_BROWSER=1 in the environment a missing browser is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measured_tables
import observed_tables
import pytest
import report_tables

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _without_browser(reason: str) -> None:
    if os.environ.get("KVRECLAIM_REQUIRE_BROWSER") == "1":
        pytest.fail(f"a browser is required: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _without_browser("playwright is not installed")
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=installed, args=ARGUMENTS)
        except Error as error:
            _without_browser(f"no Chromium could be started: {str(error).splitlines()[0]}")
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kvreclaim.report import render_page

    folder = tmp_path_factory.mktemp("page")
    study = report_tables.write_study(folder / "study")
    audit = report_tables.write_audit(folder / "audit")
    measured = measured_tables.write_measured(folder / "measured", needle_table=measured_tables.needles())
    observed = observed_tables.write_observed(folder / "observed")
    file = folder / "index.html"
    file.write_text(render_page([study, audit, measured, observed]), encoding="utf-8")
    return file


@dataclass
class Opened:
    """A page in a context without network, with what it said and what it asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


def open_page(browser: Any, file: Path, **context: Any) -> Opened:
    """Open the page offline and wait until every chart is drawn."""
    page = browser.new_context(offline=True, **context).new_page()
    opened = Opened(page)
    page.on("console", lambda message: opened.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (opened.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: opened.asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=true]", timeout=60_000)
    return opened


@pytest.fixture(scope="session")
def opened(browser: Any, page_file: Path) -> Opened:
    """The page at 1280 pixels in light mode; tests put back what they press."""
    return open_page(browser, page_file, viewport={"width": 1280, "height": 900}, color_scheme="light")


@pytest.fixture
def page(opened: Opened) -> Any:
    return opened.page


@pytest.fixture(scope="session")
def narrow(browser: Any, page_file: Path) -> Opened:
    """The page on a phone's width."""
    return open_page(browser, page_file, viewport={"width": 390, "height": 844}, color_scheme="light")


@pytest.fixture(scope="session")
def dark(browser: Any, page_file: Path) -> Opened:
    """The page for a reader whose system is dark and wants little motion."""
    context = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark", "reduced_motion": "reduce"}
    return open_page(browser, page_file, **context)
