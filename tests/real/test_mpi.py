"""MPI programs over libfabric and UCX, judged by what the program itself counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

from sigmatrace import api
from sigmatrace.schema import Fate
from sigmatrace.text import count_text

pytestmark = pytest.mark.real

CAPTURE = Path(sys.executable).with_name("sigmatrace-capture")

PROGRAM = Path(__file__).with_name("mpi_program.py")
PREFIX = Path(sys.prefix)
RANKS = 4
AS_ROOT = {
    name: "1"
    for kind in ("OMPI", "PRTE")
    for name in (f"{kind}_ALLOW_RUN_AS_ROOT", f"{kind}_ALLOW_RUN_AS_ROOT_CONFIRM")
}
MPICH_OFI = {
    "MPI4PY_MPIABI": "mpich",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
}
OPEN_MPI = ["--personality", "ompi", "--map-by", ":OVERSUBSCRIBE"]
OPEN_MPI_UCX = [
    *("--mca", "pml", "ucx", "--mca", "osc", "ucx"),
    *("--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"),
]


@dataclass(frozen=True)
class Mpi:
    name: str
    layer: str
    launcher: str
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)


MPIS = [
    Mpi(
        "mpich-ofi",
        "ofi",
        "mpiexec.hydra",
        environment=MPICH_OFI | {"FI_PROVIDER": "tcp"},
    ),
    Mpi(  # a provider above another one: messages of which the program knows nothing
        "mpich-rxm",
        "ofi",
        "mpiexec.hydra",
        environment=MPICH_OFI | {"FI_PROVIDER": "tcp;ofi_rxm"},
    ),
    Mpi(
        "mpich-ucx",
        "ucp",
        "mpiexec.hydra",
        environment={
            "MPI4PY_MPIABI": "mpich",
            "MPIR_CVAR_CH4_NETMOD": "ucx",
            "MPIR_CVAR_NOLOCAL": "1",
            "UCX_TLS": "tcp,self",
        },
    ),
    Mpi(
        "openmpi-ucx",
        "ucp",
        "prterun",
        options=[*OPEN_MPI, *OPEN_MPI_UCX],
        environment={"MPI4PY_MPIABI": "openmpi", "UCX_TLS": "tcp,self", **AS_ROOT},
        arguments=["no-accumulate"],
    ),
]


@dataclass(frozen=True)
class Traced:
    mpi: Mpi
    truth: dict[int, dict]
    result: api.Result
    sql: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module", params=MPIS, ids=lambda mpi: mpi.name)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    mpi = request.param
    launcher = shutil.which(mpi.launcher, path=str(PREFIX / "bin"))
    assert launcher, f"{mpi.launcher} is not installed"
    folder = tmp_path_factory.mktemp(mpi.name)
    run = folder / "run"
    libraries = f"{PREFIX / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run(
        [
            *(CAPTURE, "-o", run, "--mode", "full"),
            *("--layers", mpi.layer, "--", launcher, *mpi.options, "-n", str(RANKS)),
            *(sys.executable, PROGRAM, folder, *mpi.arguments),
        ],
        env={**os.environ, "LD_LIBRARY_PATH": libraries, **mpi.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    truth = {r: json.loads((folder / f"truth-{r}.json").read_text()) for r in range(RANKS)}
    result = api.run(run, export=["parquet", "json"], out=folder / "out")
    parquet = folder / "out" / "parquet"
    sql = duckdb.connect()
    for table in ("ops", "marks", "processes", "names", "routes", "messages"):
        where = parquet / table
        source = f"{where}/*.parquet" if where.is_dir() else f"{where}.parquet"
        sql.execute(f"create view {table} as select * from read_parquet('{source}')")
    return Traced(mpi, truth, result, sql)


def phase_bytes(traced: Traced, phase: str, op: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(messages with payload, bytes) per (source, destination) inside the region of each rank."""
    rows = traced.sql.execute(
        """
        with bounds as (
            select m.proc, min(m.t_ns) as lo, max(m.t_ns) as hi
            from marks m join names n on n.proc = m.proc and n.name = m.name
            where n.text = ? group by m.proc)
        select s.rank, d.rank, count(*), sum(o.size_bytes)
        from ops o
        join bounds b on b.proc = o.proc and o.t_ns between b.lo and b.hi
        join processes s on s.proc = o.src_proc join processes d on d.proc = o.dst_proc
        where o.op = ? and o.depth = 0 group by all
        """,
        [phase, op],
    ).fetchall()
    return {(s, d): (n, int(size)) for s, d, n, size in rows}


