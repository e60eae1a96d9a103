"""The closing report, and the reasons it gives."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from sigmatrace.capture import diagnose, elf, report
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
        " 1,234,567 operations, 40.1 MB of trace, 0 dropped"
    )


def test_what_went_wrong_is_in_the_line():
    bad = dataclasses.replace(
        ONE, rank=-1, libraries=(), dropped=7, lost={"no slot": 3}, end="disk full"
    )
    assert bad.line() == (
        "app [n1:12]: no library; 1,234,567 operations, 40.1 MB of trace, 7 dropped,"
        " no slot: 3, stopped: disk full"
    )
    assert "no end" in dataclasses.replace(ONE, end="").line()


def test_totals_and_the_next_command():
    lines = report.lines([ONE, dataclasses.replace(ONE, rank=1, dropped=2)], Path("my run"))
    assert lines[2] == "2 processes: 2,469,134 operations, 80.2 MB of trace, 2 dropped"
    assert lines[3] == "next: sigmatrace-pipeline '+run=my run' export=perfetto"
    assert len(report.lines([ONE], Path("run"))) == 2


def test_many_processes_are_cut_short_but_counted():
    lines = report.lines([ONE] * 100, Path("run"))
    assert lines[-3] == "... and 68 more processes"
    assert lines[-2].startswith("100 processes: 123,456,700 operations")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (12_340_000, "12.3 MB"),
        (123_400_000_000, "123 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes(size, text):
    assert f"{text} of trace" in dataclasses.replace(ONE, size_bytes=size).line()


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


def test_elf_cut_anywhere_is_no_crash(programs, tmp_path):
    data = programs["dynamic"].read_bytes()
    for size in [*range(200), *range(200, len(data), 97)]:
        (tmp_path / "cut").write_bytes(data[:size])
        elf.inspect(tmp_path / "cut")


def test_reasons(programs):
    def reasons(*command, layers=("ofi", "ucp"), environment=None):
        words = [str(programs.get(word, word)) for word in command]
        return diagnose.nothing_hooked(words, layers, {"PATH": "/usr/bin", **(environment or {})})

    assert "statically linked" in reasons("static")[0]
    assert "statically linked" in reasons("env", "A=b", "static")[0]
    assert "RTLD_DEEPBIND" in reasons("dynamic")[0]
    assert "only ucp was chosen and is built" in reasons("fabric", layers=("ucp",))[0]
    assert "shared memory" in reasons("mpi")[0]
    assert any("MPIR_CVAR_NOLOCAL=1" in line for line in reasons("mpi"))
    assert not any("Open MPI" in line for line in reasons("mpi"))
    open_mpi = reasons("dynamic", environment={"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"})
    assert any("--mca pml ucx" in line for line in open_mpi)
    assert not any("MPIR_CVAR" in line for line in open_mpi)


def test_a_setuid_program_of_another_user(programs, monkeypatch, tmp_path):
    path = Path(shutil.copy(programs["dynamic"], tmp_path / "setuid"))
    path.chmod(0o4755)
    assert not elf.inspect(path).privileged
    monkeypatch.setattr(elf.os, "getuid", lambda: 12345)
    assert elf.inspect(path).privileged
