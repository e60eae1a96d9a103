"""``sigmatrace-capture``: runs a command with its RDMA operations traced."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from sigmatrace.capture import environment as env
from sigmatrace.capture import options as opt
from sigmatrace.capture import process, variables
from sigmatrace.capture.layers import LAYERS, half_chosen
from sigmatrace.capture.runid import job_rank, under_launcher
from sigmatrace.capture.speak import NAME, say
from sigmatrace.errors import CaptureError, ConfigError, OutputError, SigmaTraceError

_HOOK_FILE = f"libofi_hook_{env.HOOK_NAME}-fi.so"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the command; ends the process as the traced command ended."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    flags = opt.flags(words)
    try:
        ended = _main(opt.parser().parse_args(words))
    except Exception as error:
        known = isinstance(error, SigmaTraceError)
        code = error.exit_code if isinstance(error, SigmaTraceError) else 1
        if "--print-env" in flags:  # what evaluates it must fail, too
            print(f": {shlex.quote(f'{NAME}: {error}')}; (exit {code})", flush=True)
        if "--debug" in flags or not known:
            raise
        say(str(error))
        sys.exit(code)
    if isinstance(ended, process.Ended):
        process.end_like(ended)
    sys.exit(ended)


def _main(options: argparse.Namespace) -> process.Ended | int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    settings = opt.settings(options)
    _warn(filter(None, [*variables.check(os.environ), half_chosen(settings.layers)]))
    if options.check:
        return _check(settings)
    if not command and not options.print_env:
        raise ConfigError("no command given", f"{NAME} -o DIR -- COMMAND...")
    _refuse_clock(settings.clock)
    base = dict(os.environ)
    if command:
        process.resolve(command[0], base.get("PATH", os.defpath))
    shims = _shims()
    settings = _same_run(settings, options.append)
    chosen = settings.layers
    settings = _built(settings, shims)
    changes = _compose(settings, shims, base, command)
    if options.print_env:
        _refuse_output(settings.out)  # the first traced process makes the folder
        print("\n".join(env.export_lines(changes)))
        return 0
    made = _prepare(settings.out)
    try:
        if made and under_launcher(base) and not options.output:
            say(f"the trace files of this job go to {settings.out}")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the report, silently
        begin_ns = time.time_ns()
        ended = process.run(command, {**base, **changes})
        _close(command, chosen, settings, base, ended, begin_ns)
    finally:
        if made:
            with contextlib.suppress(OSError):
                settings.out.rmdir()  # only if it is empty; who is yet to write makes it again
    return ended


def _warn(texts: Iterable[str]) -> None:
    """Warn of what concerns all ranks of a job; one of them does."""
    if job_rank(os.environ) in (None, "0"):
        for text in texts:
            say(f"warning: {text}")


def _close(
    command: Sequence[str],
    chosen: Sequence[str],
    settings: env.Settings,
    base: Mapping[str, str],
    ended: process.Ended,
    begin_ns: int,
) -> None:
    from sigmatrace.capture.closing import close  # slow to import: only now
    from sigmatrace.capture.diagnose import Attempt

    unbuilt = [layer for layer in chosen if layer not in settings.layers]
    attempt = Attempt(command, settings.layers, unbuilt, base, failed=bool(ended.text()))
    close(attempt, settings, ended, begin_ns)


def _refuse_clock(name: str) -> None:
    from sigmatrace.capture.check import clock

    verdict = clock(name)
    if not verdict.ok:
        raise ConfigError(f"--clock {verdict.text}")


def _refuse_output(folder: Path) -> None:
    from sigmatrace.capture.check import output

    verdict = output(folder)
    if not verdict.ok:
        raise OutputError(verdict.text, "choose another with -o")


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
            f"no shim was built for {', '.join(missing)}", f"see {NAME} --check for the reason"
        )
    if missing:
        say(f"warning: not built here, so not traced: {', '.join(missing)}; see {NAME} --check")
    return replace(settings, layers=tuple(x for x in settings.layers if x not in missing))


def _prepare(folder: Path) -> bool:
    """Make the output folder; return whether it was this process that made it.

    Another rank's launcher may remove it, empty as it is, at any moment.
    """
    while True:
        made = False
        try:
            folder.mkdir(parents=True)
            made = True
        except FileExistsError as error:
            if not folder.is_dir() and os.path.lexists(folder):
                raise OutputError(f"{folder} is not a folder", "choose another with -o") from error
        except OSError as error:
            raise OutputError(f"{folder}: {error.strerror}", "choose another with -o") from error
        if os.access(folder, os.W_OK | os.X_OK):
            return made
        if os.path.lexists(folder):
            raise OutputError(f"{folder} is not writable", "choose another with -o")


def _same_run(settings: env.Settings, append: bool) -> env.Settings:
    """Make sure that the folder holds one run only."""
    if not any(settings.out.glob("*.msgpack")):
        return settings
    with process.deaf_threads():
        from sigmatrace.capture.captured import first_run_id

        present = first_run_id(settings.out)
    if present is None or present == settings.run_id:
        return settings
    if append:
        return replace(settings, run_id=present)
    raise OutputError(
        f"{settings.out} already holds trace files of another run",
        "choose another folder, or --append to add to that run; commands and hosts that together"
        " are one run need the same --run-id from the first on",
    )
