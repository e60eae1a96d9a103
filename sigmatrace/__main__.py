"""``sigmatrace-pipeline`` and ``python -m sigmatrace``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process and return the exit code.

    Help and version are answered before anything heavy is imported.
    """
    words = sys.argv[1:]
    if not words or "--help" in words or "-h" in words:
        from sigmatrace.usage import TEXT

        print(TEXT, end="")
        return 0 if words else 2
    if "--version" in words:
        from sigmatrace.version import version_text

        print(version_text())
        return 0
    from sigmatrace import cli

    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
