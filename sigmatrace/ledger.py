"""The ledger: every record, what became of it, and equations that say so.

The reader's equations are here. Stages and exporters bring their own (``stages/base.py``,
``export/base.py``), and refer to numbers that others have counted by their place in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sigmatrace.capture.account import Account
from sigmatrace.errors import PipelineError
from sigmatrace.export.base import Exported
from sigmatrace.schema import EVENT_NAMES
from sigmatrace.text import count_text, counted

EVENT_SCHEMAS = tuple(schema.name.lower() for schema in EVENT_NAMES)
_PARTS = ("read", "damaged", "bad_channel", "unused", "outside", "not_read")
"""What can become of a record that is in a file."""
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
        stages: What stages say, by name; ``"balance"`` holds their equations.
        exported: What exporters made, by name, with their equations.

    Returns:
        ``records`` by schema and ``capture`` (the reader's part), ``stages``, ``exports``,
        ``balance`` (named equations with both sides), ``balanced`` and ``lossless``.

    Raises:
        PipelineError: An equation refers to a number that the ledger does not have.
    """
    plain = account.as_dict()
    book: dict[str, Any] = {
        "records": plain.pop("schemas"),
        "capture": plain,
        "stages": {
            name: {key: value for key, value in one.items() if key != "balance"}
            for name, one in stages.items()
        },
        "exports": {name: dict(one.counts) for name, one in exported.items()},
    }
    balance = [_judge(*one) for one in _of_reader(account)]
    for name, numbers in stages.items():
        balance += _judge_own(name, numbers.get("balance", ()), book)
    for name, one in exported.items():
        balance += _judge_own(name, [*_records(one.counts), *one.balance], book)
    return {
        **book,
        "balance": balance,
        "balanced": all(one["ok"] for one in balance),
        "lossless": account.is_lossless(),
    }


def _of_reader(account: Account) -> Iterator[tuple[str, int, int]]:
    """Yield the reader's own equations."""
    files = account.files
    size = sum(file.size_bytes for file in files)
    parts = sum(file.whole + file.damaged + file.cut + file.foreign for file in files)
    yield "bytes of files = whole + damaged + cut + foreign", size, parts
    for name, one in account.schemas.items():
        closed, open_ = (
            sum(getattr(one, part + what) for part in _PARTS) for what in ("", "_open")
        )
        parts_text = " + ".join(_PARTS)
        text = f"{name}: written + recovered + surplus = {parts_text} + missing"
        yield text, one.written + one.recovered + one.surplus, closed + one.missing
        yield f"{name}: found in chunks = {parts_text}", one.found, closed + open_


def _records(counts: Numbers) -> Iterator[dict[str, Any]]:
    """Yield what any exporter may tell by its counts alone: records by schema."""
    for schema in EVENT_SCHEMAS:
        parts = [
            f"{schema}_{what}" for what in ("records", "left_out") if f"{schema}_{what}" in counts
        ]
        if parts:
            text = f"{' + '.join(parts)} = {schema} records".replace("_", " ")
            left = sum(counts[part] for part in parts)
            yield {"name": text, "left": left, "right": f"records.{schema}"}


def _judge(name: str, left: int, right: int) -> dict[str, Any]:
    return {"name": name, "left": left, "right": right, "ok": left == right}


def _judge_own(owner: str, equations: Iterable[Numbers], book: Numbers) -> Iterator[dict[str, Any]]:
    """Yield the equations of a stage or exporter, with what the ledger's numbers are."""
    for equation in equations:
        try:
            sides = [_value(equation[side], book) for side in ("left", "right")]
        except LookupError as error:
            raise PipelineError(
                f"{owner}: its equation {equation.get('name')!r} refers to {error.args[0]!r}",
                "the ledger has no such number",
            ) from error
        if None not in sides:
            yield _judge(f"{owner}: {equation['name']}", *sides)


