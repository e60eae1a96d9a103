"""``sigmatrace-pack`` as a user meets it, and the pipeline on what it wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sigmatrace.capture import pack, packing
from sigmatrace.testing.synthetic import generate
from sigmatrace.testing.write import header_item, records, ring_file
from sigmatrace.trace_format import Schema
from tests.outputs import files
from tests.permissions import obeying
from tests.pipeline.conftest import Spoken, Synthetic

KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
from pathlib import Path
from sigmatrace.capture import pack
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
Path.rename = Path.replace = die
pack.main(sys.argv[1:])
"""


@pytest.fixture
def spoken(capsys: pytest.CaptureFixture[str]) -> Callable[..., Spoken]:
    def run(*words: object) -> Spoken:
        code = pack.main([*map(str, words)])
        return Spoken(code, *capsys.readouterr())

    return run


def size(folder: Path) -> int:
    return sum(map(len, files(folder).values()))


def test_pack_and_back(small: Path, spoken: Callable[..., Spoken]) -> None:
    before = files(small)
    said = spoken(small)
    folder = small.with_name("run-packed")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("packed 2 files, 200 events: ")
    assert said.out.endswith(f" B/event; in {folder}\n")
    assert size(folder) < size(small)
    assert files(small) == before
    said = spoken(folder, "--unpack")
    assert said.out.startswith("unpacked 2 files, 200 events: ")
    assert files(small.with_name("run-unpacked")) == before
    assert sorted(x.name for x in small.parent.iterdir()) == ["run", "run-packed", "run-unpacked"]


def test_in_place_and_back(small: Path, spoken: Callable[..., Spoken]) -> None:
    before = files(small)
    assert spoken(small, "--in-place").code == 0
    packed = files(small)
    assert packed.keys() == before.keys()
    assert all(len(packed[name]) < len(before[name]) for name in before)
    first = min(before)
    said = spoken(small, "--in-place")
    assert said.code == 0
    assert f"already packed, or no smaller so, kept as is: 2 files ({first})\n" in said.out
    assert files(small) == packed
    assert spoken(small, "--in-place", "--unpack").code == 0
    assert files(small) == before
    said = spoken(small, "--in-place", "--unpack")
    assert said.code == 0
    assert f"not packed before, kept as is: 2 files ({first})\n" in said.out
    assert files(small) == before


def test_in_place_a_link_stays_and_its_file_is_replaced(
    small: Path, tmp_path: Path, spoken: Callable[..., Spoken]
) -> None:
    before = files(small)
    store = tmp_path / "store"
    store.mkdir()
    first, second = sorted(small.iterdir())
    for number, path in enumerate((first, second)):
        path.symlink_to(path.rename(store / f"part-{number}.msgpack"))
    (small / "again.msgpack").symlink_to(second)
    said = spoken(small, "--in-place")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("packed 2 files, 200 events: ")
    assert all(path.is_symlink() for path in small.iterdir())
    assert sorted(one.name for one in store.iterdir()) == ["part-0.msgpack", "part-1.msgpack"]
    assert all(
        len(data) < len(before[name]) for name, data in files(small).items() if name in before
    )
    assert spoken(small, "--in-place", "--unpack").code == 0
    assert {name: data for name, data in files(small).items() if name in before} == before


def test_in_place_a_link_to_a_file_that_is_still_written_is_left_alone(
    small: Path, tmp_path: Path, spoken: Callable[..., Spoken]
) -> None:
    first = min(small.iterdir())
    first.symlink_to(first.rename(tmp_path / "elsewhere.msgpack"))
    (tmp_path / "elsewhere.ring").write_bytes(ring_file([]))
    before = first.read_bytes()
    said = spoken(small, "--in-place")
    assert said.code == 0
    assert f"its process may still run: 1 file ({first.name})" in said.out
    assert first.read_bytes() == before


