"""A page in headless Chromium that must fetch nothing and complain of nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, and end it behind the block."""
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def alone(browser: Any, path: Path) -> Iterator[Any]:
    """Open the page of a file, and assert that it was all that was asked for, without a message.

    Whatever the block does to it: sort, filter, resize.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert told == [path.as_uri()]
