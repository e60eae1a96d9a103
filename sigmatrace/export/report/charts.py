"""Charts: bandwidth over time, sizes and latencies of messages, how uneven members are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.export.amounts import added
from sigmatrace.export.report.flows import Flows, drawn_layers
from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import (
    HATCHES,
    HEAT,
    LINES,
    OKABE_ITO,
    byte_axis,
    figure_of,
    plain,
    time_unit,
)
from sigmatrace.partition import Run
from sigmatrace.text import byte_text, count_text, counted, time_text
from sigmatrace.trace_format import INITIATORS, layer_text

ROWS_MAX, COLUMNS_MAX = 256, 512
"""Of the heat map over time; more processes and bins are summed in blocks."""
BARS_MAX = 48
_MOST = 2**64 - 1
_Floats = NDArray[np.float64]


def over_time(run: Run) -> Iterator[Shape]:
    """Yield bandwidth by layer, and by process for the heaviest layer."""
    rows = {name: run.column("timeline", name) for name in run.tables["timeline"].column_names}
    keep = np.isin(rows["op"], INITIATORS) & np.isin(rows["layer"], drawn_layers(run))
    rows = {name: values[keep] for name, values in rows.items()}
    if not rows["bin"].size:
        return
    # Of a layer that was recorded in mode aggregate alone no operation has a time.
    layers = [one for one in drawn_layers(run) if one in rows["layer"]]
    bin_ns = run.fact_ns("bin_ns")
    bins = int(rows["bin"].max()) + 1
    rates = np.zeros((len(layers), bins))
    place = {layer: at for at, layer in enumerate(layers)}
    of_layer = np.array([place[layer] for layer in rows["layer"].tolist()], np.int64)
    np.add.at(rates, (of_layer, rows["bin"]), rows["size_bytes"] * (1e9 / bin_ns))
    begin_ns = run.fact_ns("timeline_ns") - run.fact_ns("base_ns")
    told = " ".join(
        f"{layer_text(layer)}: at most {byte_text(rate.max())}/s, at "
        f"{time_text(begin_ns + int(rate.argmax()) * bin_ns)}."
        for layer, rate in zip(layers, rates, strict=True)
    )
    text = f"Bytes of operations by when they began, in steps of {time_text(bin_ns)}. {told}"
    yield Shape(
        "bandwidth", "all processes together", text, lambda: _rates(rates, layers, begin_ns, bin_ns)
    )
    one = of_layer == 0
    mine = {name: values[one] for name, values in rows.items()}
    text = (
        f"Bytes that each process initiates at layer {layer_text(layers[0])}, over time; blank: "
        "none. A column that is blank in all rows is a time in which nobody sent anything."
    )
    yield Shape(
        "bandwidth-by-rank", "by process", text, lambda: _by_process(run, mine, begin_ns, bin_ns)
    )


def _rates(rates: _Floats, layers: list[int], begin_ns: int, bin_ns: int) -> Any:
    figure, axes = figure_of(10, 2.9)
    edges = begin_ns + bin_ns * np.arange(rates.shape[1] + 1)
    unit, name = time_unit(float(edges[-1]))
    for at, (layer, rate) in enumerate(zip(layers, rates, strict=True)):
        colour, line = OKABE_ITO[at], LINES[at]
        axes.stairs(rate, edges / unit, color=colour, linestyle=line, label=layer_text(layer))
        if len(layers) == 1:
            axes.stairs(rate, edges / unit, fill=True, color=colour, alpha=0.3)
    axes.set_xlabel(f"time in {name}")
    axes.set_ylabel("bytes per second")
    axes.set_ylim(0)
    byte_axis(axes.yaxis, "/s")
    axes.grid(axis="y")
    if len(layers) > 1:
        axes.legend()
    return figure


def _by_process(run: Run, rows: dict[str, Any], begin_ns: int, bin_ns: int) -> Any:
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize

    labels = run.tables["processes"].column("label").to_pylist()
    tall = -(-len(labels) // ROWS_MAX)
    wide = -(-(int(rows["bin"].max()) + 1) // COLUMNS_MAX)
    shape = -(-len(labels) // tall), int(rows["bin"].max()) // wide + 1
    rates = np.zeros(shape)
    np.add.at(rates, (rows["proc"] // tall, rows["bin"] // wide), rows["size_bytes"])
    rates *= 1e9 / (bin_ns * wide * tall)
    shown = np.ma.masked_equal(rates, 0)
    height = 1.4 + min(5.0, max(0.9, 0.16 * shape[0]))
    figure, axes = figure_of(10, height)
    unit, name = time_unit(begin_ns + float(bin_ns) * wide * shape[1])
    right = (begin_ns + bin_ns * wide * shape[1]) / unit
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 1.0)
    norm = LogNorm(low, high) if low and high > 100 * low else Normalize(0, high)
    colours = matplotlib.colormaps[HEAT].with_extremes(bad="#f2f2f2")
    image = axes.imshow(
        shown, aspect="auto", interpolation="nearest", cmap=colours, norm=norm,
        extent=(begin_ns / unit, right, shape[0] - 0.5, -0.5),
    )  # fmt: skip
    step = -(-shape[0] // 32)
    at = list(range(0, shape[0], step))
    axes.set_yticks(
        at, [plain(labels[row * tall]) for row in at], fontsize=8 if len(at) < 20 else 6
    )
    axes.set_xlabel(f"time in {name}")
    if tall > 1:
        axes.set_ylabel(f"a row is the mean of {tall} processes")
    bar = figure.colorbar(image, ax=axes, label="bytes per second of a process")
    byte_axis(bar.ax.yaxis, "/s")
    return figure


def sizes(run: Run) -> Iterator[Shape]:
    """Yield the histogram of message sizes."""
    names = ("layer", "least_bytes", "most_bytes", "count", "size_bytes")
    keep = np.isin(run.column("sizes", "op"), INITIATORS) & (run.column("sizes", "nested") == 0)
    layers = drawn_layers(run)
    keep &= np.isin(run.column("sizes", "layer"), layers)
    rows = {name: run.column("sizes", name)[keep] for name in names}
    if not rows["count"].size:
        return
    unknown = (rows["least_bytes"] == 0) & (rows["most_bytes"] == _MOST)
    place = np.array([int(least).bit_length() for least in rows["least_bytes"].tolist()], np.int64)
    place[unknown] = place[~unknown].max(initial=-1) + 1
    bars = len(layers), int(place.max()) + 1
    at = np.argsort(layers)[np.searchsorted(np.sort(layers), rows["layer"])], place
    sums = np.stack([added(bars, at, rows[name]) for name in ("count", "size_bytes")])
    total = sum(sums[0].ravel().tolist())
    most = int(sums[0].sum(axis=0).argmax())
    labels = ["0 B", *(byte_text(2**k) for k in range(sums.shape[2]))][: sums.shape[2]]
    if unknown.any():
        labels[-1] = "unknown"
    share = sum(sums[0, :, most].tolist()) / max(total, 1)
    text = (
        f"{counted(total, 'operation')} that initiate traffic by size, in powers of two: above how "
        f"many, below how many bytes they carry. The label is the least size of a class; the "
        f"most frequent one begins at {labels[most]} ({share:.0%} of the operations)."
    )
    yield Shape("sizes", "message sizes", text, lambda: _size_bars(sums, layers, labels))


def _size_bars(sums: NDArray[np.uint64], layers: list[int], labels: list[str]) -> Any:
    first = int(np.flatnonzero(sums[0].sum(axis=0))[0])
    figure, two = figure_of(10, 4.2, rows=2, sharex=True)
    wide = 0.84 / len(layers)
    at = np.arange(first, sums.shape[2])
    for axes, amounts, name in zip(two, sums, ("operations", "bytes"), strict=True):
        for number, layer in enumerate(layers):
            x = at + wide * (number - (len(layers) - 1) / 2)
            look = {"color": OKABE_ITO[number], "hatch": HATCHES[number], "edgecolor": "white"}
            axes.bar(x, amounts[number, first:], wide, label=layer_text(layer), **look)
        axes.set_ylabel(name)
        axes.grid(axis="y")
    two[0].yaxis.set_major_formatter(lambda value, _: count_text(int(value)))
    byte_axis(two[1].yaxis)
    shown = labels[first:]
    two[1].set_xticks(at, shown, rotation=90 if len(shown) > 10 else 0)
    two[1].set_xlabel("size of an operation, from")
    if len(layers) > 1:
        two[0].legend()
    return figure


def latencies(run: Run) -> Iterator[Shape]:
    """Yield the histogram of latencies, where messages were looked at one by one."""
    if "latency_histogram" not in run.tables or not run.tables["latency_histogram"].num_rows:
        return
    names = ("layer", "least_ns", "count")
    rows = {name: run.column("latency_histogram", name) for name in names}
    layers = [one for one in drawn_layers(run) if one in rows["layer"]]
    if not layers:
        return
    least = sorted({*rows["least_ns"].tolist()})
    place = np.searchsorted(least, rows["least_ns"])
    counts = np.zeros((len(layers), len(least)), np.uint64)
    for at, layer in enumerate(layers):
        mine = rows["layer"] == layer
        np.add.at(counts[at], place[mine], rows["count"][mine])
    total = sum(counts.ravel().tolist())
    backwards = sum(counts[:, 0].tolist()) if least[0] < 0 else 0
    labels = ["< 0" if ns < 0 else time_text(ns) for ns in least]
    text = f"{counted(total, 'message')} by the time from send to receive, in powers of two."
    if backwards:
        text += f" {count_text(backwards)} were received before they were sent: clocks disagree."
    yield Shape("latencies", "latencies", text, lambda: _latency_bars(counts, layers, labels))


def _latency_bars(counts: NDArray[np.uint64], layers: list[int], labels: list[str]) -> Any:
    figure, axes = figure_of(10, 2.8)
    wide = 0.84 / max(len(layers), 1)
    at = np.arange(len(labels))
    for number, layer in enumerate(layers):
        x = at + wide * (number - (len(layers) - 1) / 2)
        look = {"color": OKABE_ITO[number], "hatch": HATCHES[number], "edgecolor": "white"}
        axes.bar(x, counts[number], wide, label=layer_text(layer), **look)
    axes.set_xticks(at, labels, rotation=90 if len(labels) > 10 else 0)
    axes.set_xlabel("latency, from")
    axes.set_ylabel("messages")
    axes.yaxis.set_major_formatter(lambda value, _: count_text(int(value)))
    axes.grid(axis="y")
    if len(layers) > 1:
        axes.legend()
    return figure


def uneven(found: Iterable[Flows]) -> Iterator[Shape]:
    """Yield what each node and each rank sent to others and got from them."""
    for one in found:
        if one.level in ("node", "rank") and one.known > 1 and one.between.size:
            yield _uneven(one)


def _uneven(one: Flows) -> Shape:
    sent, got = one.ways()
    text = [f"Bytes that each {one.words[0]} sent to others and got from them."]
    for what, way in (("sent", sent), ("got", got)):
        most, least = int(way.argmax()), int(way.argmin())
        if way[most] == way[least]:
            text.append(f"All {what} alike ({byte_text(int(way[most]))}).")
            continue
        text.append(
            f"Most was {what} by {plain(one.names[most])} ({byte_text(int(way[most]))}), least by "
            f"{plain(one.names[least])} ({byte_text(int(way[least]))})."
        )
    layer = layer_text(one.layer).replace(" ", "-")
    name = f"imbalance-{one.level}-{layer}"
    return Shape(name, one.title, " ".join(text), lambda: _ways(one, sent, got))


def _ways(one: Flows, sent: NDArray[np.uint64], got: NDArray[np.uint64]) -> Any:
    if one.known > BARS_MAX:
        return _curves(one, sent, got)
    figure, axes = figure_of(10, 1.1 + 0.3 * one.known)
    at = np.arange(one.known)
    axes.barh(at - 0.2, sent, 0.4, color=OKABE_ITO[0], label="sent")
    look = {"color": OKABE_ITO[4], "hatch": HATCHES[1], "edgecolor": "white"}
    axes.barh(at + 0.2, got, 0.4, label="got", **look)
    axes.set_yticks(at, [plain(name) for name in one.names[: one.known]])
    axes.invert_yaxis()
    byte_axis(axes.xaxis)
    axes.grid(axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _curves(one: Flows, sent: NDArray[np.uint64], got: NDArray[np.uint64]) -> Any:
    """Draw many members as two curves, by their number."""
    figure, axes = figure_of(10, 2.9)
    axes.stairs(sent, color=OKABE_ITO[0], label="sent", fill=True, alpha=0.5)
    axes.stairs(got, color=OKABE_ITO[1], label="got", linewidth=1)
    at = list(range(0, one.known, -(-one.known // 16)))
    shown = [plain(one.names[k]) for k in at]
    axes.set_xticks([k + 0.5 for k in at], shown, rotation=45, ha="right")
    axes.set_ylim(0)
    byte_axis(axes.yaxis)
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