def _value(side: Any, book: Numbers) -> Any:
    """Return the number that a side of an equation stands for; None if its stage did not run."""
    if isinstance(side, str):
        first, *path = side.split(".")
        if first == "stages" and path and path[0] not in book["stages"]:
            return None
        found = book.get(first)
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if first == "records" and len(path) == 1 and isinstance(found, Mapping):
            found = found["read"] + found["read_open"]
        if not isinstance(found, int):
            raise LookupError(side)
        return found
    if isinstance(side, Sequence):
        terms = [_value(term, book) for term in side]
        return None if None in terms else sum(terms)
    return side


def losses(ledger: Numbers) -> list[str]:
    """Return what was lost, damaged or left out, one phrase each; empty if nothing was."""
    capture = ledger["capture"]
    found = [*_ends(capture)]
    for kind in ("damaged", "cut", "foreign"):
        if capture["bytes"][kind]:
            where = _named([file["path"] for file in capture["files"] if file[kind]])
            found.append(f"{counted(capture['bytes'][kind], 'byte')} {kind} ({where})")
    for name, one in ledger["records"].items():
        for kind in ("dropped", "missing", "surplus", "bad_channel", "damaged"):
            count = one[kind] + one.get(f"{kind}_open", 0)
            if count:
                found.append(f"{counted(count, f'{name} record')} {kind.replace('_', ' ')}")
        if one["gap_chunks"]:
            what = counted(one["gap_chunks"], f"{name} chunk")
            found.append(f"{what} missing in the numbering")
    for kind in ("lost_at_capture", "unknown"):
        for reason, count in capture[kind].items():
            what = "lost at capture" if kind == "lost_at_capture" else "not understood"
            found.append(f"{count_text(count)} {what} ({reason})")
    if capture["unknown_channel"]:
        found.append(f"{counted(capture['unknown_channel'], 'record')} of unknown channels")
    return found


def lacks(ledger: Numbers, schemas: Iterable[str]) -> bool:
    """Return whether records of some schemas were lost, wherever."""
    kinds = ("dropped", "missing", "damaged", "damaged_open", "bad_channel", "gap_chunks")
    return any(ledger["records"][name].get(kind, 0) for name in schemas for kind in kinds)


def is_torn(ledger: Numbers) -> bool:
    """Return whether parts of files are missing: what they told of objects and peers, too."""
    capture = ledger["capture"]
    sizes = capture["bytes"]
    files = ("unreadable_files", "empty_files", "open_files")
    return bool(sizes["damaged"] + sizes["cut"] + sum(len(capture[kind]) for kind in files))


def _ends(capture: Numbers) -> Iterator[str]:
    """Yield a phrase for files without anything, or an end, and for each that ended too early."""
    if unread := capture["unreadable_files"]:
        names = [f"{path.rpartition('/')[2]}: {why}" for path, why in unread.items()]
        yield f"{counted(len(unread), 'file')} could not be read ({_few(names)})"
    if empty := capture["empty_files"]:
        yield f"{counted(len(empty), 'file')} of 0 bytes, nothing was written ({_named(empty)})"
    if paths := capture["open_files"]:
        what = counted(len(paths), "file")
        why = "killed, replaced by exec, cut, or still running"
        yield f"{what} without an end item: {why} ({_named(paths)})"
    for path, reason in capture["stopped_files"].items():
        yield f"recording stopped early in {path.rpartition('/')[2]} ({reason})"


def _named(paths: Sequence[str]) -> str:
    """Return the names of the first few files, and how many more there are."""
    return _few([path.rpartition("/")[2] for path in paths])


def _few(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    few = ", ".join(names[:NAMED])
    return few + (f", and {len(names) - NAMED} more" if len(names) > NAMED else "")


def violated(ledger: Numbers) -> list[str]:
    """Return the equations that do not hold, with both sides."""
    return [
        f"{one['name']}: {one['left']} is not {one['right']}"
        for one in ledger["balance"]
        if not one["ok"]
    ]