def expected(traced: Traced, phase: str) -> dict[tuple[int, int], tuple[int, int]]:
    return {
        (rank, int(to)): (traced.truth[rank]["messages"][phase][to], size)
        for rank in range(RANKS)
        for to, size in traced.truth[rank]["sent"][phase].items()
    }


@pytest.mark.parametrize("phase", ["point_to_point", "wildcards"])
def test_bytes_and_messages_of_each_pair_are_those_that_the_program_counted(traced, phase):
    assert phase_bytes(traced, phase, op=1) == expected(traced, phase)


@pytest.mark.parametrize("phase", ["point_to_point", "wildcards"])
def test_received_is_what_was_sent(traced, phase):
    """Size for size, pair for pair: a receive that was paired with the wrong send would show."""
    wrong = traced.sql.execute(
        """
        select count(*) from ops s join ops r on r.flow = s.flow
        where s.flow <> 0 and s.op = 1 and r.op = 2 and s.size_bytes <> r.size_bytes
        """
    ).fetchone()[0]
    assert wrong == 0
    received = phase_bytes(traced, phase, op=2)
    if phase == "wildcards":
        # Receives may have been matched before the region of their rank began.
        assert received
    else:
        assert received == expected(traced, phase)


def test_sends_receives_and_matches_are_equal(traced):
    sent, received, matched, uncertain = traced.sql.execute(
        "select sum(sent), sum(received), sum(matched), sum(uncertain) from messages"
    ).fetchone()
    assert sent == received == matched > 0
    assert uncertain == 0
    # MPICH's active messages (accumulate) are untagged, and libfabric does not tell the source:
    # with several senders they have no group, and the ledger says so.
    sends, receives, ambiguous = traced.sql.execute(
        f"""select count(*) filter (op = 1), count(*) filter (op = 2),
        count(*) filter (op = 1 and fate = {int(Fate.SOURCE_AMBIGUOUS)})
        from ops where depth = 0 and op in (1, 2)"""
    ).fetchone()
    assert sends == receives == matched + ambiguous
    assert ambiguous == 0 or traced.mpi.layer == "ofi"


def test_the_summary_judges_the_programs_own_messages(traced):
    """What libfabric's ofi_rxm sends through the provider below it is not the program's."""
    sends, nested, ambiguous = traced.sql.execute(
        f"""select count(*) filter (depth = 0), count(*) filter (depth > 0),
        count(*) filter (depth = 0 and fate = {int(Fate.SOURCE_AMBIGUOUS)})
        from ops where op = 1"""
    ).fetchone()
    assert (nested > 0) == (traced.mpi.name == "mpich-rxm")
    counted = sum(
        count
        for truth in traced.truth.values()
        for phase in ("point_to_point", "wildcards")
        for count in truth["messages"][phase].values()
    )
    matched = sends - ambiguous
    assert matched >= counted and ambiguous < 0.05 * sends
    share = f"{count_text(sends)}, matched {count_text(matched)} ({100 * matched / sends:.1f} %)"
    lines = (traced.result.out / "summary.txt").read_text().splitlines()
    assert {f"sends      {share}", f"receives   {share}"} <= set(lines)
    told = [line for line in lines if line.startswith("nested")]
    assert [line.split(",")[0] for line in told] == [f"nested     sends {count_text(nested)}"] * (
        nested > 0
    )


def test_no_receive_before_its_send(traced):
    early, pairs = traced.sql.execute(
        """
        select count(*) filter (r.t_ns < s.t_ns), count(*)
        from ops s join ops r on r.flow = s.flow where s.flow <> 0 and s.op = 1 and r.op = 2
        """
    ).fetchone()
    assert pairs > 0
    assert early == 0


def test_collectives_move_at_least_what_the_program_asked_for(traced):
    """Algorithms split and forward, so only the total is a bound; the wire is not one to one."""
    moved = sum(size for _, size in phase_bytes(traced, "collectives", op=1).values())
    assert moved >= sum(size for _, size in expected(traced, "collectives").values())


def test_every_record_is_accounted_for(traced):
    assert all(line["ok"] for line in traced.result.ledger["balance"])
    (processes,) = traced.sql.execute("select count(*) from processes where rank >= 0").fetchone()
    assert processes == RANKS
