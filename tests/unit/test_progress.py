"""Progress: what cannot be said does not end the work."""

from __future__ import annotations

import errno
import io

from sigmatrace.progress import Progress, tell


def test_the_end_is_a_line() -> None:
    said = io.StringIO()
    with Progress("events", 2, said) as shown:
        shown.step()
        shown.say("something")
    first, last = said.getvalue().splitlines()
    assert first == "events: something" and last.startswith("events: 1/2 done, ")


class Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_work_goes_on_where_nothing_can_be_written() -> None:
    with Progress("events", 1, Full()) as shown:
        shown.step()
    tell(Full(), "resume: nothing\n")
