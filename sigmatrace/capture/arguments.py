"""What the small commands have in common: parsers, and how an end becomes an exit code."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sigmatrace.errors import ConfigError, SigmaTraceError
from sigmatrace.text import flush_stdout, print_any_letters, print_no_more

_UNREAD, _INTERRUPTED = 1, 130


def exit_code(name: str, words: Sequence[str], work: Callable[[], None]) -> int:
    """Do a command's work; say in one line what went wrong, and return the exit code.

    Args:
        name: Of the command.
        words: What follows it; with ``--debug`` among them an error has its traceback.
        work: What it does.
    """
    print_any_letters()
    try:
        work()
        flush_stdout()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        print_no_more()
        return _UNREAD
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"{name}: error: {_line(error)}", file=sys.stderr)
        if isinstance(error, SigmaTraceError):
            return error.exit_code
        print_no_more()
        return _UNREAD
    return 0


def _line(error: Exception) -> str:
    """Return what went wrong, as one line."""
    if isinstance(error, SigmaTraceError | OSError):
        return " ".join(str(error).splitlines())
    said = " ".join(f"{type(error).__name__}: {error}".splitlines())
    return f"{said} (a bug of sigmatrace; --debug shows where)"


class Parser(argparse.ArgumentParser):
    """One whose mistakes are raised, and whose texts keep their lines.

    Args:
        name: Of the command.
        usage: What follows the name.
        description: One line.
        epilog: Examples.
    """

    def __init__(self, name: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=name,
            usage=f"{name} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_debug_and_version(self) -> None:
        """Add the two options that every command has."""
        self.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        self.add_argument("--version", action=_Version, nargs=0, help="show the version, and end")

    def error(self, message: str) -> NoReturn:
        """See ``argparse``; raises a ConfigError."""
        raise ConfigError(message, f"see {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sigmatrace.version import version_text  # slow to import

        print(version_text())
        parser.exit()
