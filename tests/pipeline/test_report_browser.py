"""A report in headless Chromium: nothing is fetched, figures are drawn, tables sort and filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sigmatrace import api
from sigmatrace.testing.scenarios import generate
from tests.browser import alone, chromium

TABLE = "table-communication-rank"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    generate("moe", folder / "run", steps=2)
    return api.run(folder / "run", export="report", out=folder / "out").out / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Any]:
    with alone(browser, path) as opened:
        yield opened


def column(page: Any, at: int) -> list[str]:
    cells = f"#{TABLE} tbody tr:not([hidden]) td:nth-child({at + 1})"
    return page.locator(cells).all_text_contents()


def values(page: Any, at: int) -> list[int]:
    cells = page.locator(f"#{TABLE} tbody tr td:nth-child({at + 1})")
    return cells.evaluate_all("cells => cells.map(cell => Number(cell.dataset.value))")


def test_figures_are_drawn(page: Any) -> None:
    figures = page.locator("figure svg")
    assert figures.count() >= 8
    for box in (figures.nth(at).bounding_box() for at in range(figures.count())):
        assert box["width"] > 300 and box["height"] > 100
    images = page.locator("figure svg image")
    assert images.count() >= 4
    # A heat map has many colours, not just the blank one.
    seen = page.evaluate(
        """async () => {
          const image = new Image();
          image.src = document.querySelector("figure svg image").href.baseVal;
          await image.decode();
          const canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [image.width, image.height];
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const {data} = context.getImageData(0, 0, image.width, image.height);
          const seen = new Set();
          for (let at = 0; at < data.length; at += 4) seen.add(data.slice(at, at + 3).join());
          return seen.size;
        }"""
    )
    assert seen > 5
    assert page.get_by_role("img", name="nodes, verbs").count() >= 2


def test_nothing_is_wider_than_the_page(page: Any) -> None:
    for width in (1200, 700, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_sorting_by_mouse(page: Any) -> None:
    table = page.locator(f"#{TABLE}")
    head = table.locator("th", has_text="bytes").first
    at = page.evaluate("head => head.cellIndex", head.element_handle())
    largest_first = values(page, at)
    assert largest_first == sorted(largest_first, reverse=True) and len(set(largest_first)) > 9
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert values(page, at) == sorted(largest_first)
    table.get_by_role("button", name="from", exact=True).click()
    assert table.locator("th[aria-sort]").all_text_contents() == ["from"]
    names = column(page, 1)
    assert names == sorted(names, key=lambda name: int(name.split()[1]))  # 2 before 10
    assert len(names) == len(largest_first)


def test_filtering(page: Any) -> None:
    section = page.locator("section.data", has=page.locator(f"#{TABLE}"))
    before = len(column(page, 1))
    section.get_by_label("Rows that contain").fill("RANK  11")
    left = list(zip(column(page, 1), column(page, 2), strict=True))
    assert left and all("rank 11" in pair for pair in left)
    assert section.locator("output").text_content() == f"{len(left)} of {before} rows"
    section.get_by_label("Rows that contain").fill("no such thing")
    assert column(page, 1) == []
    section.get_by_label("Rows that contain").fill("")
    assert len(column(page, 1)) == before


def test_keyboard_alone(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0  # it is seen once it has the focus
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator(f"#{TABLE}-filter").focus()
    page.keyboard.type("rank 3")
    assert 0 < len(column(page, 1)) < page.locator(f"#{TABLE} tbody tr").count()
    for _ in range(2):  # the table, which scrolls, then its first heading
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator(f"#{TABLE} th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert page.locator(f"#{TABLE} th[aria-sort]").get_attribute("aria-sort") == "descending"


def test_without_javascript_all_is_there(browser: Any, path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator(f"#{TABLE} tbody tr").count() > 100
    assert page.locator("button, input").count() == 0
    assert page.locator(f"#{TABLE} th").first.is_visible()
    context.close()


def test_print_is_pages_of_a4(page: Any, tmp_path: Path) -> None:
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and not page.locator(".filter").first.is_visible()
    visible = page.locator(f"#{TABLE} tbody tr").evaluate_all(
        "rows => rows.filter(row => row.checkVisibility()).length"
    )
    assert visible == 20
    written = page.pdf(prefer_css_page_size=True)
    assert b"/MediaBox [0 0 594.95996 841.91998]" in written or b"/MediaBox [0 0 595" in written
    assert 3 <= written.count(b"/Type /Page\n") <= 40