def test_what_is_packed_by_its_name_is_not_packed_again_beside_itself(
    small: Path, spoken: Callable[..., Spoken]
) -> None:
    for words, state in (((), "packed"), (("--unpack",), "unpacked")):
        folder = small.rename(small.with_name(f"run-{state}"))
        before = files(folder)
        said = spoken(folder, *words)
        assert (said.code, said.out) == (6, "")
        assert f"error: {folder} is already {state}, by its name: " in said.err
        assert files(folder) == before
        assert [one.name for one in small.parent.iterdir()] == [folder.name]
        folder.rename(small)


def test_a_run_of_mode_simple_takes_few_bytes(tmp_path: Path) -> None:
    generate(tmp_path / "run", ranks=4, events=100_000, peers=8)
    done = packing.beside(tmp_path / "run", tmp_path / "out", unpack=False)
    assert sum(one.records for one in done.files) == 100_000
    assert sum(one.record_bytes for one in done.files) <= 6.75 * 100_000


def test_the_pipeline_computes_the_same(
    synthetic: Synthetic, tmp_path: Path, spoken: Callable[..., Spoken]
) -> None:
    from sigmatrace import api

    assert spoken(synthetic.folder, "-o", tmp_path / "packed").code == 0
    results = []
    for number, run in enumerate((synthetic.folder, tmp_path / "packed")):
        out = tmp_path / f"out{number}"
        api.run(run, export=["parquet", "json", "csv", "perfetto"], out=out)
        results.append(out)
    one, other = results
    there = str(tmp_path / "packed").encode(), str(synthetic.folder).encode()
    names = sorted(str(x.relative_to(one)) for x in one.rglob("*") if x.is_file())
    assert names == sorted(str(x.relative_to(other)) for x in other.rglob("*") if x.is_file())
    for name in names:
        if name.endswith(".parquet"):
            tables = [pq.read_table(folder / name) for folder in results]
            first, second = (x.drop(["path"]) if "path" in x.column_names else x for x in tables)
            assert first.equals(second), name
        elif name.endswith((".csv", ".pftrace")):
            first, second = ((folder / name).read_bytes() for folder in results)
            assert first == second.replace(*there), name
    records_of = [json.loads((x / "ledger.json").read_text())["records"] for x in results]
    assert records_of[0] == records_of[1]


def test_a_damaged_run_says_so(small: Path, spoken: Callable[..., Spoken]) -> None:
    first, second = sorted(small.glob("*.msgpack"))
    data = bytearray(first.read_bytes())
    data[-700] ^= 4
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-5])
    (small / "foreign.msgpack").write_bytes(b"something else")
    before = files(small)
    said = spoken(small)
    assert said.code == 0
    assert "damaged or cut, " in said.out
    assert f" bytes, kept as is: 2 files ({first.name})\n" in said.out
    assert f"without an end item: 1 file ({second.name})\n" in said.out
    assert "of another format, kept as is: 1 file (foreign.msgpack)\n" in said.out
    assert spoken(small.with_name("run-packed"), "--unpack", "-o", small.with_name("b")).code == 0
    assert files(small.with_name("b")) == before


def with_ring(folder: Path) -> Path:
    path = min(folder.glob("*.msgpack"))
    ring = path.with_suffix(".ring")
    ring.write_bytes(ring_file([(Schema.OP, 77, 0, records(Schema.OP, 5, op=1))]))
    return ring


def test_ring_files_are_copied_and_their_files_not_replaced(
    small: Path, spoken: Callable[..., Spoken]
) -> None:
    ring = with_ring(small)
    before = files(small)
    said = spoken(small)
    assert f"ring files of killed processes, copied: 1 file ({ring.name})\n" in said.out
    packed = files(small.with_name("run-packed"))
    assert packed[ring.name] == before[ring.name]
    said = spoken(small, "--in-place")
    name = ring.with_suffix(".msgpack").name
    assert f"and its process may still run: 1 file ({name})\n" in said.out
    after = files(small)
    assert {x for x in before if before[x] == after[x]} == {name, ring.name}


