"""The wrappers of the CUDA driver, and the timeline of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from firmware import doorbell, write_wqe
from hooks_script import Hooks
from test_gpu_hooks import FIRST_QPN, FIRST_UMEM, connect, create, merged

SHIM = "libsigmatrace_gpu.so"
FOUR, FIVE = 11030, 12000  # versions of cuGetProcAddress by the number of its arguments


@pytest.mark.parametrize("how", ["link", "dlsym"])
@pytest.mark.parametrize("abi", [4, 5])
def test_look_up_by_cu_get_proc_address(hooks: Hooks, how: str, abi: int) -> None:
    script = [
        f"ask 6050 {abi} cuMemHostRegister",
        f"ask 4000 {abi} cuMemHostRegister",
        f"ask {FOUR} {abi} cuGetProcAddress",
        f"ask {FIVE} {abi} cuGetProcAddress",
        f"ask 11070 {abi} cuMemGetHandleForAddressRange",
        f"ask 13000 {abi} cuCtxDestroy",
        f"ask 11000 {abi} cuDevicePrimaryCtxReset",
        f"ask 12080 {abi} cuDevicePrimaryCtxRelease",
        f"ask 3020 {abi} cuMemHostUnregister",
        f"ask 1 {abi} cuNothing",
    ]
    told = hooks(script, how=how).answers
    owners = [SHIM] * 8 + ["libcuda.so.1", ""]
    assert [each["owner"] for each in told] == owners
    assert [each["abi"] for each in told[:2]] == [2, 1], "each ABI leads to its own function"
    assert [each["again"] for each in told[2:4]] == [SHIM, SHIM]
    assert [each["same"] for each in told[2:4]] == [1, 0]


def test_look_up_is_left_alone_without_the_layer(hooks: Hooks) -> None:
    script = ["ask 6050 4 cuMemHostRegister", f"ask {FIVE} 5 cuGetProcAddress"]
    for how in ("link", "dlsym"):
        told = hooks(script, how=how, SIGMATRACE_LAYERS="verbs").answers
        assert [each["owner"] for each in told] == ["libcuda.so.1"] * 2


def test_look_up_alone_leaves_no_trace(hooks: Hooks) -> None:
    result = hooks([f"ask {FOUR} 5 cuGetProcAddress"], how="dlsym")
    assert result.answers[0]["owner"] == SHIM and not result.out.exists()


GPU_MEMORY = ["umem 8192 1", "umem 4096 0"]
WRITE = f"put 0 0 {write_wqe(0, FIRST_QPN, 100).hex()}"
RING = f"ring 0 {doorbell(1, FIRST_QPN)}"


@pytest.mark.parametrize("early", ["memory", "register"])
def test_nothing_is_made_below_a_kernel_that_waits_for_the_connection(
    hooks: Hooks, early: str
) -> None:
    """The fake driver ends a program that would wait for the kernel."""
    begin, kernel = ["init", "uar 0"], "cuda 1 0 kernel"
    if early == "memory":
        begin += [*GPU_MEMORY, kernel]
    else:
        begin += ["cuda 1 0 current", "register 0 7", kernel, *GPU_MEMORY]
    rank = hooks([*begin, create(), *connect(0, rlid=1), WRITE, RING, "destroy 0"]).rank()
    assert [op["size_bytes"] for op in rank.records(1)] == [100]
    (pair,) = merged(rank, "mlx5_qp")
    assert (pair["slots"], pair["invalid_slots"], pair["uncopied_slots"]) == (1, 0, 0)


CONNECTED = ["init", "uar 0", *GPU_MEMORY, create(), *connect(0, rlid=1), WRITE]
SECOND = FIRST_QPN + 1
AFTER = [
    *("destroy 0", "umem 8192 1", create(wq_umem_id=FIRST_UMEM + 2), *connect(1, rlid=1)),
    f"put 2 0 {write_wqe(0, SECOND, 28).hex()}",
    *(f"ring 0 {doorbell(1, SECOND)}", "destroy 1"),
]


@pytest.mark.parametrize("how", ["link", "dlsym"])
@pytest.mark.parametrize("end", ["destroy", "reset", "release"])
def test_context_that_ends_below_a_copy(hooks: Hooks, how: str, end: str) -> None:
    """The fake driver ends a program that ends a context in use, or uses one that has ended."""
    script = [*CONNECTED, "cuda 50 0 slow_ms", f"store 0 {doorbell(1, FIRST_QPN)}"]
    script += ["await 1 0 copying", f"end 0 0 {end}", "cuda 0 0 slow_ms", *AFTER]
    result = hooks(script, how=how)
    assert result.answers[script.index(f"end 0 0 {end}")] == 0
    first, second = merged(result.rank(), "mlx5_qp")
    assert (first["slots"], second["slots"], second["uncopied_slots"]) == (1, 1, 0)
    copied = [100] * (1 - first["uncopied_slots"])
    assert [op["size_bytes"] for op in result.rank().records(1)] == [*copied, 28]


def test_context_that_others_keep_is_read_on(hooks: Hooks) -> None:
    rank = hooks([*CONNECTED, "cuda 1 0 kept", "end 0 0 release", RING, "destroy 0"]).rank()
    assert [op["size_bytes"] for op in rank.records(1)] == [100]


def test_context_that_is_remade_at_the_same_address(hooks: Hooks) -> None:
    """Without our knowing; the fake driver ends a program that uses a former stream."""
    rank = hooks([*CONNECTED, "cuda 2 0 life", RING, *AFTER]).rank()
    assert [op["size_bytes"] for op in rank.records(1)] == [28]
    gone, after = merged(rank, "mlx5_qp")
    assert (gone["slots"], gone["uncopied_slots"]) == (1, 1)
    assert (after["slots"], after["uncopied_slots"]) == (1, 0)
    assert rank.end is not None
    assert rank.end["lost"] == {"gpu: slots not copied in time, or whose copy failed": 1}


def test_kernels_are_on_the_same_clock(hooks: Hooks, versioned: Path) -> None:
    result = hooks(["init", "sleep 300"], SIGMATRACE_CUPTI=str(versioned / "cupti.so"))
    rank = result.rank()
    (gpu,) = rank.objects_of("gpu")
    names = {item["id"]: item["name"] for item in rank.objects_of("name")}
    first, second = rank.records(11)
    assert [names[each["name"]] for each in (first, second)] == ["first_kernel", "second_kernel"]
    assert {each["gpu"] for each in (first, second)} == {gpu["id"]}
    assert [each["stream"] for each in (first, second)] == [25, 26]
    assert [each["correlation"] for each in (first, second)] == [5, 6]
    assert [each["blocks"] for each in (first, second)] == [30, 36]
    assert (first["context"], first["threads"]) == (1, 128)
    hz = rank.header["tsc_hz"]
    assert first["duration_tsc"] / hz == pytest.approx(2e-3, rel=0.01)
    assert (second["t_tsc"] - first["t_tsc"]) / hz == pytest.approx(3e-3, rel=0.01)
    assert rank.end is not None and rank.end["lost"]["gpu: kernels that CUPTI dropped"] == 3


def test_kernels_are_not_asked_for_in_mode_aggregate(hooks: Hooks, versioned: Path) -> None:
    cupti = str(versioned / "cupti.so")
    rank = hooks(["init"], SIGMATRACE_CUPTI=cupti, SIGMATRACE_MODE="aggregate").rank()
    assert not rank.records(11) and not rank.objects_of("gpu")


def test_no_cupti_is_said_once(hooks: Hooks) -> None:
    result = hooks(["init", "init", "uar 0", "free 0"], SIGMATRACE_CUPTI="/nowhere/cupti.so")
    assert result.stderr.count("kernels are not recorded: /nowhere/cupti.so") == 1
    assert "shadow" in result.rank().objects_of("mlx5_uar")[0]
    (told,) = result.rank().objects_of("gpu_kernels")
    assert told["not_recorded"] == "/nowhere/cupti.so cannot be loaded"


def test_no_cupti_because_it_was_not_wanted(hooks: Hooks) -> None:
    result = hooks(["init", "init"])
    (told,) = result.rank().objects_of("gpu_kernels")
    assert told["not_recorded"] == "SIGMATRACE_CUPTI=off" and result.stderr == ""


def test_no_kernels_are_missing_in_mode_aggregate(hooks: Hooks) -> None:
    rank = hooks(["init"], SIGMATRACE_MODE="aggregate").rank()
    assert not rank.objects_of("gpu_kernels")


@pytest.mark.parametrize(("error", "name"), [(39, "CUPTI_ERROR_FAKE"), (999, "unknown")])
@pytest.mark.parametrize("devices", [0, 1])
def test_cupti_that_refuses(
    hooks: Hooks, versioned: Path, error: int, name: str, devices: int
) -> None:
    cupti = {"SIGMATRACE_CUPTI": str(versioned / "cupti.so"), "FAKE_CUPTI_ERROR": str(error)}
    result = hooks([f"cuda {devices} 0 devices", "init"], **cupti)
    (told,) = result.rank().objects_of("gpu_kernels")
    has_gpu = devices and (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists())
    none = "" if has_gpu else ": there is no GPU here"
    assert told["not_recorded"] == f"CUPTI refuses, error {error} ({name}){none}"
    assert f"kernels are not recorded: {told['not_recorded']}" in result.stderr
    assert ("another tool may be using it" in result.stderr) == bool(has_gpu)


@pytest.mark.parametrize(
    ("variable", "wrong", "right"),
    [
        ("DOORBELL", ["foo", "SYNC"], ["sync", "copy-first", ""]),
        ("DOORBELL_BATCH", ["abc", "0", "-1", "999999999", "7x", " 5"], ["1", "32768", ""]),
        (
            "POLL_CPUS",
            ["abc", "1,", "3-2", "1-", "-1", "0 1", "1024", ",1"],
            ["0", "0-1", "0,1", "0-0,1", ""],
        ),
    ],
)
def test_wrong_values_are_said_once(
    hooks: Hooks, variable: str, wrong: list[str], right: list[str]
) -> None:
    name = f"SIGMATRACE_{variable}"
    for value in wrong:
        said = hooks(["init", "uar 0"], **{name: value}).stderr
        assert said.count(f"{name}={value}") == 1 and len(said.splitlines()) == 1
    for value in right:
        assert name not in hooks(["init"], **{name: value}).stderr
