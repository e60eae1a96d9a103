"""sigmatrace-view in a real browser: the trace is loaded, its tracks and an arrow are drawn.

The trace is that of a ring allreduce. In the picture arrows alone have the colour that is counted.
"""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from sigmatrace import api
from sigmatrace.testing.scenarios import generate
from sigmatrace.view.command import contents
from sigmatrace.view.server import Server

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
ARROW = (198, 102, 83)
OWN_PROBES = (
    "Unrecognized Content-Security-Policy directive 'navigate-to'",
    "perfetto-ui-internal/is-internal-user",
    "127.0.0.1:9001",
    "it violates the document's Content Security Policy",
    "LiveReload SSE error",
    "responded with a status of 404",
)
"""What the user interface itself says where it does not run at its makers': it looks for their
servers, and for a native trace_processor, and is not let."""
FIRST_OF_THE_SLOW_LINK = """async () => {
  const found = await app.trace.engine.query(`
    select slice_out as id, s.ts as ts, r.ts - s.ts as dur
    from flow join slice s on s.id = slice_out join slice r on r.id = slice_in
    order by r.ts - s.ts desc, s.ts limit 1`);
  const row = found.firstRow({id: 0, ts: 0, dur: 0});
  return [row.id, row.ts, row.dur];
}"""
ONLY_RANKS_2_AND_3 = """() => app.trace.workspace.flatTracks.forEach(
  track => /^rank [23] /.test(track.name) ? track.expand() : track.collapse())"""
AROUND = """([id, ts, dur]) =>
  app.trace.timeline.setViewportTime(BigInt(ts - dur), BigInt(ts + 2 * dur))"""
SELECT = "([id]) => app.trace.selection.selectSqlEvent('slice', id)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[str]]]:
    run = tmp_path_factory.mktemp("view") / "run"
    generate("ring", run, ranks=4, hosts=2, iterations=2)
    out = api.run(run, export=["perfetto"]).out
    (out / "report.html").write_text("<!doctype html><title>numbers</title><p>a report")
    files, pages = contents(out)
    with Server(files) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made, [made.url + page.format(url=made.url) for page in pages]
        made.shutdown()


class Seen:
    """A page, what it said, and who answered it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.answers: list[str] = []
        self.broken: list[str] = []
        page.on("console", lambda said: self.said.append(f"{said.type}: {said.text}"))
        page.on("response", lambda answer: self.answers.append(answer.url))
        page.on("pageerror", lambda error: self.broken.append(str(error)))

    @property
    def errors(self) -> list[str]:
        """Errors that are not the user interface's own."""
        errors = [text for text in self.said if text.startswith("error")]
        return [text for text in errors if not any(probe in text for probe in OWN_PROBES)]

    def answered_by(self) -> set[str]:
        """Who answered requests of the page: it got nothing from anybody else."""
        urls = [url for url in self.answers if url.startswith("http")]
        return {url[: url.index("/", len("https://"))] for url in urls}

    def wait(self) -> None:
        self.page.evaluate("() => waitForPerfettoIdle()")

    def arrow_pixels(self) -> int:
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return int((np.abs(np.asarray(picture).astype(int) - ARROW).max(axis=2) < 8).sum())


@pytest.fixture
def seen() -> Iterator[Seen]:
    browser_path = shutil.which("chromium")
    assert browser_path, "chromium is missing: scripts/setup.sh --dev installs it"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=OPTIONS)
        yield Seen(browser.new_page(viewport={"width": 1400, "height": 900}))
        browser.close()


def test_a_trace_is_loaded_and_its_arrow_drawn(seen, server):
    made, (trace, _) = server
    page = seen.page
    page.goto(trace)
    page.wait_for_function("() => !!(self.app && app.trace)")
    seen.wait()
    names = page.evaluate("() => app.trace.workspace.flatTracks.map(track => track.name)")
    assert {f"rank {rank} (node{rank // 2}) {1000 + rank}" for rank in range(4)} < set(names)
    page.evaluate(ONLY_RANKS_2_AND_3)
    message = page.evaluate(FIRST_OF_THE_SLOW_LINK)
    page.evaluate(AROUND, message)
    seen.wait()
    assert page.get_by_text("rank 2 (node1)").first.is_visible()
    assert seen.arrow_pixels() == 0
    page.evaluate(SELECT, message)
    seen.wait()
    assert page.get_by_text("Following Flows").is_visible()
    assert seen.arrow_pixels() > 200
    assert seen.errors == [] and seen.broken == []
    assert seen.answered_by() == {made.url}


def test_a_report_is_shown(seen, server):
    _, (_, report) = server
    seen.page.goto(report)
    assert seen.page.get_by_text("a report").is_visible()
    assert seen.errors == [] and seen.broken == []
