"""The notebook of docs/ runs in a fresh kernel, and gives what is stored in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "notebook.ipynb"
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(STORED, as_version=4)


def outputs(cell) -> list[dict]:
    """What a cell gave, as text; of a picture its kind alone, as its bytes depend on fonts."""
    found = []
    for one in cell.get("outputs", []):
        data = {
            kind: text if "image" not in kind else "" for kind, text in one.get("data", {}).items()
        }
        found.append({"type": one.output_type, "text": one.get("text"), "data": data})
    return found


def test_it_gives_what_is_stored(stored, tmp_path):
    command = [sys.executable, ROOT / "scripts" / "notebook.py", STORED, tmp_path / "again.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    again = nbformat.read(tmp_path / "again.ipynb", as_version=4)
    assert [cell.source for cell in again.cells] == [cell.source for cell in stored.cells]
    for before, after in zip(stored.cells, again.cells, strict=True):
        assert outputs(after) == outputs(before), before.source
    assert again.metadata == stored.metadata


def test_it_is_small_and_tells_nothing_of_the_machine_that_ran_it(stored):
    text = STORED.read_text()
    assert len(text) < 300_000
    assert not re.search(r"/(tmp|home|root|work|usr)/", text)
    assert set(stored.metadata) == {"kernelspec", "language_info"}
    assert stored.metadata.kernelspec.name == "python3"
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [one for cell in code for one in cell.outputs if one.output_type == "error"]
    assert any("image/png" in one.get("data", {}) for cell in code for one in cell.outputs)


def test_its_links_lead_somewhere(stored):
    links = [link for cell in stored.cells for link in LINK.findall(cell.source)]
    assert links
    for link in links:
        page, _, anchor = link.partition("#")
        headings = re.findall(r"^#+ (.+)$", (STORED.parent / page).read_text(), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings], link
