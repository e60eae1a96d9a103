"""The kinds of comparisons: which amounts, in which unit, and what a key of theirs is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sigmatrace.diff.amounts import (
    CLASS,
    END,
    LAYER,
    NAME,
    NO_LAYER,
    OP,
    ORDINAL,
    UNKNOWN_SIZE,
    Amounts,
    Reader,
)
from sigmatrace.diff.identity import Names, unpacked
from sigmatrace.text import byte_text
from sigmatrace.trace_format import Op, layer_text

Named = tuple[str, str]
"""Layer ("": of none) and name ("": the whole run)."""


@dataclass(frozen=True)
class Measure:
    """One amount.

    Attributes:
        name: As a reader calls it, and in CSV and JSON.
        title: In words.
        unit: "ns", "bytes", "bytes/s", or "" for counts.
        is_sum: Whether a run that does not have a key has 0 of it.
        worse: 1: more of it is worse, -1: less of it is, 0: neither.
    """

    name: str
    title: str
    unit: str = ""
    is_sum: bool = True
    worse: int = 0


@dataclass(frozen=True)
class Kind:
    """Comparisons that are judged together.

    Attributes:
        name: In CSV and JSON.
        title: In words.
        read: Reads the amounts of a run.
        named: Returns layer and name of a key.
        measures: The amounts.
    """

    name: str
    title: str
    read: Callable[[Reader], Amounts]
    named: Callable[[int, Names], Named]
    measures: tuple[Measure, ...]


def _of_layer(key: int, _: Names) -> Named:
    return _layer(key), ""


def _of_operation(key: int, _: Names) -> Named:
    layer, op = unpacked(key, LAYER, OP)
    return _layer(layer), _op(op)


def _of_size(key: int, _: Names) -> Named:
    layer, op, bits = unpacked(key, LAYER, OP, CLASS)
    if bits == UNKNOWN_SIZE:
        return _layer(layer), f"{_op(op)} of unknown size"
    if bits < 2:  # one size alone
        return _layer(layer), f"{_op(op)} of {byte_text(bits)}"
    sizes = f"{byte_text(1 << bits - 1)} to below {byte_text(1 << bits)}"
    return _layer(layer), f"{_op(op)} of {sizes}"


def _of_process(key: int, names: Names) -> Named:
    layer, end = unpacked(key, LAYER, END)
    return _layer(layer), _end(end, names)


def _of_pair(key: int, names: Names) -> Named:
    layer, src, dst = unpacked(key, LAYER, END, END)
    return _layer(layer), f"{_end(src, names)} -> {_end(dst, names)}"


def _of_queue_pair(key: int, names: Names) -> Named:
    pair, ordinal = key >> ORDINAL, key & (1 << ORDINAL) - 1
    layer, name = _of_pair(pair, names)
    return layer, f"{name}, number {ordinal + 1}"


def _of_barrier(key: int, names: Names) -> Named:
    name, place = unpacked(key, NAME, ORDINAL)
    return "", names.text(name) + (f", number {place}" if place else "")


def _of_error(key: int, names: Names) -> Named:
    layer, end, kind = unpacked(key, LAYER, END, NAME)
    return _layer(layer), f"{_end(end, names)}: {names.text(kind)}"


def _layer(layer: int) -> str:
    return "" if layer == NO_LAYER else layer_text(layer)


def _op(op: int) -> str:
    return Op(op).name.lower() if op in list(Op) else f"operation {op}"


def _end(end: int, names: Names) -> str:
    return names.text(end) or "unknown"


_OPERATIONS = Measure("operations", "operations")
_BYTES = Measure("size_bytes", "bytes", "bytes")
LAST = "last"
"""Of barriers: who came last, by its number; not compared as an amount, but told with them."""

KINDS = (
    Kind("run", "Whole run", Reader.run, _of_layer, (
        Measure("duration_ns", "duration", "ns", is_sum=False, worse=1),
        Measure("bandwidth", "bytes a second", "bytes/s", is_sum=False, worse=-1),
        Measure("mean_ns", "mean latency", "ns", is_sum=False, worse=1),
        Measure("caused_ns", "waited at barriers", "ns", worse=1),
        _OPERATIONS, _BYTES, Measure("processes", "processes"),
    )),
    Kind("barrier", "Barriers", Reader.barriers, _of_barrier, (
        Measure("mean_spread_ns", "mean spread", "ns", is_sum=False, worse=1),
        Measure("spread_ns", "spread", "ns", is_sum=False, worse=1),
        Measure("barriers", "barriers"),
    )),
    Kind("rank", "Ranks", Reader.processes, _of_process, (
        Measure("caused_ns", "others waited for it at barriers", "ns", worse=1),
        Measure("late_sender_ns", "receivers waited until it sent", "ns", worse=1),
        Measure(LAST, "came last to barriers", worse=1),
        Measure("sent_operations", "operations sent"),
        Measure("sent_size_bytes", "bytes sent", "bytes"),
        Measure("received_operations", "operations received"),
        Measure("received_size_bytes", "bytes received", "bytes"),
    )),
    Kind("latency", "Latency by pair of ranks", Reader.latency, _of_pair, (
        Measure("p50_ns", "median latency", "ns", is_sum=False, worse=1),
        Measure("p99_ns", "99th percentile of latency", "ns", is_sum=False, worse=1),
    )),
    Kind("error", "Errors", Reader.errors, _of_error, (Measure("errors", "errors", worse=1),)),
    Kind("operation", "Operations", Reader.operations, _of_operation, (_OPERATIONS, _BYTES)),
    Kind("size", "Message sizes", Reader.sizes, _of_size, (_OPERATIONS,)),
    Kind("host_pair", "Pairs of hosts", Reader.hosts, _of_pair, (_OPERATIONS, _BYTES)),
    Kind("rank_pair", "Pairs of ranks", Reader.pairs, _of_pair, (_OPERATIONS, _BYTES)),
    Kind("queue_pair", "Queue pairs and endpoints", Reader.queue_pairs, _of_queue_pair,
         (_OPERATIONS, _BYTES)),
)  # fmt: skip
"""In the order in which they are read; what is reported is ordered by weight."""
