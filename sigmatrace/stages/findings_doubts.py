"""Findings on what failed, and on what is not to be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from sigmatrace.clock_doubts import untimed_pairs, untimed_text
from sigmatrace.partition import column
from sigmatrace.stages.findings_seen import Find, Finding, Seen
from sigmatrace.text import count_text, counted

BROKEN = 1.0
"""Weight of errors: what failed comes before what was slow."""


def errors(seen: Seen) -> Iterator[Finding]:
    """What failed."""
    table = seen.run.tables["errors"]
    for kind in sorted(set(table["kind"].to_pylist())):
        rows = [row for row in table.to_pylist() if row["kind"] == kind]
        most = max(rows, key=lambda row: row["count"])
        total = sum(row["count"] for row in rows)
        how = "" if kind.startswith("failed") else " with an error"
        status = f" with status {most['status']}" if most["status"] else ""
        yield Finding(
            BROKEN,
            "errors",
            f"{counted(total, f'{kind}{how}', f'{kind}s{how}')}, most in "
            f"{seen.labels[most['proc']]} ({count_text(most['count'])}{status})",
            f"errors where kind = '{kind}'",
            is_share=False,
        )


def sent_again(seen: Seen) -> Iterator[Finding]:
    """Packets that were sent again, where a packet capture tells."""
    flows = seen.run.tables.get("wire_flows")
    repeated = int(column(flows, "repeated").sum()) if flows is not None else 0
    if flows is not None and repeated:
        which = int((column(flows, "repeated") > 0).sum())
        yield Finding(
            BROKEN,
            "sent again",
            f"{counted(repeated, 'packet')} sent again, in {counted(which, 'flow')} of the capture",
            "wire_flows where repeated > 0",
            is_share=False,
        )


def doubtful(seen: Seen) -> Iterator[Finding]:
    """Messages whose times, or order, are not to be trusted."""
    counts = [seen.column("message_latency", name) for name in ("messages", "backwards")]
    messages = max(sum(int(one.sum()) for one in counts), 1)
    for name, kind, text in (
        ("backwards", "clocks", "were received before they were sent: clocks of hosts disagree"),
        ("uncertain", "order", "have no certain order: which receive is theirs may be wrong"),
    ):
        count = int(seen.column("message_latency", name).sum())
        which = f"{count_text(count)} of {counted(messages, 'message')}"
        evidence = f"message_latency where {name} > 0"
        yield Finding(count / messages, kind, f"{which} {text}", evidence)


def uncertain_latencies(seen: Seen) -> Iterator[Finding]:
    """Pairs of hosts whose clocks may be off by more than messages between them take."""
    untimed = untimed_pairs(seen.run)
    messages = seen.column("message_latency", "messages")
    if count := int(messages[untimed].sum()):
        share = count / int(messages.sum())
        yield Finding(share, "clocks", untimed_text(seen.run, untimed), "clock_quality")


def uncertain_barriers(seen: Seen) -> Iterator[Finding]:
    """Barriers at which clocks do not tell who came last."""
    uncertain = seen.column("barriers", "uncertain")
    if count := int(uncertain.sum()):
        which = f"{count_text(count)} of {counted(uncertain.size, 'barrier')}"
        yield Finding(
            count / uncertain.size,
            "clocks",
            f"clocks of hosts may be off by as much as {which} lasted from first to last arrival: "
            "who came last there, and how long others waited, is not sure",
            "barriers where uncertain",
        )


ALL: tuple[Find, ...] = (*(errors, sent_again, doubtful, uncertain_latencies, uncertain_barriers),)
"""All of them."""
