"""How long a trace of a given size takes to open in a browser, by ``sigmatrace-view``.

A run is generated and correlated, its trace opened in headless Chromium. The trace_processor in
the browser must count the slices that the ledger tells, and find no error in the file.

    python -m benchmarks browser_load --events 50000000
    python -m benchmarks browser_load --ranks 512 --peers 511 --events 1046528
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine, measure, runs

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
TIMEOUT_MS = 1e3 * measure.TIMEOUT_S
COUNT = """async () => {
  const found = await app.trace.engine.query(`select
    (select count(*) from slice) as slices,
    (select count(*) from stats where severity in ('error', 'data_loss') and value > 0) as errors`);
  const row = found.firstRow({slices: 0, errors: 0});
  return [row.slices, row.errors];
}"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--events", type=int, default=2_000_000, help="operations")
    parser.add_argument("--peers", type=int, default=8, help="that each rank sends to")
    parser.add_argument("--scratch", type=Path, help="folder to work in; default: /dev/shm")
    options = parser.parse_args(arguments)
    needed = options.events * (runs.RECORD_BYTES + runs.PERFETTO_BYTES)
    with measure.scratch(options.scratch, needed) as folder:
        out = folder / "out"
        shape = {"ranks": options.ranks, "events": options.events, "peers": options.peers}
        made = measure.apart(correlated, folder, shape)
        size = (out / "trace.pftrace").stat().st_size
        print(f"browser_load; {machine.describe()}")
        load_s, draw_s, memory = opened(out, made)
    print(
        f"{made} slices and instants of {options.ranks} ranks with {options.peers} peers, "
        f"{size / 1e6:.0f} MB: "
        f"time line after {load_s:.1f} s, drawn {draw_s:.1f} s later; "
        f"browser {memory / 1e6:.0f} MB then"
    )


def correlated(folder: Path, shape: Mapping[str, int]) -> int:
    """Make a run and its trace, ``folder/out``; return the slices that the ledger tells."""
    from sigmatrace import api
    from sigmatrace.testing.synthetic import generate

    generate(folder / "run", **shape)
    counts = api.run(folder / "run", out=folder / "out").ledger["exports"]["perfetto"]
    return counts["slices"] + counts["instants"]


def opened(out: Path, slices: int) -> tuple[float, float, int]:
    """Open the trace of an output in a browser, and count its slices there.

    Returns:
        Seconds until the time line is there, from then until all tracks in sight are drawn, and
        the bytes of memory that all processes of the browser, and what drives it, then have.

    Raises:
        CountsDifferError: The browser has other slices than the ledger, or finds errors.
    """
    import psutil
    from playwright.sync_api import sync_playwright

    from sigmatrace.view.command import contents
    from sigmatrace.view.server import Server

    files, pages = contents(out)
    with Server(files) as server, sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(TIMEOUT_MS)
        begin = time.perf_counter()
        page.goto(server.url + pages[0].format(url=server.url))
        page.wait_for_function("() => !!(self.app && app.trace)")
        there = time.perf_counter()
        page.evaluate("() => waitForPerfettoIdle()")
        drawn = time.perf_counter()
        children = psutil.Process().children(recursive=True)
        memory = sum(child.memory_full_info().pss for child in children)
        found, errors = page.evaluate(COUNT)
        browser.close()
        server.shutdown()
    truth = {"slices": slices, "errors": 0}
    measure.agree("the browser", {"slices": found, "errors": errors}, truth)
    return there - begin, drawn - there, memory


if __name__ == "__main__":
    main()
