"""Where matching by number may be wrong: lossy transports, and sizes that differ at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import column
from sigmatrace.text import count_text, counted


def doubts(messages: pa.Table, lossy: NDArray[np.uint8], *, is_cut: bool = False) -> dict[str, Any]:
    """Return what the ledger says of matches that are guesses, and of those that look wrong.

    Args:
        messages: The table ``messages``.
        lossy: u1, by group: the transport may lose messages or exchange them.
        is_cut: Only a window of the run is there. Then a message without its other end tells
            nothing of a loss, and no stream counts as torn.

    Returns:
        ``lossy``: streams over such transports, their messages ``sent``, ``received`` and
        ``matched``, and the ``torn_streams``, in which a message has no other end, with those
        matched in them. ``streams_sizes_differ``: streams all of whose messages are matched, and
        of known size, but whose bytes are others at both ends.
    """
    keys = ("group", "sent", "received", "matched", "sent_bytes", "received_bytes", "size_unknown")
    group, sent, received, matched, left, right, unknown = (column(messages, key) for key in keys)
    whole = (sent == matched) & (received == matched)
    here = lossy[group] > 0
    torn = here & ~whole & (matched > 0) & (not is_cut)
    totals = {"sent": sent[here], "received": received[here], "matched": matched[here]}
    return {
        "lossy": {
            "streams": int(here.sum()),
            **{name: int(values.sum()) for name, values in totals.items()},
            "torn_streams": int(torn.sum()),
            "matched_in_torn": int(matched[torn].sum()),
        },
        "streams_sizes_differ": int((whole & (unknown == 0) & (left != right)).sum()),
    }


def lines_of(ledger: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the closing summary says of it; nothing where there is no doubt."""
    lossy, differ = ledger["lossy"], ledger["streams_sizes_differ"]
    if lossy["matched"]:
        which = f"{counted(lossy['matched'], 'message')} matched by number alone"
        yield f"uncertain  {which}: the transport may lose messages (UD, UC, dgram)"
    if lossy["torn_streams"]:
        which = f"{count_text(lossy['matched_in_torn'])} of them in"
        streams = counted(lossy["torn_streams"], "stream")
        yield f"             {which} {streams} that lost some: behind a loss they are wrong"
    if differ:
        yield f"differing  {counted(differ, 'stream')} with other sizes at the receiver's end"
