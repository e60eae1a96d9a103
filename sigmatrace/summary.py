"""The closing summary: what came out, for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sigmatrace import ledger
from sigmatrace.export.amounts import initiated, layer_text
from sigmatrace.partition import Run
from sigmatrace.text import byte_text, count_text, counted

TOP = 5


def text(
    run: Run,
    book: Mapping[str, Any],
    files: Mapping[str, Sequence[Path]],
    hints: Mapping[str, str],
    out: Path,
) -> str:
    """Return the closing summary of a finished run.

    Args:
        run: All tables.
        book: The ledger.
        files: Finished files by exporter.
        hints: How to open them, by exporter.
        out: Folder of the output.
    """
    lines = [*_events(run, book), *_matching(book), *_losses(book), *_clocks(run), *_talkers(run)]
    lines.append(f"output     {out}")
    for name, made in files.items():
        lines += [f"  {path}" for path in made]
        if name in hints:
            lines.append(f"    {hints[name]}")
    lines.append(f"  {out / 'ledger.json'}")
    lines += [f"WARNING: the ledger does not balance: {x}" for x in ledger.violated(book)]
    return "\n".join(lines)


def _events(run: Run, book: Mapping[str, Any]) -> Iterator[str]:
    counts = {name: one["read"] + one["read_open"] for name, one in book["records"].items()}
    shown = {"op": "operation", "completion": "completion", "mark": "mark", "target": "target",
             "aggregate": "aggregate row"}  # fmt: skip
    parts = [counted(counts[key], word) for key, word in shown.items() if counts[key]]
    if counts["aggregate"]:
        parts[-1] += f" for {counted(book['capture']['aggregated_operations'], 'operation')}"
    processes = run.tables["processes"]
    hosts = len(set(processes.column("host").to_pylist()))
    yield (
        f"events     {', '.join(parts) or 'none'} of "
        f"{counted(processes.num_rows, 'process', 'processes')} on {counted(hosts, 'host')}"
    )


def _matching(book: Mapping[str, Any]) -> Iterator[str]:
    match = book["stages"].get("match")
    if not match:
        return
    if not match["ops"] and book["records"]["aggregate"]["found"]:
        yield "matched    nothing: mode aggregate keeps no single messages"
        return
    for what in ("sends", "receives"):
        total, good = match[what], match[f"{what}_matched"]
        share = f" ({100 * good / total:.1f} %)" if total else ""
        yield f"{what:10} {count_text(total)}, matched {count_text(good)}{share}"
        for reason, count in match[f"{what}_unmatched"].items():
            if count:
                yield f"             {count_text(count)} {reason.replace('_', ' ')}"
    backwards = book["exports"].get("perfetto", {}).get("flows_backwards", 0)
    if backwards:
        shown = count_text(backwards)
        yield f"             {shown} without an arrow: received before sent (clocks)"
    if match["one_sided"]:
        yield f"one-sided  {count_text(match['one_sided'])}"


def _losses(book: Mapping[str, Any]) -> Iterator[str]:
    found = ledger.losses(book)
    yield f"lost       {'; '.join(found) if found else 'nothing'}"


def _clocks(run: Run) -> Iterator[str]:
    if "clock_quality" not in run.tables:
        return
    calibrated = run.column("clock_quality", "calibrated")
    error = run.column("clock_quality", "error_ns")
    good = error[calibrated & np.isfinite(error)]
    limit = count_text(math.ceil(good.max(initial=0)))
    worst = f", error at most {limit} ns within a host" if good.size else ""
    yield f"clocks     {int(calibrated.sum())} of {calibrated.size} calibrated{worst}"


def _talkers(run: Run) -> Iterator[str]:
    if "traffic" not in run.tables:
        return
    rows = initiated(run)
    labels = run.tables["processes"].column("label").to_pylist()
    for layer in np.unique(rows["layer"]):
        here = {key: values[rows["layer"] == layer] for key, values in rows.items()}
        pairs, which = np.unique(
            np.stack([here["src_proc"], here["dst_proc"]]), axis=1, return_inverse=True
        )
        size_bytes, count = np.zeros((2, pairs.shape[1]), np.uint64)
        np.add.at(size_bytes, which, here["size_bytes"])
        np.add.at(count, which, here["count"])
        top = np.argsort(-size_bytes.astype(np.float64), kind="stable")[:TOP]
        for number, at in enumerate(top):
            src, dst = (labels[proc] if proc >= 0 else "unknown" for proc in pairs[:, at])
            head = f"top {layer_text(int(layer))}" if number == 0 else ""
            amount = f"{byte_text(int(size_bytes[at]))} in {counted(int(count[at]), 'operation')}"
            yield f"{head:10} {src} -> {dst}: {amount}"
