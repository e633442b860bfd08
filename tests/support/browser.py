"""A real browser: Playwright drives the chromium of the system."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 300_000  # for a loaded machine, in which a page may need a minute
_LOCAL = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")


@contextmanager
def open_browser() -> Iterator["Browser"]:
    """Start a headless browser. Without one the test is skipped; `make test` installs one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed; `make browser` installs chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        # Containers run as root and have a small /dev/shm.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=TIMEOUT_MS
        )
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: "Browser", **context: Any) -> "Page":
    """A page with time for a loaded machine."""
    page = browser.new_page(**context)
    page.set_default_timeout(TIMEOUT_MS)
    return page


def watch(page: "Page") -> list[str]:
    """Collect errors, dialogs and requests for anything but this machine."""
    problems: list[str] = []

    def dismiss(dialog: "Dialog") -> None:
        problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(request: "Request") -> None:
        if not request.url.startswith(_LOCAL):
            problems.append(f"request: {request.url}")

    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("dialog", dismiss)
    page.on("request", check)
    return problems
