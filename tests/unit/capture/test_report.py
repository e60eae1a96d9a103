"""The closing report, and the reasons it gives."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from sigmatrace.capture import diagnose, elf, gpu, layers, mentioned, report
from sigmatrace.capture.report import Captured

ONE = Captured(
    host="n1",
    pid=12,
    ppid=11,
    rank=0,
    start_ns=5,
    program="app",
    libraries=(("libfabric", "2.5", "hook"), ("ucp", "1.22.0", "symbol")),
    operations=1234567,
    size_bytes=40_100_000,
    dropped=0,
)


def test_a_process():
    assert ONE.line() == (
        "rank 0 app [n1:12]: libfabric 2.5 (hook), ucp 1.22.0 (symbol);"
        " 1 234 567 operations, 38.2 MiB of trace, 0 dropped"
    )


def test_what_went_wrong_is_in_the_line():
    bad = dataclasses.replace(
        ONE, rank=-1, libraries=(), dropped=7, lost={"no slot": 3}, end="disk full"
    )
    assert bad.line() == (
        "app [n1:12]: no library; 1 234 567 operations, 38.2 MiB of trace, 7 dropped,"
        " no slot: 3, stopped: disk full"
    )
    assert "no end" in dataclasses.replace(ONE, end="").line()


def test_totals():
    lines = report.lines([ONE, dataclasses.replace(ONE, rank=1, dropped=2)])
    assert lines[2] == "2 processes: 2 469 134 operations, 76.5 MiB of trace, 2 dropped"
    assert len(report.lines([ONE])) == 1


def test_marks_are_shown_where_there_are_some():
    marked = dataclasses.replace(ONE, operations=0, marks=16)
    assert "; 0 operations, 16 marks, 38.2 MiB" in marked.line()
    one = dataclasses.replace(ONE, operations=0, marks=1)
    assert "0 operations, 17 marks, " in report.lines([marked, one])[-1]
    assert "mark" not in report.lines([ONE, ONE])[-1]


def test_what_a_gpu_did_is_shown_where_there_is_some():
    told = dataclasses.replace(ONE, doorbells=1, kernels=2, unwatched={"no room": 4})
    assert "operations, 1 doorbell, 2 kernels, 38.2 MiB" in told.line()
    assert told.line().endswith(", 0 dropped, registers not watched (no room): 4")
    assert "doorbell" not in ONE.line() and "kernel" not in ONE.line()


NOT_CHOSEN = "layer cuda is not chosen"


@pytest.mark.parametrize(
    ("recorded", "environment", "said"),
    [
        ({}, {}, []),
        (
            {"doorbells": 2, "unread": 2},
            {"SIGMATRACE_DOORBELL": "off"},
            ["2 doorbells recorded, WQEs not read: SIGMATRACE_DOORBELL=off"],
        ),
        (
            {"doorbells": 1, "unread": 1},
            {},
            [
                "1 doorbell recorded, WQEs not read: it is not known where the rings of their queue"
                " pairs lie"
            ],
        ),
        (
            {"doorbells": 2, "unread": 1},
            {},
            ["2 doorbells recorded, but no operation that moves data was found behind them"],
        ),
        (
            {"kernels": 3, "unwatched": {NOT_CHOSEN: 4, "no room": 1}},
            {},
            [
                "3 kernels recorded",
                f"4 registers of NICs not watched: {NOT_CHOSEN}; use --layers gpu",
                "1 register of NICs not watched: no room",
            ],
        ),
    ],
)
def test_what_was_recorded_though_no_operation_was(recorded, environment, said):
    one = dataclasses.replace(ONE, operations=0, moves_data=False, **recorded)
    idle = dataclasses.replace(ONE, operations=0, moves_data=False)
    assert gpu.instead([idle, one], environment) == said
    attempt = diagnose.Attempt(["true"], ("mlx5dv",))
    for ranks in (False, True):
        reasons = diagnose.nothing_recorded(attempt, ranks, said)
        assert reasons == said if said else "not chosen" in reasons[-1]


def test_half_of_the_layers_of_a_gpu_is_warned_of():
    said = "layers mlx5dv and cuda work together: use --layers gpu"
    assert layers.half_chosen(("ofi", "mlx5dv")) == layers.half_chosen(("cuda",)) == said
    assert layers.half_chosen(("mlx5dv", "cuda")) == layers.half_chosen(("ofi", "verbs")) == ""


def test_a_program_with_marks_alone_does_not_communicate():
    alone = dataclasses.replace(ONE, libraries=(("python", "3.11", "control"),))
    assert not alone.communicates
    assert ONE.communicates
    assert dataclasses.replace(ONE, libraries=alone.libraries + ONE.libraries).communicates


def test_the_next_command():
    assert report.next_command(Path("my run"), "simple", of_job=False) == (
        "next: sigmatrace-pipeline '+run=my run' export=perfetto"
    )
    assert report.next_command(Path("run"), "aggregate", of_job=True) == (
        "next when all ranks have ended: sigmatrace-pipeline +run=run 'export=[json,matrix]'"
    )


def test_many_processes_are_cut_short_but_counted():
    lines = report.lines([ONE] * 100)
    assert lines[-2] == "... and 68 more processes"
    assert lines[-1].startswith("100 processes: 123 456 700 operations")
    assert report.lines([ONE] * 33)[-2] == "... and 1 more process"


def test_descendants_are_found_through_traced_parents():
    def process(pid, ppid, start, host="n1"):
        return dataclasses.replace(ONE, pid=pid, ppid=ppid, start_ns=start, host=host)

    own = [process(20, 10, 1), process(30, 20, 2), process(10, 1, 0)]
    foreign = [process(40, 2, 1), process(20, 10, 1, "n2")]
    assert report.descendants([*own, *foreign], "n1", 10) == own


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    (folder / "a.c").write_text("int main(void) { return 0; }")
    (folder / "mpi.c").write_text("int MPI_Init(int *c, void *v) { return 0; }")
    built = {}
    for name, options in {
        "libmpi.so.12": ["-shared", "-fPIC", "mpi.c", "-Wl,-soname,libmpi.so.12"],
        "static": ["-static", "a.c"],
        "static-pie": ["-static-pie", "a.c"],
        "dynamic": ["a.c"],
        "mpi": ["a.c", "-Wl,--no-as-needed", "./libmpi.so.12"],
        "fabric": ["a.c", "-Wl,--no-as-needed", "-lfabric"],
        "verbs": ["a.c", "-Wl,--no-as-needed", "-libverbs"],
        "libmiddle.so": ["-shared", "-fPIC", "mpi.c", "-Wl,--no-as-needed", "-lfabric"],
        "over": ["a.c", "-Wl,--no-as-needed", "-L.", "-lmiddle"],
    }.items():
        subprocess.run(["gcc", "-o", name, *options], cwd=folder, check=True)
        built[name] = folder / name
    return built


def test_elf(programs):
    assert elf.inspect(programs["static"]).static
    assert elf.inspect(programs["static-pie"]).static
    assert not elf.inspect(programs["dynamic"]).static
    assert elf.inspect(programs["dynamic"]).needed == ("libc.so.6",)
    assert elf.inspect(programs["fabric"]).needed == ("libfabric.so.1", "libc.so.6")
    assert not elf.inspect(programs["dynamic"]).privileged
    assert elf.inspect(Path(__file__)) is None
    assert elf.inspect(Path("/no/such")) is None


def test_all_that_the_loader_would_map(programs):
    over = elf.inspect(programs["over"])
    assert "libfabric.so.1" not in over.needed
    search = {"LD_LIBRARY_PATH": str(programs["over"].parent)}
    assert {"libmiddle.so", "libfabric.so.1"} <= set(elf.with_all_needed(over, search).needed)
    static = elf.inspect(programs["static"])
    assert elf.with_all_needed(static, {}) is static
    gone = dataclasses.replace(over, path=Path("/no/such"))
    assert elf.with_all_needed(gone, {}) is gone


def test_elf_cut_anywhere_is_no_crash(programs, tmp_path):
    data = programs["dynamic"].read_bytes()
    for size in [*range(200), *range(200, len(data), 97)]:
        (tmp_path / "cut").write_bytes(data[:size])
        elf.inspect(tmp_path / "cut")


@pytest.fixture
def reasons(programs):
    """Why a command left no trace; names of ``programs`` in it become their paths."""

    def why(*command, layers=("ofi", "ucp"), environment=None, **more):
        words = [word.format(**programs) for word in command]
        search = {"PATH": "/usr/bin:/bin", **(environment or {})}
        attempt = diagnose.Attempt(words, layers, environment=search, **more)
        return diagnose.nothing_hooked(attempt)

    return why


def test_a_static_program_is_the_reason(reasons, programs):
    said = [f"{programs['static']} is statically linked: nothing can be preloaded into it"]
    assert reasons("{static}") == said
    assert reasons("env", "A=b", "{static}") == said
    assert reasons("sh", "-c", "true; exec '{static}' -x", failed=True) == said


def test_a_layer_that_is_not_traced_is_the_reason(reasons, programs, tmp_path):
    who = f"{programs['fabric']} is linked with layer ofi, which was"
    chosen = [f"{who} not chosen with --layers"]
    built = [f"{who} not built here, see sigmatrace-capture --check"]
    assert reasons("{fabric}", layers=("ucp",)) == chosen
    assert reasons("sh", "-c", "A=1 {fabric} & wait", layers=("ucp",)) == chosen
    search = {"LD_LIBRARY_PATH": str(programs["over"].parent)}
    (over,) = reasons("{over}", layers=("ucp",), environment=search)
    assert over == chosen[0].replace(str(programs["fabric"]), str(programs["over"]))
    assert reasons("{fabric}", layers=("ucp",), unbuilt=("ofi",)) == built
    script = tmp_path / "job.sh"
    script.write_text(f"# {programs['static']}\n{programs['fabric']} --quick\n")
    assert reasons("sh", str(script), layers=("ucp",)) == chosen


def test_a_program_that_should_have_been_seen_is_named(reasons, programs):
    (said,) = reasons("sh", "-c", "{fabric}")
    assert said.startswith(f"{programs['fabric']} is linked with layer ofi, but called nothing")


def test_layers_that_the_command_does_not_tell_of(reasons):
    assert reasons("{dynamic}") == [
        "no process used libfabric or libucp, or LD_PRELOAD did not reach it"
    ]
    assert reasons("{dynamic}", layers=("ucp",))[1:] == ["layer ofi was not chosen with --layers"]
    assert reasons("{dynamic}", layers=("ucp",), unbuilt=("ofi",))[1:] == [
        "layer ofi was not built here, see sigmatrace-capture --check"
    ]
    assert len(reasons("{dynamic}", layers=("ofi", "uct"))) == 1  # UCT sees what UCP sends


def test_layers_are_not_missed_by_a_program_of_one_that_was_traced(reasons, programs):
    """Who chose the layer of the program needs no other one, but an RDMA device."""
    who = f"{programs['verbs']} is linked with layer verbs, but"
    said = [f"{who} opened no RDMA device, or LD_PRELOAD did not reach it"]
    assert reasons("{verbs}", layers=("verbs",)) == said
    failed = "the command failed, perhaps before it communicated"
    assert reasons("{verbs}", layers=("verbs",), failed=True) == [
        failed,
        "no RDMA device was opened",
    ]
    assert reasons("{fabric}", failed=True) == [failed]
    several = ["layers ofi, ucp were not chosen with --layers"]
    assert reasons("{dynamic}", layers=("verbs",), failed=True) == [failed, *several]
    quiet = diagnose.Attempt([str(programs["verbs"])], ("verbs",))
    assert diagnose.nothing_recorded(quiet, ranks=False) == [
        "the libraries were loaded, but no message went through them"
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["env", "-u", "LD_PRELOAD", "{dynamic}"],
        ["env", "-i", "{dynamic}"],
        ["sh", "-c", "unset LD_PRELOAD; {dynamic}"],
        ["sh", "-c", "LD_PRELOAD= {dynamic}"],
        ["sh", "-c", "/usr/bin/env - {dynamic}"],
    ],
)
def test_a_cleared_environment_is_the_reason(reasons, command):
    assert reasons(*command) == ["the command changes LD_PRELOAD, by which its programs are traced"]


def test_a_failed_command_is_the_reason(reasons):
    assert reasons("{dynamic}", failed=True) == [
        "the command failed, perhaps before it communicated"
    ]


def test_mpi_is_told_how_to_leave_its_shared_memory(reasons):
    mpich = reasons("{mpi}")
    assert "shared memory" in mpich[0]
    assert any("MPIR_CVAR_NOLOCAL=1" in line for line in mpich)
    assert not any("Open MPI" in line for line in mpich)
    assert reasons("sh", "-c", "{mpi}") == mpich
    open_mpi = reasons("{dynamic}", environment={"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"})
    assert any("--mca pml ucx" in line for line in open_mpi)
    assert not any("MPIR_CVAR" in line for line in open_mpi)


def test_mpi_is_told_of_paths_through_traced_layers_alone(reasons):
    said = reasons("{mpi}", layers=("ucp",))
    assert any("MPICH over UCX" in line for line in said)
    assert not any("MPICH over libfabric" in line for line in said)
    assert said[0] == "layer ofi was not chosen with --layers"
    intel = reasons("{mpi}", layers=("ucp",), environment={"I_MPI_ROOT": "/opt"})
    assert intel == ["layer ofi was not chosen with --layers"]


def test_a_library_that_carried_nothing():
    quiet = diagnose.Attempt(["true"], ("ofi", "ucp"))
    assert diagnose.nothing_recorded(quiet, ranks=False) == [
        "the libraries were loaded, but no message went through them"
    ]
    failed = dataclasses.replace(quiet, failed=True)
    assert diagnose.nothing_recorded(failed, ranks=False) == [
        "the command failed, perhaps before it communicated"
    ]
    assert "shared memory" in diagnose.nothing_recorded(quiet, ranks=True)[0]


def test_endless_words_are_cut(tmp_path):
    script = tmp_path / "long.sh"
    script.write_text(" ".join(map(str, range(100_000))))
    assert len(mentioned.words(["sh", str(script)], "/usr/bin")) == 2000
    script.write_text(str(script))  # names itself
    assert mentioned.words([str(script)], "") == [str(script)] * 2


def test_libraries_among_the_arguments_are_no_programs(programs):
    said = [str(programs[name]) for name in ("dynamic", "libmiddle.so", "libmpi.so.12")]
    assert [one.path for one in mentioned.programs(said, {})] == [programs["dynamic"]]


def test_a_setuid_program_of_another_user(programs, monkeypatch, tmp_path):
    path = Path(shutil.copy(programs["dynamic"], tmp_path / "setuid"))
    path.chmod(0o4755)
    assert not elf.inspect(path).privileged
    monkeypatch.setattr(elf.os, "getuid", lambda: 12345)
    assert elf.inspect(path).privileged
