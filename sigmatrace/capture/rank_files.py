"""Which files of a folder are to be read as a run's."""

from __future__ import annotations

from pathlib import Path

from sigmatrace.capture import header as headers
from sigmatrace.capture.view import opened
from sigmatrace.errors import RunNotFoundError
from sigmatrace.text import counted
from sigmatrace.trace_format import ITEM_MAGIC

SUFFIX, RING_SUFFIX = ".msgpack", ".ring"


def find_rank_files(folder: str | Path) -> list[Path]:
    """Return the files of a run folder that are to be indexed, by name.

    Foreign ``.msgpack`` files are among them when others are good, and so is everything of that
    name that cannot be read (links that lead nowhere, folders): their index says so.

    Raises:
        RunNotFoundError: There is no such folder, it cannot be read, or no trace file is in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise RunNotFoundError(f"run folder {folder} {what}", "give the folder of a capture")
    try:
        files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    except OSError as error:
        raise RunNotFoundError(
            f"run folder {folder} cannot be read: {error.strerror}", "give the folder of a capture"
        ) from error
    if any(_may_be_rank_file(path) for path in files):
        return files
    if not files:
        raise RunNotFoundError(
            f"no trace files (*{SUFFIX}) in {folder}",
            "nothing was recorded there; see what sigmatrace-capture said",
        )
    others = len(files) - 1
    more = f" and {counted(others, 'other')} are" if others else " is"
    raise RunNotFoundError(
        f"no trace files in {folder}: {files[0].name}{more} not of SigmaTrace's format",
        "give the folder of a capture",
    )


def _may_be_rank_file(path: Path) -> bool:
    """Return whether a file begins as a rank file, is named like one, or keeps what it is."""
    if headers.from_name(path) is not None:
        return True
    try:
        with opened(path) as data:
            return data[0 : len(ITEM_MAGIC)] == ITEM_MAGIC
    except OSError:
        return True
