"""Packs the files of a run: into a new folder that appears at once, or each in its place."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sigmatrace.capture.rank_files import RING_SUFFIX, find_rank_files
from sigmatrace.capture.repack import Rewritten, copy_ring, rewrite
from sigmatrace.errors import OutputError
from sigmatrace.text import byte_text, count_text, counted


@dataclass
class Packing:
    """What became of the files of a run.

    Attributes:
        files: Those that were written anew, in the order of their names.
        rings: Ring files that were copied.
        left: Files left alone because a ring file lies beside them.
    """

    files: list[Rewritten]
    rings: list[Path] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)


def beside(run: Path, place: Path, *, unpack: bool) -> Packing:
    """Write a packed copy of a run, with the ring files of killed processes.

    Args:
        run: The run's folder.
        place: The new folder; it appears when all is done.
        unpack: Unpack instead.

    Raises:
        RunNotFoundError: There is no run.
        ChunkFormatError: A file is of a major version that is not known.
        OutputError: Something is at ``place``, it cannot be written, or a file is still written.
    """
    paths = find_rank_files(run)
    rings = [ring for path in paths if (ring := path.with_suffix(RING_SUFFIX)).is_file()]
    with _staged(place) as staging:
        _refuse(place)
        staging.mkdir(parents=True)
        _sweep(place.parent, [place.name])
        files = _all(paths, lambda path: rewrite(path, staging / path.name, back=unpack))
        still = [ring for ring in rings if not copy_ring(ring, staging / ring.name)]
        changed = still or [one.path for one in files if one.path.stat().st_size != one.before]
        if changed:
            raise _changed(changed[0])
        _refuse(place)  # another packer may have been faster
        staging.rename(place)
    return Packing(files, rings)


def in_place(run: Path, *, unpack: bool) -> Packing:
    """Replace the files of a run one by one, but those with a ring file beside them.

    A process that lives has a ring file, and would go on writing to the file that was replaced.
    Of a symbolic link the file is replaced that it points to.

    Args:
        run: The run's folder.
        unpack: Unpack instead.

    Raises:
        RunNotFoundError: There is no run.
        ChunkFormatError: A file is of a major version that is not known.
        OutputError: The folder cannot be written, or a file is still written.
    """
    paths = find_rank_files(run)
    left = [path for path in paths if _has_ring(path)]
    linked = {path.resolve(): path for path in paths if path not in left}
    for folder in {file.parent for file in linked}:
        with suppress(OSError):  # said below, if it matters
            _sweep(folder, {file.name for file in linked})

    def replace(file: Path) -> Rewritten:
        path = linked[file]
        with _staged(file) as staging:
            done = rewrite(path, staging, back=unpack)
            if file.stat().st_size != done.before or _has_ring(path):
                raise _changed(path)
            if done.chunks:
                with staging.open("rb") as new:
                    os.fsync(new.fileno())
                staging.replace(file)
        return done

    return Packing(_all(list(linked), replace), left=left)


def summary(packing: Packing, *, unpack: bool, place: Path) -> str:
    """Return one line with what was done, and one for each thing that a user should know."""
    files = packing.files
    before, after, records, record_bytes = (
        sum(getattr(one, name) for one in files)
        for name in ("before", "after", "records", "record_bytes")
    )
    each = f", {record_bytes / records:.3g} B/event" if records else ""
    lines = [
        f"{'unpacked' if unpack else 'packed'} {counted(len(files), 'file')},"
        f" {counted(records, 'event')}: {byte_text(before)} -> {byte_text(after)}{each}; in {place}"
    ]
    trace_files = [one for one in files if not one.is_foreign]
    damaged = [one for one in trace_files if one.damaged]
    lost = count_text(sum(one.damaged for one in damaged))
    why = "not packed before" if unpack else "already packed, or no smaller so"
    notes: dict[str, Sequence[Path]] = {
        "left alone, a ring file lies beside it and its process may still run": packing.left,
        "ring files of killed processes, copied": packing.rings,
        f"{why}, kept as is": [
            one.path for one in trace_files if one.records and not (one.chunks or one.is_copy)
        ],
        "of another format, kept as is": [one.path for one in files if one.is_foreign],
        f"damaged or cut, {lost} bytes, kept as is": [one.path for one in damaged],
        "too damaged to be packed, kept as is": [one.path for one in files if one.is_copy],
        "with chunks that cannot be unpacked, kept": [one.path for one in files if one.unsuited],
        "without an end item": [one.path for one in trace_files if one.is_open],
    }
    for what, paths in notes.items():
        if paths:
            lines.append(f"{what}: {counted(len(paths), 'file')} ({paths[0].name})")
    return "\n".join(lines)


def _all(paths: Sequence[Path], do: Callable[[Path], Rewritten]) -> list[Rewritten]:
    """Do something with all files, as many at a time as there are cores; stop at an error."""
    # In threads that import at the same time, a failing import would hide its reason.
    importlib.import_module("sigmatrace.capture.kernels.pack")
    cores = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(cores)
    try:
        return list(pool.map(do, paths))
    finally:
        pool.shutdown(cancel_futures=True)


def _has_ring(path: Path) -> bool:
    """Return whether a ring file lies beside a rank file, or beside what it is a link to."""
    return any(one.with_suffix(RING_SUFFIX).exists() for one in (path, path.resolve()))


def _changed(path: Path) -> OutputError:
    hint = "wait until its process, or another sigmatrace-pack of this run, has ended"
    return OutputError(f"{path} was written meanwhile", hint)


def _refuse(place: Path) -> None:
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise OutputError(f"{place} is already there", "choose another with -o")


@contextmanager
def _staged(place: Path) -> Iterator[Path]:
    """Give a hidden name beside ``place`` for what will be renamed; remove what then is left."""
    staging = place.with_name(f".{place.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        yield staging
    except OSError as error:
        where = error.filename or place
        raise OutputError(f"{where}: {error.strerror}", "nothing was changed there") from error
    finally:
        _remove(staging)


def _sweep(folder: Path, names: Collection[str]) -> None:
    """Remove what killed packers of this host left in a folder."""
    form = re.compile(rf"\.(.+)\.{re.escape(socket.gethostname())}-(\d+)\.partial")
    for left in folder.iterdir():
        match = form.fullmatch(left.name)
        if match and match[1] in names and not Path("/proc", match[2]).exists():
            _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
