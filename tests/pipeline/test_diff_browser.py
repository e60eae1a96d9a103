"""The page of a comparison in headless Chromium: nothing is fetched, it draws, sorts, filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sigmatrace.diff.command import CHANGED, main
from tests.browser import alone, chromium
from tests.diff_runs import SIZE, analysed, write_run


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    sizes = {(0, 1): 3 * SIZE, (2, 1): 2 * SIZE}
    a = analysed(write_run(folder / "a"))
    b = analysed(write_run(folder / "b", sizes=sizes, late={1: 70_000}))
    assert main([str(a), str(b), "--html", str(folder / "changes.html")]) == CHANGED
    return folder / "changes.html"


@pytest.fixture
def page(path: Path) -> Iterator[Any]:
    with chromium() as browser, alone(browser, path) as opened:
        yield opened


def test_the_page_of_a_comparison(page: Any) -> None:
    figures = page.locator("figure svg")
    assert figures.count() == 2
    for box in (figures.nth(at).bounding_box() for at in range(figures.count())):
        assert box["width"] > 300 and box["height"] > 100
    table = page.locator("#table-rank_pair")
    head = table.locator("th", has_text="relative")
    at = page.evaluate("head => head.cellIndex", head.element_handle())
    cells = f"#table-rank_pair tbody tr:not([hidden]) td:nth-child({at + 1})"
    assert page.locator(cells).all_text_contents() == ["+200 %", "+100 %"]
    for _ in range(2):
        head.get_by_role("button").click()
    assert page.locator(cells).all_text_contents() == ["+100 %", "+200 %"]
    page.locator("#table-rank_pair-filter").fill("rank 2")
    assert page.locator(cells).all_text_contents() == ["+100 %"]
    for width in (1200, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
