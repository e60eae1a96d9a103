"""The rig is right by itself: all memory is verified by the program, and what it posted is what the
NIC counted, in each way of ringing and of setting up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rigs.mlx5.emulated import ALL, DIALECTS, Emulated, Node

NOP, WRITE, WRITE_IMM, SEND = 0x00, 0x08, 0x09, 0x0A
QP_OPERATION, LOCAL_PROTECTION, FLUSHED, REMOTE_ACCESS = 0x02, 0x04, 0x05, 0x13


def check(node: Node) -> None:
    """Nothing went wrong, and the three accounts of it agree."""
    assert (node.returncode, node.stderr) == (0, "")
    assert [found["wrong"] for found in node.rounds] == [0] * len(node.rounds)
    assert node.posted == node.executed == node.journal
    assert node.nic["bad_doorbells"] == 0
    assert node.total("errors") == 0


@pytest.mark.parametrize(("dialect", "uar"), DIALECTS.items())
def test_each_dialect_from_many_blocks(
    emulated: Emulated, tmp_path: Path, dialect: str, uar: str
) -> None:
    sizes = ("ops=150", "blocks=4", "threads=2", "qps=2", "slots=64")
    options = (ALL, f"dialect={dialect}", f"uar={uar}", *sizes)
    (node,) = emulated.pair(tmp_path / "run", *options)
    check(node)
    assert len(node.posted) == 2
    assert node.total("from_record") == 0
    assert node.total("doorbells") > 0


@pytest.mark.parametrize(
    "options",
    [
        ("memory=dmabuf",),
        ("memory=host",),
        ("dci=1",),
        ("dci=1", "av=long"),
        ("make=verbs", "dialect=rdma"),
        ("make=verbs", "dialect=rocshmem"),
        ("group=16", "bytes=100001"),
        ("slots=16", "ops=1000"),
        ("receives=1", "qps=2", "blocks=2"),
    ],
    ids=" ".join,
)
def test_each_way_of_setting_up(
    emulated: Emulated, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (node,) = emulated.pair(tmp_path / "run", ALL, *options)
    check(node)
    assert node.total("from_record") == 0


@pytest.mark.parametrize("uar", ["shared", "plain"])
def test_a_shared_register_loses_values_that_its_records_bring_back(
    emulated: Emulated, tmp_path: Path, uar: str
) -> None:
    options = (ALL, f"uar={uar}", "qps=4", "blocks=4", "ops=300")
    (node,) = emulated.pair(tmp_path / "run", *options)
    check(node)
    assert len(node.posted) == 4


@pytest.mark.parametrize(
    "options",
    [
        (ALL, "ops=300"),
        (ALL, "ops=100", "dci=1", "av=long"),
        (ALL, "ops=100", "make=verbs", "dialect=rocshmem"),
        ("mix=write,read", "ops=20", "bytes=1000000", "group=4"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("link", ["infiniband", "ethernet"])
def test_two_processes(
    emulated: Emulated, tmp_path: Path, options: tuple[str, ...], link: str
) -> None:
    nodes = emulated.pair(tmp_path / "run", *options, ranks=2, MLX5EMU_LINK=link)
    for node in nodes:
        check(node)
    assert {node.nic["lid"] for node in nodes} == {1, 2}


@pytest.mark.parametrize("ranks", [1, 2])
def test_sends_and_immediates_take_receives(emulated: Emulated, tmp_path: Path, ranks: int) -> None:
    for kind, opcode in (("send", SEND), ("imm", WRITE_IMM)):
        options = (f"mix={kind},write", "ops=200", "qps=2", "blocks=4")
        for node in emulated.pair(tmp_path / kind, *options, ranks=ranks):
            check(node)
            assert node.total("received") == 400
            assert [counts[opcode][0] for counts in node.posted.values()] == [200, 200]


def test_four_processes_in_a_ring(emulated: Emulated, tmp_path: Path) -> None:
    nodes = emulated.pair(tmp_path / "run", ALL, "ops=60", ranks=4)
    for node in nodes:
        check(node)
    assert {node.nic["lid"] for node in nodes} == {1, 2, 3, 4}


def test_a_wqe_of_several_slots_is_followed_by_a_nop(emulated: Emulated, tmp_path: Path) -> None:
    (node,) = emulated.pair(tmp_path / "run", "mix=long,swap8", "ops=100")
    check(node)
    assert [wqe.slots for wqe in node.wqes] == [2, 1] * 100
    assert [wqe.opcode for wqe in node.wqes[1::2]] == [NOP] * 100
    assert [wqe.index for wqe in node.wqes] == [i for k in range(100) for i in (3 * k, 3 * k + 2)]


def test_the_index_wraps(emulated: Emulated, tmp_path: Path) -> None:
    options = ("mix=inline", "ops=70000", "group=64")
    (node,) = emulated.pair(tmp_path / "run", *options)
    check(node)
    assert [wqe.index for wqe in node.wqes] == [i % 65536 for i in range(70000)]


@pytest.mark.parametrize(
    ("fault", "syndrome"),
    [
        ("remote_key", REMOTE_ACCESS),
        ("bounds", REMOTE_ACCESS),
        ("local_key", LOCAL_PROTECTION),
        ("index", QP_OPERATION),
        ("number", QP_OPERATION),
        ("opcode", QP_OPERATION),
    ],
)
def test_a_fault_is_found_and_what_follows_is_flushed(
    emulated: Emulated, tmp_path: Path, fault: str, syndrome: int
) -> None:
    options = ("mix=write", "ops=1000", f"fault={fault}", "slots=64")
    (node,) = emulated.pair(tmp_path / "run", *options)
    assert node.returncode == 1
    assert [qp["error"] for qp in node.program["qps"]] == [1]
    assert node.executed == {}
    assert node.wqes[0].syndrome == syndrome
    assert {wqe.syndrome for wqe in node.wqes[1:]} <= {FLUSHED}


def test_a_reset_begins_a_new_life(emulated: Emulated, tmp_path: Path) -> None:
    for ranks in (1, 2):
        options = (ALL, "ops=70", "qps=2", "blocks=2", "lives=3")
        for node in emulated.pair(tmp_path / str(ranks), *options, ranks=ranks):
            check(node)
            assert [life["slots"] > 0 for life in node.nic["lives"]] == [True] * 6
            assert sum(wqe.index == 0 for wqe in node.wqes) == 6


def test_numbers_are_used_again(emulated: Emulated, tmp_path: Path) -> None:
    options = (ALL, "ops=70", "qps=2", "blocks=2", "rounds=3")
    (node,) = emulated.pair(tmp_path / "run", *options)
    check(node)
    qpns = [[qp["qpn"] for qp in found["qps"]] for found in node.rounds]
    assert len(qpns) == 3 and qpns[0] == qpns[1] == qpns[2]


def test_times_are_measured(emulated: Emulated, tmp_path: Path) -> None:
    (node,) = emulated.pair(tmp_path / "run", "mode=time", "mix=read", "ops=50", "warmup=10")
    check(node)
    ns = node.program["ns"]
    assert 0 < ns["p50"] <= ns["p90"] <= ns["p99"]


def test_processes_play_ping_pong(emulated: Emulated, tmp_path: Path) -> None:
    for node in emulated.pair(tmp_path / "run", "mode=pingpong", "ops=30", ranks=2):
        check(node)
        assert [counts[WRITE] for counts in node.posted.values()] == [(30, 240)]


def test_a_slow_engine_changes_nothing(emulated: Emulated, tmp_path: Path) -> None:
    options = (ALL, "ops=200", "slots=32", "qps=2", "blocks=2")
    (node,) = emulated.pair(tmp_path / "run", *options, MLX5EMU_DELAY_NS="200000")
    check(node)
    (node,) = emulated.pair(
        tmp_path / "stalls", *options, MLX5EMU_STALL_US="3000", MLX5EMU_STALL_EACH_US="2000"
    )
    check(node)


def test_memory_is_reached_by_the_driver(emulated: Emulated, tmp_path: Path) -> None:
    """As with a real GPU: the engine neither loads nor stores in the GPU's memory."""
    sizes = ("ops=100", "qps=2", "blocks=2")
    cases = [("memory=gpu", *sizes), ("memory=host", *sizes), ("bytes=100000", "ops=30")]
    for i, options in enumerate([*cases, ("dci=1", "av=long", *sizes)]):
        (node,) = emulated.pair(tmp_path / str(i), ALL, *options, MLX5EMU_COPIES="1")
        check(node)
    for node in emulated.pair(tmp_path / "two", ALL, *sizes, ranks=2, MLX5EMU_COPIES="1"):
        check(node)


