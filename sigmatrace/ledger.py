"""The ledger: every record, what became of it, and equations that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from sigmatrace.capture.account import Account
from sigmatrace.export.base import Exported
from sigmatrace.text import count_text, counted

EVENT_SCHEMAS = ("op", "completion", "mark", "target", "aggregate")
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
        found = one.read + one.damaged + one.bad_channel + one.missing
        text = f"{name}: written + surplus = read + damaged + bad_channel + missing"
        yield text, one.written + one.surplus, found
    read = read_counts(account)
    yield from _of_match(stages.get("match", {}), read)
    if "operations" in stages.get("traffic", {}):
        yield "traffic: operations = op records", stages["traffic"]["operations"], read["op"]
    for name, own in stages.items():
        for equation in own.get("balance", ()):
            yield f"{name}: {equation['name']}", equation["left"], equation["right"]
    for name, counts in exports.items():
        for schema in EVENT_SCHEMAS:
            if f"{schema}_records" in counts:
                yield f"{name}: {schema} records", counts[f"{schema}_records"], read[schema]


def _of_match(match: Numbers, read: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    if not match:
        return
    kinds = match["sends"] + match["receives"] + match["one_sided"] + match["not_a_message"]
    yield "match: op records = operations by kind", read["op"], kinds
    for what in ("sends", "receives"):
        unmatched = sum(match[f"{what}_unmatched"].values())
        text = f"match: {what} = matched + unmatched by reason"
        yield text, match[what], match[f"{what}_matched"] + unmatched


def losses(ledger: Numbers) -> list[str]:
    """Return what was lost, damaged or left out, one phrase each; empty if nothing was."""
    found = []
    sizes = ledger["capture"]["bytes"]
    for kind in ("damaged", "cut", "foreign"):
        if sizes[kind]:
            found.append(f"{counted(sizes[kind], 'byte')} {kind}")
    for name, one in ledger["records"].items():
        for kind in ("dropped", "missing", "surplus", "bad_channel"):
            if one[kind]:
                found.append(f"{counted(one[kind], f'{name} record')} {kind.replace('_', ' ')}")
        damaged = one["damaged"] + one["damaged_open"]
        if damaged:
            found.append(f"{counted(damaged, f'{name} record')} damaged")
    for kind in ("lost_at_capture", "unknown"):
        for reason, count in ledger["capture"][kind].items():
            what = "lost at capture" if kind == "lost_at_capture" else "not understood"
            found.append(f"{count_text(count)} {what} ({reason})")
    unknown = ledger["capture"]["unknown_channel"]
    if unknown:
        found.append(f"{counted(unknown, 'record')} of unknown channels")
    return found


def violated(ledger: Numbers) -> list[str]:
    """Return the equations that do not hold, with both sides."""
    return [
        f"{one['name']}: {one['left']} is not {one['right']}"
        for one in ledger["balance"]
        if not one["ok"]
    ]
