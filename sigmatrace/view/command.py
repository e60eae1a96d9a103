"""``sigmatrace-view``: shows a trace or a report in a browser, without a network."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sigmatrace import left_out, perfetto_wheel
from sigmatrace.capture.arguments import Parser, exit_code
from sigmatrace.errors import ChunkFormatError, ConfigError, RunNotFoundError
from sigmatrace.layout import OUTPUT, REPORT, TRACE, lacking
from sigmatrace.view.server import LOOPBACK, Server

NAME = "sigmatrace-view"
_TRACE_BEGINS = (b"\n", b"\x1f\x8b")
"""The first packet of a trace; of one that was compressed by gzip, which Perfetto opens, too."""
_SHOWN = f"name a {TRACE}, a {REPORT}, or an output of the pipeline"
_EPILOG = """\
PLACE is a trace (.pftrace), a report (.html), an output of the pipeline that has one of them, or a
run with such an output. Nothing but it and the user interface itself is served, to this machine
alone. Ctrl-C ends it.

exit codes: 0 done, 1 own bug, 2 option, 3 no trace or report, 4 the file is neither, 12 a package
is not installed, 143 terminated
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            _run(parser().parse_args(words))

    return exit_code(NAME, words, work)


def parser() -> Parser:
    """Return the parser of the words after the command's name; it raises ``ConfigError``."""
    made = Parser(
        NAME,
        "PLACE [--port N] [--open]",
        "Shows a trace in Perfetto's user interface, or a report, without a network.",
        _EPILOG,
    )
    made.add_argument("place", metavar="PLACE", type=Path, help="trace, report, output or run")
    made.add_argument("--port", metavar="N", type=_port, default=0, help="default: a free one")
    made.add_argument("--open", action="store_true", help="open a browser")
    made.add_debug_and_version()
    return made


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text}: ports are 0 to 65535")
    return int(text)


def _run(options: argparse.Namespace) -> None:
    files, pages = contents(options.place)
    try:
        server = Server(files, options.port)
    except OSError as error:
        hint = "choose another one by --port, or none for a free one"
        raise ConfigError(f"port {options.port}: {error.strerror}", hint) from None
    trace = files.get(f"/{TRACE}")
    for text in left_out.attention(trace) if trace else ():
        print(f"{NAME}: attention: {text}", file=sys.stderr)
    with server:
        urls = [server.url + page.format(url=server.url) for page in pages]
        port = server.server_port
        print(*urls, sep="\n")
        print(
            "from a laptop, with the same address there: "
            f"ssh -L {port}:{LOOPBACK}:{port} {_user_at()}{socket.gethostname()}"
        )
        print("Ctrl-C ends it", flush=True)
        if options.open and not webbrowser.open(urls[0]):
            print(f"{NAME}: no browser could be opened here", file=sys.stderr)
        server.serve_forever()


def _user_at() -> str:
    """Return ``NAME@`` of the user; nothing where a number is all that is known (containers)."""
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):
        return ""


def contents(place: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the files to be served by the path of their URL, and the pages to look at.

    In a page ``{url}`` stands for the address of the server.

    Raises:
        RunNotFoundError: There is neither a trace nor a report.
        ChunkFormatError: What is named as a trace is none.
        MissingPackageError: The package with the user interface is not installed.
    """
    files: dict[str, Path] = {}
    pages = []
    trace, report = _found(place)
    if trace is not None:
        _check(trace)
        root = perfetto_wheel.web_folder()
        inside = (path for path in root.rglob("*") if path.is_file())
        files = {f"/{path.relative_to(root).as_posix()}": path for path in inside}
        files |= {"/": root / "index.html", f"/{TRACE}": trace}
        pages.append(f"/#!/?url={{url}}/{TRACE}")
    if report is not None:
        files[f"/{REPORT}"] = report
        pages.append(f"/{REPORT}")
    return files, pages


def _check(trace: Path) -> None:
    """Refuse what does not begin as a trace does: whoever opens the page would wait for nothing."""
    with trace.open("rb") as file:
        if not file.read(2).startswith(_TRACE_BEGINS):
            raise ChunkFormatError(f"{trace}: neither a trace of Perfetto nor HTML", _SHOWN)


def _found(place: Path) -> tuple[Path | None, Path | None]:
    """Return the trace and the report that are meant."""
    if place.is_file():
        return (None, place) if place.suffix == ".html" else (place, None)
    if not place.exists():
        raise RunNotFoundError(f"{place}: no such file", f"name a trace, see {NAME} --help")
    for folder in (place, place / OUTPUT):
        trace, report = folder / TRACE, folder / REPORT
        if trace.is_file() or report.is_file():
            return trace if trace.is_file() else None, report if report.is_file() else None
    raise lacking(place, f"{TRACE} and no {REPORT}")
