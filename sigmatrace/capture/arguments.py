"""What the parsers of the commands have in common."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from sigmatrace.errors import ConfigError


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
