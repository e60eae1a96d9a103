"""A fingerprint changes when something changes that it is of, and says which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sigmatrace.fingerprint import fingerprint


def taken(*files: Path | str, **options: object) -> dict[str, str]:
    return fingerprint(options, map(str, files), ())


def test_a_trace_file_counts_by_its_name_size_and_times(tmp_path: Path) -> None:
    one, ring = tmp_path / "one", tmp_path / "ring"
    one.write_text("a")
    first = taken(one, ring)
    assert taken(one, ring) == first
    one.write_text("bb")
    second = taken(one, ring)
    times = one.stat()
    os.utime(one, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    third = taken(one, ring)
    ring.touch()
    fourth = taken(one, ring)
    digests = {x["trace files"] for x in (first, second, third, fourth)}
    assert len(digests) == 4
    assert taken(ring, one)["trace files"] not in digests
    rest = [{k: v for k, v in x.items() if k != "trace files"} for x in (first, fourth)]
    assert rest[0] == rest[1]


def test_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("a")
    link.symlink_to(there)
    before = taken(link)
    there.write_text("bb")
    assert taken(link) != before


def test_files_of_several_folders_and_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    monkeypatch.chdir(tmp_path)
    before = taken("a/file", "b/file", "c/file", "file")
    Path("file").touch()
    here = taken("a/file", "b/file", "c/file", "file")
    Path("b/file").write_text("longer")
    assert len({x["trace files"] for x in (before, here, taken("a/file", "b/file", "c/file"))}) == 3
    assert taken("a/file", "b/file", "c/file", "file") != here


def test_options_that_change_nothing_do_not_count() -> None:
    assert taken(partition_mb=1, out="a") == taken(partition_mb=1, out="b")
    assert taken(partition_mb=1)["options"] != taken(partition_mb=2)["options"]
