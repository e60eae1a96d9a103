"""What is in a report: tables made by hand, hostile names, caps, and the order of its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace.export.base import Exported
from sigmatrace.export.report.exporter import Report
from sigmatrace.export.report.facts import told
from sigmatrace.export.report.flows import flows, in_order
from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.trace_format import Layer, Op
from tests.factories import START_NS, make_run, make_table
from tests.report_page import Page

MADE = (
    "communication", "imbalance", "links", "errors", "timeline", "sizes", "clock_quality",
)  # fmt: skip
BOOK = {
    "lossless": True, "balance": [{"name": "a = b", "ok": True}], "stages": {},
    "capture": {"window": {}},
}  # fmt: skip
SAID = (
    "events     8 operations of 2 processes on 1 host",
    "lost       nothing",
    "sends      9, matched 8 (88.9 %)",
    "  ucp      4, matched 3 (75.0 %)",
    "             1 peer not traced",
    "top ofi    rank 0 -> rank 1: 1 KiB",
    "           rank 1 -> rank 0: 1 B",
    "finding    told below in full",
)
HOSTILE = "<script>alert('x')</script>$\\frac{1}{0}$ \x1b[31m & \"q\" \u4e2d"


def sent(src: str, dst: str, size: int, level: str = "rank", **more: Any) -> dict[str, Any]:
    ends = {"src": src, "dst": dst, "size_bytes": size, "operations": 1, "mean_bytes": float(size)}
    return {"level": level, "layer": Layer.OFI, **ends, **more}


def run_of(processes: Sequence[Mapping[str, Any]], **tables: Any) -> Run:
    facts = {"base_ns": START_NS, "last_ns": START_NS + 10**9, "bin_ns": 1024, "folder": "night"}
    run = make_run({**facts, "timeline_ns": START_NS}, processes=processes)
    rows = {name: tables.get(name, []) for name in (*MADE, *tables)}
    made = {name: make_table(STAGE_TABLES[name], found) for name, found in rows.items()}
    return run.with_results(made)


def report(
    run: Run,
    folder: Path,
    book: Mapping[str, Any] = BOOK,
    said: Sequence[str] = SAID,
    **options: int,
) -> tuple[Page, Exported]:
    made = Report(**options).informed(book, said).finish([], run, folder)
    assert made.files == ("report.html", "report")
    return Page(folder / "report.html"), made


def two(**tables: Any) -> Run:
    pair = [sent("rank 0", "rank 1", 2048), sent("rank 1", "rank 0", 1024)]
    return run_of([{}, {}], **{"communication": pair, **tables})


def test_parts_come_in_their_order_and_files_are_there(tmp_path: Path) -> None:
    page, made = report(two(), tmp_path)
    parts = ["What ran", "Data quality", "Findings", "Who sent how much to whom", "Tables"]
    at = [page.text.index(part, page.text.index("Skip to")) for part in parts]
    assert at == sorted(at)
    files = {path.name for path in (tmp_path / "report").iterdir()}
    names = {one.removeprefix("figure-") for one in page.figures}
    assert files == {f"{name}.{end}" for name in names for end in ("png", "svg")}
    assert {"matrix-rank-ofi", "graph-rank-ofi", "imbalance-rank-ofi"} <= names
    assert made.counts["figures"] == len(names)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= {f"#{one}" for one in page.ids}
    assert all(one.startswith("data:") for one in page.loads)


def test_figures_are_described_and_drawn(tmp_path: Path) -> None:
    page, _ = report(two(), tmp_path)
    said = page.figures["figure-matrix-rank-ofi"]
    assert "3 KiB at layer ofi" in said and "different ranks is rank 0 to rank 1 with 2 KiB" in said
    assert "within" not in said
    root = Xml.parse(tmp_path / "report" / "matrix-rank-ofi.svg").getroot()
    assert root.findall(".//{http://www.w3.org/2000/svg}image")
    page_text = (tmp_path / "report.html").read_text()
    for svg in re.findall(r"<svg.*?</svg>", page_text, re.DOTALL):
        assert 'role="img"' in svg and "aria-labelledby=" in svg and "<desc" in svg


def test_what_stays_within_a_node_is_no_pair(tmp_path: Path) -> None:
    nodes = [sent("n0", "n1", 2048, "node"), sent("n0", "n0", 4096, "node")]
    run = run_of([{"host": "n0"}, {"host": "n1"}], communication=[*nodes, sent("a", "b", 6144)])
    said = report(run, tmp_path)[0].figures["figure-matrix-node-ofi"]
    assert "The heaviest pair of different nodes is n0 to n1 with 2 KiB. 4 KiB stay within" in said


def test_processes_of_which_none_has_a_rank_are_not_called_ranks(tmp_path: Path) -> None:
    pair = [sent("pid 8", "pid 9", 2048), sent("pid 9", "pid 8", 1024)]
    processes = [{"label": label, "rank": -1, "layers": "ofi"} for label in ("pid 8", "pid 9")]
    page, _ = report(run_of(processes, communication=pair), tmp_path)
    assert "of different processes is pid 8" in page.figures["figure-matrix-rank-ofi"]
    assert "Communication by process" in page.text and "ranks" not in page.text
    assert "2 processes, none with a known rank" in page.text


def test_two_reports_can_be_told_apart(tmp_path: Path) -> None:
    page, _ = report(two(), tmp_path)
    assert "SigmaTrace report night, 2 processes" in page.text
    assert "2027-01-15 08:00:00 UTC, for 1 s" in page.text
    window = {"window_ns": (START_NS + 2 * 10**8, START_NS + 5 * 10**8 + 1)}
    page, _ = report(two().with_results({}, window), tmp_path)
    assert "SigmaTrace report night, 2 processes, 0.2s..0.500000001s" in page.text
    assert "2027-01-15 08:00:00 UTC (200 ms after the run's), for 300 ms" in page.text
    beyond = {"window_ns": (START_NS + 10**10, START_NS + 10**11)}
    page, _ = report(two().with_results({}, beyond), tmp_path)
    assert "2027-01-15" not in page.text and "2 processes, 10s..100s" in page.text


def test_members_are_those_that_could_have_sent() -> None:
    """A rank that sent nothing is one; a launcher, and a rank without the layer, are none."""
    of = [{"layers": "ofi"}, {"layers": "ofi,uct"}, {"layers": "ofi"}, {"layers": "uct"}]
    launcher = {"rank": -1, "label": "pid 9", "layers": "ofi", "host": "login"}
    run = run_of([*of, launcher], communication=[sent("rank 0", "rank 1", 9)])
    (one,) = flows(run)
    assert one.names == ["rank 0", "rank 1", "rank 2"]
    assert [way.tolist() for way in one.ways()] == [[9, 0, 0], [0, 9, 0]]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    processes = [{"label": HOSTILE, "host": HOSTILE, "command": HOSTILE}, {"host": "$x^{$"}]
    rows = [sent(HOSTILE, "rank 1", 9), sent(HOSTILE, "$x^{$", 9, "node")]
    finding = {"text": HOSTILE, "kind": HOSTILE, "evidence": HOSTILE, "weight": 0.5}
    run = run_of(processes, communication=rows, findings=[finding])
    page, _ = report(run, tmp_path, said=[f"lost       {HOSTILE}"])
    assert page.tags["script"] == 1 and "b" not in page.tags
    assert page.rows("communication-rank")[0]["from"] == HOSTILE
    assert page.rows("processes")[0]["command"] == HOSTILE
    assert page.text.count(HOSTILE) >= 8
    assert all(one.startswith("data:") for one in page.loads)


def test_tables_are_capped_at_the_heaviest_rows(tmp_path: Path) -> None:
    rows = [sent(f"rank {n}", "rank 0", n) for n in range(1, 400)]
    run = run_of([{} for _ in range(400)], communication=rows)
    page, made = report(run, tmp_path, rows=7)
    shown = page.rows("communication-rank")
    assert [int(row["bytes"]) for row in shown] == list(range(399, 392, -1))
    assert "7 of 399 rows, those with most bytes" in page.text
    assert "csv/communication.csv" in page.text and "parquet/communication.parquet" in page.text
    assert "7 of 400 rows. All are in csv/processes.csv" in page.text
    assert made.counts["rows_shown"] == 14
    assert "400 ranks at layer ofi are too many for a graph" in page.text
    assert "Each cell stands for 2 by 2 ranks" in page.figures["figure-matrix-rank-ofi"]


def test_a_thousand_ranks_that_all_talk_stay_small(tmp_path: Path) -> None:
    count = 1024
    names = pa.array([f"rank {n}" for n in range(count)])
    src, dst = np.divmod(np.arange(count * count), count)
    size = np.random.default_rng(1).lognormal(10, 3, src.size).astype(np.uint64)
    table = pa.table(
        {
            "level": pa.array(["rank"]).take(pa.array(np.zeros(src.size, np.int8))),
            "layer": np.full(src.size, Layer.OFI, np.uint8),
            "src": names.take(pa.array(src)),
            "dst": names.take(pa.array(dst)),
            "operations": np.ones(src.size, np.uint64),
            "size_bytes": size,
            "size_unknown": np.zeros(src.size, np.uint64),
            "mean_bytes": size.astype(np.float64),
        }
    )
    run = run_of([{"host": f"node{n // 8}"} for n in range(count)])
    page, _ = report(run.with_results({"communication": table}), tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    found = [int(row["bytes"]) for row in page.rows("communication-rank")]
    assert found == np.sort(size)[::-1][:200].tolist()
    assert "Each cell stands for 4 by 4 ranks" in page.figures["figure-matrix-rank-ofi"]
    assert "1 024 ranks at layer ofi are too many for a graph" in page.text
    assert "200 of 1 048 576 rows" in page.text


def test_many_queue_pairs_are_left_to_the_table(tmp_path: Path) -> None:
    rows = [sent(f"rank 0 QP {n}", "rank 1 QP 0", 1, "qp") for n in range(64)]
    page, _ = report(two(communication=[*rows, sent("rank 0", "rank 1", 64)]), tmp_path)
    assert "figure-matrix-qp-ofi" not in page.figures
    assert "65 queue pairs or endpoints at layer ofi are too many for a picture" in page.text
    assert len(page.rows("communication-qp")) == 64


def test_what_is_wrong_comes_first(tmp_path: Path) -> None:
    own = {"sends": 5, "sends_matched": 4, "receives": 4, "receives_matched": 4}
    book = {
        **BOOK,
        "lossless": False,
        "balance": [{"name": "sent = got", "ok": False}, {"name": "b", "ok": True}],
        "stages": {"messages": {"received_before_sent": 3}, "match": {"own": own}},
    }
    clocks = [
        {"proc": 0, "calibrated": True, "error_ns": 5.0},
        {"proc": 1, "error_ns": float("inf")},
    ]
    page, _ = report(two(clock_quality=clocks), tmp_path, book)
    assert page.text.count("Attention:") == 5 and "Good:" not in page.text
    assert "1 of 2 equations of the ledger do not hold: sent = got" in page.text
    assert "1 of 9 sends and receives not matched" in page.text
    assert "1 of 2 clocks not calibrated" in page.text
    assert "3 messages received before they were sent" in page.text
    assert [row["error"] for row in page.rows("clock_quality")] == ["1e400", "5.0"]


def test_what_a_window_cuts_off_is_no_loss(tmp_path: Path) -> None:
    unmatched = {"not_seen_received": 3, "duplicate": 0, "peer_unknown": 0}
    own = {"sends": 5, "sends_matched": 2, "receives": 2, "receives_matched": 2}
    own |= {"sends_unmatched": unmatched, "receives_unmatched": {"not_seen_sent": 0}}
    book = {**BOOK, "stages": {"match": {"own": own}}}
    assert (
        "Attention: 3 of 7 sends and receives not matched" in report(two(), tmp_path, book)[0].text
    )
    book["capture"] = {"window": {"begin_ns": 1}}
    page, _ = report(two(), tmp_path, book)
    assert "Attention:" not in page.text
    assert "Good: 3 of 7 sends and receives not matched, as the window may have" in page.text
    own["sends"], unmatched["peer_unknown"] = 6, 1
    page, _ = report(two(), tmp_path, book)
    assert "Attention: 1 of 8 sends and receives not matched: their other end" in page.text


def test_clocks_that_are_less_exact_than_messages_are_quick(tmp_path: Path) -> None:
    pair = {"src_proc": 0, "dst_proc": 1, "layer": Layer.OFI, "messages": 9, "p50_ns": 2000}
    clocks = [{"proc": n, "calibrated": True, "error_ns": 364_820.0} for n in range(2)]
    tables: dict[str, Any] = {"message_latency": [pair], "clock_quality": clocks}
    rows = two(**tables).tables["communication"].to_pylist()
    page, _ = report(two(**tables), tmp_path)
    assert "Attention:" not in page.text  # one host, one clock
    run = run_of([{"host": "n0"}, {"host": "n1"}], communication=rows, **tables)
    page, _ = report(run, tmp_path)
    assert "Attention: Between 1 of 1 pair of processes half of the messages took no" in page.text
    assert "(by up to 730 us)" in page.text


def test_clocks_that_messages_could_not_tie_are_named_first(tmp_path: Path) -> None:
    hosts = [{"host": f"node{n}", "reference": "node0", "tied": n == 0} for n in range(3)]
    page, _ = report(two(clock_hosts=hosts), tmp_path)
    begin = page.text.index("Attention:")
    assert "2 clocks without a bound (node1, node2)" in page.text[begin : begin + 120]
    assert begin < page.text.index("Good:")


def test_findings_are_ranked_and_lead_to_their_evidence(tmp_path: Path) -> None:
    findings = [
        {"position": 1, "weight": 0.25, "text": "less", "evidence": "elsewhere", "kind": "k"},
        {"position": 0, "weight": 0.75, "text": "more", "evidence": "communication where 1 = 1"},
        {"position": 2, "weight": 0.06, "text": "idle", "evidence": "links", "share": None},
    ]
    findings[0] |= {"share": 0.25}
    findings[1] |= {"share": 0.75}
    page, _ = report(two(findings=findings), tmp_path)
    assert page.text.index("more") < page.text.index("less")
    assert "75%" in page.text and "25%" in page.text and "6%" not in page.text
    assert "k:  elsewhere" in page.text.replace("\n", "")
    assert "#table-communication-rank" in page.links
    assert "told below in full" not in page.text
    nothing, _ = report(two(findings=[]), tmp_path)
    assert "Nothing stands out." in nothing.text


def test_barriers_and_latencies(tmp_path: Path) -> None:
    spread = {"kind": "region", "name": "all done", "members": 2, "last_proc": 1}
    barriers = [
        {"barrier": n, "spread_ns": 1000 * n, "uncertain": n < 4, **spread} for n in range(50)
    ]
    arrivals = [
        {"barrier": n, "proc": p, "position": p, "late_ns": 1000 * n * p}
        for n in range(50)
        for p in range(2)
    ]
    latency = [
        {"layer": Layer.OFI, "least_ns": -1, "most_ns": -1, "count": 2},
        {"layer": Layer.OFI, "least_ns": 1024, "most_ns": 2047, "count": 5},
    ]
    run = two(barriers=barriers, barrier_arrivals=arrivals, latency_histogram=latency)
    page, _ = report(run, tmp_path)
    said = page.figures["figure-barriers"]
    assert "50 barriers" in said and "49 us at most" in said and "24 us in the median" in said
    assert "rank 1 came last most often (49 of 50)" in said and "the 40 widest" in said
    assert "not sure at 4 barriers" in said
    assert "49 all done" in said and "10 all done" in said and " 9 all done" not in said
    said = page.figures["figure-latencies"]
    assert "7 messages" in said and "2 were received before they were sent" in said
    assert [row["spread"] for row in page.rows("barriers")][:2] == ["49000", "48000"]


def test_bandwidth_and_sizes(tmp_path: Path) -> None:
    send = {"layer": Layer.OFI, "op": Op.SEND, "count": 1}
    timeline = [
        {"bin": 0, "proc": 0, "size_bytes": 1024, **send},
        {"bin": 3, "proc": 1, "size_bytes": 4096, **send},
        {"bin": 3, "proc": 1, "size_bytes": 9999, "layer": Layer.OFI, "op": Op.RECV},
    ]
    whole = {"least_bytes": 0, "most_bytes": 2**64 - 1, "count": 3}
    sizes = [
        {"least_bytes": 1024, "most_bytes": 2047, "size_bytes": 1024, **send},
        {**send, **whole},
        {**send, **whole, "nested": 1, "count": 99},
    ]
    page, _ = report(two(timeline=timeline, sizes=sizes), tmp_path)
    said = page.figures["figure-bandwidth"]
    assert "in steps of 1.02 us" in said and "at most 3.73 GiB/s, at 3.07 us" in said
    assert "figure-bandwidth-by-rank" in page.figures
    assert "4 operations" in page.figures["figure-sizes"]
    assert "begins at unknown (75%" in page.figures["figure-sizes"]


def test_a_layer_without_times_is_in_no_picture_over_time(tmp_path: Path) -> None:
    """Some processes recorded the layer with most bytes, in mode aggregate, others another one."""
    verbs = {"layer": Layer.VERBS}
    rows = [sent("rank 0", "rank 1", 2**40), sent("rank 1", "rank 0", 1024, **verbs)]
    timeline = [{"bin": 2, "proc": 1, "size_bytes": 1024, "op": Op.SEND, "count": 1, **verbs}]
    latency = [{"layer": Layer.UCT, "least_ns": 1024, "most_ns": 2047, "count": 5}]
    run = two(communication=rows, timeline=timeline, latency_histogram=latency)
    page, _ = report(run, tmp_path)
    assert "ofi" not in page.figures["figure-bandwidth"]
    assert "layer verbs" in page.figures["figure-bandwidth-by-rank"]
    assert "figure-latencies" not in page.figures  # of a layer that is not drawn


def test_a_run_without_traffic(tmp_path: Path) -> None:
    page, _ = report(run_of([{}]), tmp_path)
    assert page.figures == {} and "No traffic was recorded." in page.text
    assert list(page.tables) == ["table-processes"]


@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": 2001}, {"dpi": 19}])
def test_impossible_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Report(**options)


def test_lines_of_the_summary_find_their_place() -> None:
    found = told(SAID)
    assert [one.term for one in found.ran] == ["events"]
    assert [one.term for one in found.quality] == ["lost", "sends"]
    assert found.quality[1].texts[1:] == ("ucp 4, matched 3 (75.0 %)", "1 peer not traced")
    assert [one.texts for one in found.found] == [
        ("rank 0 -> rank 1: 1 KiB", "rank 1 -> rank 0: 1 B")
    ]


def test_how_even_it_is_counts_as_the_table_imbalance_does(tmp_path: Path) -> None:
    """A launcher takes no part; what goes to an end that is not known was sent all the same."""
    rows = [
        *(sent("rank 0", "rank 1", 2048), sent("rank 1", "rank 0", 1024)),
        *(sent("rank 1", "", 4096), sent("rank 0", "rank 0", 9999)),
    ]
    launcher = {"label": "pid 9", "rank": -1, "layers": "ofi", "host": "login"}
    ranks = [{"layers": "ofi"}, {"layers": "ofi"}, {"layers": "ofi"}, {"layers": "ucp"}]
    page, _ = report(run_of([*ranks, launcher], communication=rows), tmp_path)
    assert (
        page.figures["figure-imbalance-rank-ofi"]
        .rstrip()
        .endswith(
            "Most was sent by rank 1 (5 KiB), least by rank 2 (0 B). "
            "Most was got by rank 1 (2 KiB), least by rank 2 (0 B)."
        )
    )
    assert "pid 9" not in (tmp_path / "report" / "matrix-rank-ofi.svg").read_text()


def test_traffic_of_one_process_with_itself(tmp_path: Path) -> None:
    run = run_of([{"layers": "ofi"}], communication=[sent("rank 0", "rank 0", 8)])
    page, _ = report(run, tmp_path)
    assert "All traffic is of one process with itself" in page.text
    assert "No traffic was recorded." in page.text  # of sizes, which this run lacks


def test_names_are_in_an_order_for_people() -> None:
    names = ["n1", "n02", "n2", "n10", "a", f"n{'9' * 5000}", "2", ""]
    assert sorted(reversed(names), key=in_order) == [
        *("", "2", "a", "n1", "n02", "n2", "n10"),
        f"n{'9' * 5000}",
    ]


def test_bytes_beyond_64_bits_stay_the_most(tmp_path: Path) -> None:
    rows = [sent(f"rank {n}", "rank 0", 2**63) for n in range(1, 4)]
    sizes = [
        {"layer": Layer.OFI, "op": Op.SEND, "count": 1, "size_bytes": 2**63, "least_bytes": 2**63}
        | {"most_bytes": 2**64 - 1}
    ] * 3
    run = run_of([{"layers": "ofi"}] * 4, communication=rows, sizes=sizes)
    page, _ = report(run, tmp_path)
    assert "Most was got by rank 0 (16 EiB)" in page.figures["figure-imbalance-rank-ofi"]
    assert "24 EiB at layer ofi" in page.figures["figure-matrix-rank-ofi"]
    assert "total 24 EiB" in (tmp_path / "report" / "matrix-rank-ofi.svg").read_text()