def test_the_shim_for_the_real_driver(emulated: Emulated, tmp_path: Path) -> None:
    """The stand-in behaves as the real driver does: registers are ordinary memory to it."""
    (node,) = emulated.pair(tmp_path / "without", ALL, FAKE_CUDA_MMIO="0")
    assert "cuMemHostRegister failed (1)" in node.stderr
    options = (ALL, "memory=dmabuf", "qps=6", "blocks=6", "rounds=2")
    shim = str(emulated.built.strip)
    (node,) = emulated.pair(tmp_path / "with", *options, LD_PRELOAD=shim, FAKE_CUDA_MMIO="0")
    check(node)


def test_queue_pairs_of_one_register(emulated: Emulated, tmp_path: Path) -> None:
    """As libmlx5 has them where there are many; the page is locked once, by the library below."""
    options = (ALL, "make=verbs", "dialect=rdma", "qps=6", "blocks=6", "ops=50")
    env = {"LD_PRELOAD": str(emulated.built.strip), "FAKE_CUDA_MMIO": "0"}
    (node,) = emulated.pair(tmp_path / "run", *options, MLX5EMU_QP_REGISTERS="2", **env)
    check(node)
    assert len(node.posted) == 6


@pytest.mark.parametrize("make", ["devx", "verbs"])
def test_a_dci_of_two_processes(emulated: Emulated, tmp_path: Path, make: str) -> None:
    options = (ALL, "dci=1", f"make={make}", "dialect=rdma", "ops=50")
    for node in emulated.pair(tmp_path / "run", *options, ranks=2):
        check(node)


