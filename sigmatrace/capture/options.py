"""The options of ``sigmatrace-capture``."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from sigmatrace.capture import environment as env
from sigmatrace.capture.arguments import Parser
from sigmatrace.capture.layers import DEFAULT_LAYERS, GROUPS, LAYERS
from sigmatrace.capture.runid import run_id, under_launcher
from sigmatrace.capture.speak import NAME
from sigmatrace.errors import ConfigError

_EPILOG = """\
examples:
  sigmatrace-capture -o run -- mpirun -n 4 ./app       all ranks of this node into run/
  mpirun -n 4 sigmatrace-capture -o run -- ./app       the same from below mpirun, on any node
  eval "$(sigmatrace-capture -o run --print-env)"      for a batch script
"""


def _layers_text() -> str:
    groups = (f"{name} (= {','.join(members)})" for name, members in GROUPS.items())
    return ", ".join((*LAYERS, *groups))


def flags(words: Sequence[str]) -> frozenset[str]:
    """Return the words before ``--``, for what must be known even when they cannot be parsed."""
    return frozenset(words[: words.index("--") if "--" in words else None])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the words after the command's name; it raises ``ConfigError``."""
    made = Parser(
        NAME,
        "[options] -- COMMAND...",
        "Runs a command and traces the RDMA operations of all its processes.",
        _EPILOG,
    )
    _add_what_is_captured(made)
    made.add_argument("--check", action="store_true", help="say which layers work here, and end")
    made.add_argument(
        "--print-env", action="store_true", help="print the variables as shell exports, and end"
    )
    made.add_debug_and_version()
    made.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def _add_what_is_captured(parser: argparse.ArgumentParser) -> None:
    given = os.environ.get
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default=given("SIGMATRACE_OUT"),
        help="folder for the trace files (default: sigmatrace-DATE-TIME)",
    )
    parser.add_argument(
        "--mode",
        choices=env.MODES,
        default=given("SIGMATRACE_MODE") or "simple",
        help="aggregate: counters; simple: operations (default); full: completions too",
    )
    parser.add_argument(
        "--layers",
        metavar="LIST",
        default=given("SIGMATRACE_LAYERS") or None,
        help=f"some of {_layers_text()} (default: {','.join(DEFAULT_LAYERS)})",
    )
    parser.add_argument(
        "--clock",
        metavar="CLOCK",
        default=given("SIGMATRACE_CLOCK") or "realtime",
        help="clock to pair time stamps with: realtime (default), tai, /dev/ptpN",
    )
    parser.add_argument(
        "--ofi-entry",
        choices=env.ENTRIES,
        default="hook",
        help="how libfabric is reached: hook provider (default) or LD_PRELOAD",
    )
    parser.add_argument(
        "--run-id",
        metavar="ID",
        help="id of the run; give the same to commands that belong together",
    )
    parser.add_argument(
        "--append", action="store_true", help="add to the run that is in the folder already"
    )


def settings(options: argparse.Namespace) -> env.Settings:
    """Return what the options, and the variables behind them, ask for.

    Raises:
        ConfigError: A value is unknown.
    """
    if options.mode not in env.MODES:  # argparse does not check defaults
        raise ConfigError(f"unknown mode {options.mode!r}", f"choose from {', '.join(env.MODES)}")
    base = dict(os.environ)
    if options.run_id is not None:
        base["SIGMATRACE_RUN_ID"] = options.run_id
    identity = run_id(base)
    if options.output == "":
        raise ConfigError("the output folder's name is empty", "-o DIR")
    layers = DEFAULT_LAYERS
    if options.layers is not None:
        layers = env.parse_layers(options.layers)
    elif options.check:
        layers = tuple(LAYERS)
    return env.Settings(
        out=Path(options.output or _default_name(identity)).expanduser().absolute(),
        run_id=identity,
        mode=options.mode,
        layers=layers,
        clock=options.clock,
        ofi_entry=options.ofi_entry,
    )


def _default_name(identity: str) -> str:
    # The ranks of one job start at different seconds, but must agree on the name.
    if under_launcher(os.environ):
        return f"sigmatrace-{identity}"
    return time.strftime("sigmatrace-%Y%m%d-%H%M%S")
