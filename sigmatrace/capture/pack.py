"""``sigmatrace-pack``: makes the files of a run smaller, without loss, and back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sigmatrace import alone
from sigmatrace.capture.arguments import Parser, exit_code
from sigmatrace.errors import OutputError

NAME = "sigmatrace-pack"
_PACKED, _UNPACKED = "-packed", "-unpacked"
_EPILOG = """\
A packed run is read like the original one, with the same results. Damaged bytes are kept as they
are; the ring files of killed processes are copied. A run that is still recorded is refused.

exit codes: 0 done, 1 own bug, 2 option, 3 no run, 4 unknown version, 6 output, 130 interrupted
"""


def process() -> NoReturn:
    """Run the command as all that this process does."""
    alone.run(main)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(NAME, words, lambda: _run(parser().parse_args(words)))


def _run(options: argparse.Namespace) -> None:
    from sigmatrace import kernel_cache

    kernel_cache.use_writable_cache()
    from sigmatrace.capture import packing  # slow to import

    run: Path = options.run
    place: Path = options.output or _default(run, unpack=options.unpack)
    if options.in_place:
        place, done = run, packing.in_place(run, unpack=options.unpack)
    else:
        done = packing.beside(run, place, unpack=options.unpack)
    print(packing.summary(done, unpack=options.unpack, place=place))


def _default(run: Path, *, unpack: bool) -> Path:
    """Return where the new run goes if nothing is said: beside the old one."""
    here, end = str(run.resolve()), _UNPACKED if unpack else _PACKED
    if here.endswith(end):
        raise OutputError(
            f"{run} is already {end.removeprefix('-')}, by its name",
            "-o DIR makes another copy, --in-place replaces its files",
        )
    return Path(here.removesuffix(_PACKED) + end)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the words after the command's name; it raises ``ConfigError``."""
    made = Parser(
        NAME,
        "RUN [-o OUT | --in-place] [--unpack]",
        "Makes the trace files of a run smaller, without loss.",
        _EPILOG,
    )
    made.add_argument("run", metavar="RUN", type=Path, help="folder of the trace files")
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help=f"new folder for the packed run (default: RUN{_PACKED}, or RUN{_UNPACKED})",
    )
    where.add_argument("--in-place", action="store_true", help="replace the files of RUN")
    made.add_argument("--unpack", action="store_true", help="make the original files again")
    made.add_debug_and_version()
    return made


if __name__ == "__main__":
    process()