@pytest.mark.parametrize("way", [["--in-place"], []])
def test_a_file_that_grows_meanwhile_is_refused(
    small: Path, spoken: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch, way: list[str]
) -> None:
    path = min(small.glob("*.msgpack"))
    rewrite = packing.rewrite

    def slow(source: Path, target: Path, *, back: bool) -> object:
        done = rewrite(source, target, back=back)
        if source == path:
            with path.open("ab") as file:
                file.write(header_item())
        return done

    monkeypatch.setattr(packing, "rewrite", slow)
    said = spoken(small, *way)
    assert said.code == 6
    assert said.err.startswith(f"sigmatrace-pack: error: {path} was written meanwhile: ")
    assert path.read_bytes().endswith(header_item())
    assert not small.with_name("run-packed").exists()
    assert not [x for x in [*small.iterdir(), *small.parent.iterdir()] if "partial" in x.name]


def test_a_ring_that_changes_meanwhile_is_refused(
    small: Path, spoken: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = with_ring(small)
    monkeypatch.setattr(packing, "copy_ring", lambda *_: False)
    said = spoken(small)
    assert (said.code, said.out) == (6, "")
    assert f"{ring} was written meanwhile" in said.err
    assert [x.name for x in small.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("way", [["--in-place"], []])
def test_a_kill_leaves_no_half_file_and_the_next_one_tidies_up(
    small: Path, spoken: Callable[..., Spoken], way: list[str]
) -> None:
    before = files(small)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_THE_RENAME, small, *way], check=False, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    assert not small.with_name("run-packed").exists()
    assert {x: y for x, y in files(small).items() if not x.startswith(".")} == before
    everywhere = [*small.iterdir(), *small.parent.iterdir()]
    assert [x for x in everywhere if x.name.endswith(".partial")]
    assert spoken(small, *way).code == 0
    everywhere = [*small.iterdir(), *small.parent.iterdir()]
    assert not [x for x in everywhere if x.name.endswith(".partial")]


def test_errors_are_one_line_with_a_code(
    small: Path, tmp_path: Path, spoken: Callable[..., Spoken]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").touch()
    new = tmp_path / "new-version"
    new.mkdir()
    (new / "a-1-1.msgpack").write_bytes(header_item(version=[2, 0]))
    for code, words, text in (
        (2, [], "the following arguments are required: RUN: see sigmatrace-pack --help"),
        (2, [small, "--pack"], "unrecognized arguments: --pack"),
        (2, [small, "-o", "x", "--in-place"], "not allowed with argument"),
        (3, [tmp_path / "none"], "does not exist"),
        (3, [there], "no trace files"),
        (4, [new], "version 2.0"),
        (6, [small, "-o", there], "is already there"),
        (6, [small, "-o", small], "is already there"),
        (6, [small, "-o", there / "file" / "x"], "Not a directory"),
    ):
        said = spoken(*words)
        assert (said.code, said.out) == (code, ""), words
        assert said.err.startswith("sigmatrace-pack: error: ")
        assert text in said.err
        assert said.err.count("\n") == 1


def test_folders_and_files_without_permission(small: Path, tmp_path: Path) -> None:
    small.chmod(0o555)
    tmp_path.chmod(0o555)
    try:
        for way in ["--in-place"], []:
            command = [sys.executable, "-m", "sigmatrace.capture.pack", small, *way]
            said = subprocess.run(
                obeying(*command), capture_output=True, text=True, check=False, timeout=120
            )
            assert said.returncode == 6
            assert "Permission denied" in said.stderr
            assert said.stderr.count("\n") == 1
    finally:
        small.chmod(0o755)
        tmp_path.chmod(0o755)


def test_an_empty_folder_may_be_filled(
    small: Path, tmp_path: Path, spoken: Callable[..., Spoken]
) -> None:
    (tmp_path / "empty").mkdir()
    assert spoken(small, "-o", tmp_path / "empty").code == 0
    assert len(files(tmp_path / "empty")) == 2


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from sigmatrace.capture import pack\n"
        "try: pack.main(['--help'])\n"
        "finally: print([x for x in ('numpy', 'numba', 'pyarrow') if x in sys.modules])\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ},
    )  # fmt: skip
    assert said.stdout.splitlines()[-1] == "[]"
    assert "--in-place" in said.stdout
