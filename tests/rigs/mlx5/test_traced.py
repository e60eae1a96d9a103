"""What is traced of GPU-initiated operations is what the emulated NIC executed, slot by slot: the
cases of ``make gpu-test`` one by one, on the stand-in for a GPU."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from native_run import shim_in

from sigmatrace import api
from sigmatrace.trace_format import Op
from tests.rigs.mlx5.emulated import ALL, ROOMY, Emulated
from tests.rigs.mlx5.gpu import cases, judge
from tests.rigs.mlx5.gpu.cases import Case
from tests.rigs.mlx5.gpu.runner import Runner

OPS, MANY, SLOW = 24, 48, 48
SIZES = ("ops=150", "blocks=4", "threads=2", "qps=2")


@pytest.fixture
def runner(emulated: Emulated, shim: Path, tmp_path: Path) -> Runner:
    return Runner(emulated, shim, tmp_path, str(emulated.built.driver / "libcupti.so.13"))


@pytest.mark.parametrize("case", cases.single(OPS, MANY, SLOW), ids=lambda case: case.name)
def test_one_process(runner: Runner, case: Case) -> None:
    assert cases.run(runner, case)


@pytest.mark.parametrize("case", cases.pairs(300), ids=lambda case: case.name)
def test_two_processes(runner: Runner, case: Case) -> None:
    assert cases.run(runner, case)


def test_the_index_wraps(runner: Runner) -> None:
    assert cases.run(runner, cases.wrap(70_000))


def test_doorbells_alone(runner: Runner) -> None:
    assert cases.doorbells_alone(runner, 150)


@pytest.mark.parametrize("reread", ["0", "1"])
def test_a_nic_that_stands_still(runner: Runner, reread: str) -> None:
    """Its answer to a repeated doorbell may overtake what was forwarded; that is not silent."""
    options = (ALL, "ops=300", "slots=64", "qps=2", "blocks=2")
    stalls = {"MLX5EMU_STALL_US": "3000", "MLX5EMU_STALL_EACH_US": "3000"}
    with runner.traced(*options, **stalls, MLX5EMU_REREAD=reread) as (traced,):
        judge.slot_by_slot(traced, whole=False)


@pytest.mark.parametrize("memory", ["gpu", "host"])
def test_where_the_driver_knows_io_memory(runner: Runner, memory: str) -> None:
    """Registers are IO memory, the NIC reaches the GPU's memory by itself, nothing is stripped."""
    options = (ALL, f"memory={memory}", *SIZES, ROOMY)
    env = {"LD_PRELOAD": str(runner.shim), "FAKE_CUDA_MMIO": "1", "MLX5EMU_COPIES": "0"}
    with runner.traced(*options, **env) as (traced,):
        judge.slot_by_slot(traced)


@pytest.mark.parametrize("traced", [False, True])
def test_queue_pairs_of_one_register_lock_its_page_once(runner: Runner, traced: bool) -> None:
    """A driver refuses to lock a page twice: the register's, and that of what stands for it."""
    options = ("make=verbs", "dialect=rdma", "qps=4", "blocks=4", "mix=write,read", "slots=16")
    start = runner.traced if traced else runner.plain
    with start(*options, MLX5EMU_QP_REGISTERS="1") as (found,):
        node = found.node if isinstance(found, judge.Traced) else found
        judge.went_well(node)
        assert len(node.posted) == 4


@pytest.mark.parametrize("make", ["devx", "verbs"])
def test_whom_a_dci_reaches_is_known(runner: Runner, tmp_path: Path, make: str) -> None:
    """DC targets are made by mlx5dv_create_qp, and get their number when they become ready."""
    options = (f"make={make}", "dialect=rdma", "dci=1", "mix=write,read,add", "ops=60", ROOMY)
    out = tmp_path / "trace"
    with runner.traced(*options, ranks=2, SIGMATRACE_OUT=str(out)) as found:
        for traced in found:
            judge.slot_by_slot(traced)
    result = api.run(out, ["parquet"])
    sql = duckdb.connect(config={"file_search_path": str(result.out)})
    reached = sql.execute(
        f"select src_proc, dst_proc, count(*) from 'parquet/ops/*.parquet' where op <> {Op.NOP:d}"
        " group by all order by all"
    )
    assert reached.fetchall() == [(0, 1, 60), (1, 0, 60)]


@pytest.mark.parametrize("dialect", ["rdma", "rocshmem"])
def test_queue_pairs_that_libmlx5_made(runner: Runner, tmp_path: Path, dialect: str) -> None:
    """Their rings are read before they are freed; none is left to the NIC's own recovery."""
    options = (ALL, f"dialect={dialect}", "make=verbs", "qps=4", "blocks=4", "ops=200", ROOMY)
    out = tmp_path / "trace"
    env = {"MLX5EMU_RECOVER_US": "0", "MLX5EMU_REREAD": "0", "SIGMATRACE_OUT": str(out)}
    with runner.traced(*options, **env) as (traced,):
        judge.slot_by_slot(traced)
        doorbells = traced.rank.records(judge.DOORBELL)
        assert doorbells["slots"].sum() == traced.node.total("slots")
        total = traced.node.total("slots")
    doorbell = api.run(out, ["json"]).ledger["stages"]["doorbell"]
    decoded = sum(doorbell[kind] for kind in ("wqes", "invalid"))
    assert (doorbell["read"], doorbell["invalid"]) == (total, 0) and 0 < decoded <= total
    assert doorbell["queue_pairs_not_compared"] == 0


@pytest.mark.parametrize("more", [(), ("dci=1",)], ids=["rc", "dci"])
def test_beside_the_shim_of_layer_verbs(runner: Runner, more: tuple[str, ...]) -> None:
    """The GPU's stands first and passes calls on: both see a queue pair's end, each once."""
    verbs = shim_in(runner.shim.parent, "verbs")
    options = (ALL, "dialect=rdma", "make=verbs", "qps=2", "blocks=2", "ops=100", ROOMY, *more)
    env = {"SIGMATRACE_LAYERS": "verbs,gpu", "MLX5EMU_REREAD": "0"}
    env["LD_PRELOAD"] = f"{runner.shim} {verbs} {runner.emulated.built.strip}"
    with runner.traced(*options, **env) as (traced,):
        judge.slot_by_slot(traced)
        rank = traced.rank
    ended = [qp for qp in rank.objects_of("ib_qp").values() if "closed_tsc" in qp]
    totals = [qp["slots"] for qp in rank.objects_of("mlx5_qp").values() if qp.get("slots")]
    assert len(ended) == len(totals) == 2
    assert sum(totals) == traced.node.total("slots")


def test_behind_the_shim_of_layer_verbs(runner: Runner) -> None:
    """Its wrappers hide the ends of queue pairs and of the device; nothing breaks."""
    verbs = shim_in(runner.shim.parent, "verbs")
    options = (ALL, "dialect=rdma", "make=verbs", "qps=2", "blocks=2", "ops=100", ROOMY)
    env = {"SIGMATRACE_LAYERS": "verbs,gpu", "MLX5EMU_REREAD": "0"}
    env["LD_PRELOAD"] = f"{verbs} {runner.shim} {runner.emulated.built.strip}"
    with runner.traced(*options, **env) as (traced,):
        judge.went_well(traced.node)
        assert len(traced.rank.objects_of("ib_qp")) == 2
