"""The ledger: every record, what became of it, and equations that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from sigmatrace.capture.account import Account
from sigmatrace.export.base import Exported
from sigmatrace.schema import EVENT_NAMES

EVENT_SCHEMAS = tuple(schema.name.lower() for schema in EVENT_NAMES)
NAMED = 3
"""Files that a line names; the ledger has all."""
Numbers = Mapping[str, Any]


def build(
    account: Account,
    stages: Mapping[str, Numbers],
    exported: Mapping[str, Exported],
) -> dict[str, Any]:
    """Return the ledger as plain data.

    Args:
        account: The reader's part.
        stages: What stages say, by name. A stage's own equations are in its ``"balance"``: a
            list of ``{"name", "left", "right"}``.
        exported: What exporters made, by name.

    Returns:
        ``records`` by schema and ``capture`` (the reader's part), ``stages``, ``exports``,
        ``balance`` (named equations with both sides), ``balanced`` and ``lossless``.
    """
    exports = {name: dict(one.counts) for name, one in exported.items()}
    balance = [
        {"name": name, "left": left, "right": right, "ok": left == right}
        for name, left, right in _equations(account, stages, exports)
    ]
    plain = account.as_dict()
    return {
        "records": {name: asdict(one) for name, one in account.schemas.items()},
        "capture": {key: value for key, value in plain.items() if key != "schemas"},
        "stages": {name: dict(one) for name, one in stages.items()},
        "exports": exports,
        "balance": balance,
        "balanced": all(one["ok"] for one in balance),
        "lossless": account.is_lossless(),
    }


def read_counts(account: Account) -> dict[str, int]:
    """Return how many records of each schema were read."""
    return {name: one.read + one.read_open for name, one in account.schemas.items()}


def _equations(
    account: Account, stages: Mapping[str, Numbers], exports: Mapping[str, Numbers]
) -> Iterator[tuple[str, int, int]]:
    files = account.files
    size = sum(file.size_bytes for file in files)
    parts = sum(file.whole + file.damaged + file.cut + file.foreign for file in files)
    yield "bytes of files = whole + damaged + cut + foreign", size, parts
    for name, one in account.schemas.items():
        closed = one.read + one.damaged + one.bad_channel + one.unused
        text = f"{name}: written + surplus = read + damaged + bad_channel + unused + missing"
        yield text, one.written + one.surplus, closed + one.missing
        open_ = one.read_open + one.damaged_open + one.bad_channel_open + one.unused_open
        text = f"{name}: found in chunks = read + damaged + bad_channel + unused"
        yield text, one.found, closed + open_
    read = read_counts(account)
    yield from _of_match(stages.get("match", {}), read)
    yield from _of_traffic(stages.get("traffic", {}), account, read)
    for name, own in stages.items():
        for equation in own.get("balance", ()):
            yield f"{name}: {equation['name']}", equation["left"], equation["right"]
    for name, counts in exports.items():
        yield from _of_export(name, counts, stages, read)
    if "perfetto" in exports:
        yield from _of_perfetto(exports["perfetto"], stages.get("match", {}))


def _of_match(match: Numbers, read: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    if not match:
        return
    kinds = match["sends"] + match["receives"] + match["one_sided"] + match["not_a_message"]
    yield "match: op records = operations by kind", read["op"], kinds
    for what in ("sends", "receives"):
        unmatched = sum(match[f"{what}_unmatched"].values())
        text = f"match: {what} = matched + unmatched by reason"
        yield text, match[what], match[f"{what}_matched"] + unmatched


def _of_traffic(
    traffic: Numbers, account: Account, read: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    if not traffic:
        return
    yield "traffic: operations = op records", traffic["operations"], read["op"]
    text = "traffic: aggregated operations = those that aggregate records stand for"
    yield text, traffic["aggregated_operations"], account.aggregated_operations
    text = "traffic: aggregated bytes = those that aggregate records stand for"
    yield text, traffic["aggregated_bytes"], account.aggregated_bytes


def _of_export(
    name: str, counts: Numbers, stages: Mapping[str, Numbers], read: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    """Yield what any exporter may tell: records by schema, and what it shows of the traffic."""
    for schema in EVENT_SCHEMAS:
        parts = [
            f"{schema}_{what}" for what in ("records", "left_out") if f"{schema}_{what}" in counts
        ]
        if parts:
            text = f"{name}: {' + '.join(parts)} = {schema} records".replace("_", " ")
            yield text, sum(counts[part] for part in parts), read[schema]
    if "traffic" not in stages or "traffic_operations" not in counts:
        return
    traffic = stages["traffic"]
    operations = traffic["operations"] + traffic["aggregated_operations"]
    yield f"{name}: operations of the traffic", counts["traffic_operations"], operations
    if not traffic["byte_sums_beyond_u64"]:
        yield f"{name}: bytes of the traffic", counts["traffic_bytes"], traffic["size_bytes"]


def _of_perfetto(counts: Numbers, match: Numbers) -> Iterator[tuple[str, int, int]]:
    regions = ("regions_closed", "regions_open", "mark_instants")
    events = sum(counts[f"{schema}_records"] for schema in ("op", "completion", "request", "cqe"))
    text = (
        "perfetto: slices + instants = operations + completions + requests + cqes + regions"
        " + instants of the program"
    )
    shown = events + sum(counts[key] for key in regions)
    yield text, counts["slices"] + counts["instants"], shown
    text = "perfetto: marks = 2 closed regions + open + stray ends + instants + counters + unknown"
    ends = counts["regions_closed"] + counts["regions_stray_ends"]
    others = counts["mark_counters"] + counts["mark_unknown"]
    marks = sum(counts[key] for key in regions) + ends + others
    yield text, counts["mark_records"], marks
    text = "perfetto: counters = those of the program + of the traffic + of objects"
    parts = sum(counts[f"{what}_counters"] for what in ("mark", "traffic", "object"))
    yield text, counts["counters"], parts
    if match:
        text = "perfetto: matched = flows + receives before their sends"
        flows = counts["flows"] + counts["flows_backwards"]
        yield text, match["sends_matched"], flows


def losses(ledger: Numbers) -> list[str]:
    """Return what was lost, damaged or left out, one phrase each; empty if nothing was."""
    capture = ledger["capture"]
    found = [*_ends(capture)]
    sizes = capture["bytes"]
    for kind in ("damaged", "cut", "foreign"):
        if sizes[kind]:
            found.append(f"{sizes[kind]} bytes {kind}")
    for name, one in ledger["records"].items():
        for kind in ("dropped", "missing", "surplus", "bad_channel", "damaged"):
            count = one[kind] + one.get(f"{kind}_open", 0)
            if count:
                found.append(f"{count} {name} records {kind.replace('_', ' ')}")
        if one["gap_chunks"]:
            found.append(f"{one['gap_chunks']} {name} chunks missing in the numbering")
    for kind in ("lost_at_capture", "unknown"):
        for reason, count in capture[kind].items():
            what = "lost at capture" if kind == "lost_at_capture" else "not understood"
            found.append(f"{count} {what} ({reason})")
    if capture["unknown_channel"]:
        found.append(f"{capture['unknown_channel']} records of unknown channels")
    return found


def _ends(capture: Numbers) -> Iterator[str]:
    """Yield a phrase for files without an end item, and for each that ended before its time."""
    paths = capture["open_files"]
    if paths:
        few = ", ".join(path.rpartition("/")[2] for path in paths[:NAMED])
        more = f", and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
        why = "killed, replaced by exec, cut, or still running"
        yield f"{len(paths)} files without an end item: {why} ({few}{more})"
    for path, reason in capture["stopped_files"].items():
        yield f"recording stopped early in {path.rpartition('/')[2]} ({reason})"


def violated(ledger: Numbers) -> list[str]:
    """Return the equations that do not hold, with both sides."""
    return [
        f"{one['name']}: {one['left']} is not {one['right']}"
        for one in ledger["balance"]
        if not one["ok"]
    ]
