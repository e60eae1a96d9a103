"""A command of the package, called in this process: its exit code, and what it said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

Said = Callable[..., tuple[int, str, str]]


def said_by(main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> Said:
    """Return what calls a command with words, and returns its exit code, stdout and stderr.

    Of an error there is one line on stderr, and nothing without one.
    """

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert err.count("\n") == (code != 0), err
        return code, out, err

    return run