def test_queue_pairs_that_are_given_up(emulated: Emulated, tmp_path: Path) -> None:
    options = ("mix=write", "ops=50", "abandon=1")
    env = {"MLX5EMU_STALL_US": "200000", "MLX5EMU_STALL_EACH_US": "0"}
    (node,) = emulated.pair(tmp_path / "run", *options, **env)
    assert (node.returncode, node.stderr) == (0, "")
    assert sum(count for of in node.posted.values() for count, _ in of.values()) == 50
    assert node.total("slots") < 50


def _said(program: Path, emulated: Emulated, *options: str) -> tuple[int, str, str]:
    env = emulated.environment(Path())
    done = subprocess.run([program, *options], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["pair", "bfs"])
def test_programs_list_their_options(emulated: Emulated, name: str) -> None:
    code, printed, errors = _said(getattr(emulated.built, name), emulated, "--help")
    assert (code, errors) == (0, "")
    assert "kernel=FILE" in printed and "gpus=N" in printed


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("kernel=/nowhere/kernel.so",), "/nowhere/kernel.so: the kernels cannot be read"),
        (("size=2",), "folder: several processes meet in folder=PATH"),
        (("size=2", "folder=/nowhere"), "/nowhere: several processes meet in folder=PATH"),
        (("nice=1",), "nice: no such option"),
        (("dialect=french",), "french: no such choice"),
        (("ops",), "ops: not NAME=VALUE"),
    ],
)
def test_what_is_missing_is_one_line(
    emulated: Emulated, options: tuple[str, ...], why: str
) -> None:
    kernel = f"kernel={emulated.built.kernels}"
    code, printed, errors = _said(emulated.built.pair, emulated, kernel, *options)
    assert (code, printed) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith(f"gpu_pair: {why}")
