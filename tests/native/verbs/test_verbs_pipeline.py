"""What the pipeline makes of windows and of XRC: owners by key, messages by shared queue."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
from plain_reader import merged

from sigmatrace import api
from sigmatrace.schema import RegionFate

STAGES = ["topology", "clock", "match", "completion", "one_sided"]


def analysed(folder: Path, out: Path) -> api.Result:
    return api.run(folder, export=["parquet"], out=out, stage=STAGES, strict=True)


def test_the_owner_of_a_write_is_found_by_the_key_of_a_window(run, tmp_path: Path) -> None:
    traced = run("driver", "windows")
    result = analysed(traced.out, tmp_path / "out")
    keys = [m["key"] for m in merged(traced.rank(), "memory") if m.get("kind") == "window"]
    rows = ds.dataset(tmp_path / "out" / "parquet" / "requests").to_table().to_pylist()
    writes = [row for row in rows if row["opcode"] == 0]
    regions = result.tables["regions"].to_pylist()
    assert [(row["owner"], row["target_proc"]) for row in writes] == [(RegionFate.REGION, 0)] * 6
    assert [regions[row["region"]]["key"] for row in writes] == keys


def test_messages_to_each_shared_queue_are_matched(run, tmp_path: Path) -> None:
    result = analysed(run("driver", "xrc", 0).out, tmp_path / "out")
    found = [
        (row["sent"], row["received"], row["matched"], row["sent_bytes"], row["received_bytes"])
        for row in result.tables["messages"].to_pylist()
    ]
    assert sorted(found) == [(3, 3, 3, 36, 36), (4, 4, 4, 116, 116)]
    mixed = analysed(run("driver", "xrc", 1, mode="simple").out, tmp_path / "mixed")
    assert mixed.tables["messages"].num_rows == 0


def test_transitions_of_queue_pairs(run, tmp_path: Path) -> None:
    traced = run("driver", "negotiated")
    result = analysed(traced.out, tmp_path / "out")
    first, _, second, _ = (qp["id"] for qp in merged(traced.rank(), "ib_qp"))
    rows = result.tables["qp_transitions"].to_pylist()
    born = {o["id"]: o["t_tsc"] for o in reversed(traced.rank().objects_of("ib_qp"))}
    for qp, states in ((first, ["init", "rtr", "rts"]), (second, ["init", "rtr", "rts", "error"])):
        mine = [row for row in rows if row["object"] == qp]
        assert [row["state"] for row in mine] == states
        times = [born[qp], *(row["t_tsc"] for row in mine)]
        assert times == sorted(set(times))
    assert result.tables["qp_sockets"].num_rows == 0


def test_a_pause_of_the_recording_accuses_nobody(run, tmp_path: Path) -> None:
    """Of four requests one is posted in the pause; all four complete."""
    result = analysed(run("driver", "paused").out, tmp_path / "out")
    completion = result.ledger["stages"]["completion"]
    assert (completion["requests"], completion["cqes"], completion["joined"]) == (3, 4, 4)
    assert (completion["send_posted"], completion["send_outstanding"]) == (4, 0)
    assert result.ledger["balanced"]
