"""Runs a notebook in a fresh kernel, and writes it with its outputs and nothing of this machine.

    python scripts/notebook.py docs/notebook.ipynb [OUT]

OUT is the notebook itself if it is not given. The kernel works in a folder that goes afterwards.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run all cells in order, and return the notebook with what they gave.

    Raises:
        CellExecutionError: A cell failed.
    """
    with tempfile.TemporaryDirectory(prefix="sigmatrace-notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    notebook.metadata = nbformat.from_dict(_METADATA)
    for at, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{at}", {}
        if cell.cell_type == "code":
            # On stderr stands what depends on the machine: caches that are built the first time.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


def main(arguments: list[str]) -> int:
    """Run the notebook that is named."""
    if not 1 <= len(arguments) <= 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    notebook = nbformat.read(arguments[0], as_version=4)
    nbformat.write(executed(notebook), Path(arguments[-1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
