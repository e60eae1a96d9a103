"""``sigmatrace-capture``: runs a command with its RDMA operations traced."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from sigmatrace.capture import environment as env
from sigmatrace.capture import process
from sigmatrace.capture.layers import DEFAULT_LAYERS, GROUPS, LAYERS
from sigmatrace.capture.runid import job_rank, run_id, under_launcher
from sigmatrace.errors import CaptureError, ConfigError, OutputError, SigmaTraceError

_NAME = "sigmatrace-capture"
_HOOK_FILE = f"libofi_hook_{env.HOOK_NAME}-fi.so"
_EPILOG = """\
examples:
  sigmatrace-capture -o run -- mpirun -n 4 ./app       all ranks of this node into run/
  mpirun -n 4 sigmatrace-capture -o run -- ./app       the same from below mpirun, on any node
  eval "$(sigmatrace-capture -o run --print-env)"      for a batch script
"""


def _layers_text() -> str:
    groups = (f"{name} (= {','.join(members)})" for name, members in GROUPS.items())
    return ", ".join((*LAYERS, *groups))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, f"see {_NAME} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_NAME,
        usage=f"{_NAME} [options] -- COMMAND...",
        description="Runs a command and traces the RDMA operations of all its processes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
        default=given("SIGMATRACE_LAYERS") or ",".join(DEFAULT_LAYERS),
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
    parser.add_argument("--check", action="store_true", help="say which layers work here, and end")
    parser.add_argument(
        "--print-env", action="store_true", help="print the variables as shell exports, and end"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the command; ends the process as the traced command ended."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words[: words.index("--") if "--" in words else None]
    try:
        ended = _main(_parser().parse_args(words))
    except SigmaTraceError as error:
        if debug:
            raise
        _say(str(error))
        sys.exit(error.exit_code)
    if isinstance(ended, process.Ended):
        process.end_like(ended)
    sys.exit(ended)


def _main(options: argparse.Namespace) -> process.Ended | int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    settings = _settings(options)
    if options.check:
        return _check(settings)
    if not command and not options.print_env:
        raise ConfigError("no command given", f"{_NAME} -o DIR -- COMMAND...")
    base = dict(os.environ)
    if command:
        process.resolve(command[0], base.get("PATH", os.defpath))
    shims = _shims()
    made = _prepare(settings.out)
    settings = _same_run(settings, options.append)
    settings = _built(settings, shims)
    changes = _compose(settings, shims, base, command)
    if options.print_env:
        print("\n".join(env.export_lines(changes)))
        return 0
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the report, silently
    begin_ns = time.time_ns()
    ended = process.run(command, {**base, **changes})
    _report(command, settings, base, ended, begin_ns)
    if made and not under_launcher(base):  # else another rank may be about to write
        with contextlib.suppress(OSError):
            settings.out.rmdir()  # only if it is empty
    return ended


def _settings(options: argparse.Namespace) -> env.Settings:
    if options.mode not in env.MODES:  # argparse does not check defaults
        raise ConfigError(f"unknown mode {options.mode!r}", f"choose from {', '.join(env.MODES)}")
    base = dict(os.environ)
    if options.run_id is not None:
        base["SIGMATRACE_RUN_ID"] = options.run_id
    identity = run_id(base)
    if options.output == "":
        raise ConfigError("the output folder's name is empty", "-o DIR")
    return env.Settings(
        out=Path(options.output or _default_name(identity)).expanduser().absolute(),
        run_id=identity,
        mode=options.mode,
        layers=env.parse_layers(options.layers),
        clock=options.clock,
        ofi_entry=options.ofi_entry,
    )


def _default_name(identity: str) -> str:
    # The ranks of one job start at different seconds, but must agree on the name.
    if under_launcher(os.environ):
        return f"sigmatrace-{identity}"
    return time.strftime("sigmatrace-%Y%m%d-%H%M%S")


def _shims() -> env.Shims:
    shims = installed_shims()
    if shims is None:
        raise CaptureError(
            "the native libraries are not built", "run `make native`, or install again"
        )
    return shims


def installed_shims() -> env.Shims | None:
    """Return the native libraries of this installation; None when the core is missing."""
    from sigmatrace.capture.libs import library, library_dir

    def built(name: str) -> Path | None:
        try:
            return library(name)
        except CaptureError:
            return None

    core = built("core")
    if core is None:
        return None
    hook = library_dir() / "prov" / _HOOK_FILE
    return env.Shims(
        core,
        preload={info.shim: path for info in LAYERS.values() if (path := built(info.shim))},
        ofi_hook=hook.resolve() if hook.is_file() else None,
    )


def _check(settings: env.Settings) -> int:
    from sigmatrace.capture.check import check

    lines, works = check(settings, installed_shims(), os.environ)
    print("\n".join(lines))
    return 0 if works else CaptureError.exit_code


def _compose(
    settings: env.Settings, shims: env.Shims, base: Mapping[str, str], command: Sequence[str]
) -> dict[str, str]:
    folders: list[Path] = []
    if "ofi" in settings.layers and settings.ofi_entry == "hook":
        from sigmatrace.capture.libraries import provider_dirs

        program = process.resolve(command[0], base.get("PATH", os.defpath)) if command else ""
        folders = provider_dirs(base, program)
    return env.compose(settings, shims, base, folders)


def _built(settings: env.Settings, shims: env.Shims) -> env.Settings:
    """Leave out the layers that this installation has no shim for, and say so."""
    missing = env.missing_layers(settings, shims)
    if len(missing) == len(settings.layers):
        raise CaptureError(
            f"no shim was built for {', '.join(missing)}", f"see {_NAME} --check for the reason"
        )
    if missing:
        _say(f"warning: not built here, so not traced: {', '.join(missing)}; see {_NAME} --check")
    return replace(settings, layers=tuple(x for x in settings.layers if x not in missing))


def _prepare(folder: Path) -> bool:
    """Make the output folder; return whether it was not there before."""
    existed = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"{folder} is not a folder", "choose another with -o") from error
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}", "choose another with -o") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder} is not writable", "choose another with -o")
    return not existed


def _same_run(settings: env.Settings, append: bool) -> env.Settings:
    """Make sure that the folder holds one run only."""
    if not any(settings.out.glob("*.msgpack")):
        return settings
    from sigmatrace.capture.captured import first_run_id

    present = first_run_id(settings.out)
    if present is None or present == settings.run_id:
        return settings
    if append:
        return replace(settings, run_id=present)
    raise OutputError(
        f"{settings.out} already holds trace files of another run",
        "choose another folder, or --append to add to that run",
    )


def _report(
    command: Sequence[str],
    settings: env.Settings,
    base: Mapping[str, str],
    ended: process.Ended,
    begin_ns: int,
) -> None:
    from sigmatrace.capture import captured, diagnose, report

    one_rank = under_launcher(base)
    found = captured.read(settings.out, settings.run_id, begin_ns)
    if one_rank:
        found = report.descendants(found, socket.gethostname(), ended.pid)
    if ended.text():
        _say(f"{Path(command[0]).name} {ended.text()}")
    if not found:
        reasons = diagnose.nothing_hooked(command, settings.layers, base)
        _warn("nothing was hooked", ended, reasons, base)
        return
    shown = report.lines(found, _as_written(settings.out))
    _say("\n".join(shown[:-1] if one_rank else shown))
    if not any(one.moves_data for one in found):
        ranks = any(one.rank >= 0 for one in found)
        reasons = diagnose.nothing_recorded(command, settings.layers, base, ranks)
        _warn("no operation that moves data was recorded", ended, reasons, base)


def _warn(what: str, ended: process.Ended, reasons: Sequence[str], base: Mapping[str, str]) -> None:
    """Write a warning with its likely reasons; of a job's ranks only the first gives them."""
    if ended.text():
        reasons = ["the command failed, perhaps before it communicated", *reasons]
    _say("\n".join([f"warning: {what}", *(reasons if job_rank(base) in (None, "0") else [])]))


def _as_written(folder: Path) -> Path:
    """Return the short way to a folder below the current one."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _say(text: str) -> None:
    """Write lines to stderr in one piece, so that those of other ranks do not mix in."""
    lines = [f"{_NAME}: {line}\n" for line in text.splitlines()]
    with contextlib.suppress(OSError):  # nobody reads it; the exit status still counts
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
