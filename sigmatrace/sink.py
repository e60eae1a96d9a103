"""Where partitions leave what they made: bytes of common files, in order, and records.

A stream is a file that all partitions write together, one after the other by number. In the
process that made the sink, bytes go to their final place at once: who has the next number writes,
and then what others have left waiting; nobody waits for a turn. In another process (a sink can be
pickled) each partition's bytes become a file of their own, which ``finish`` copies to its place.

A partition's record, what the pipeline must know of it, is written when its bytes are safe. After
a kill the records tell which partitions need not be done again, if what they left is still there.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sigmatrace.errors import ClusterError, OutputError

Streams = Mapping[str, Sequence[bytes | memoryview]]
WAITING_BYTES_MAX = 64 << 20
"""Bytes that may wait in memory for those of the partitions before them."""
OPEN_MAX = 16
"""Streams that are open at a time: a pass may have more than a process may have files."""
_COPY_BYTES = 256 << 10
_BUFFERS_MAX = 1024  # of one writev(2)


class _Record(NamedTuple):
    """What is known of a partition that was done.

    Attributes:
        sizes: Bytes by stream.
        files: Bytes by file of its own, -1 for one that was not there.
        value: None for one that cannot be read.
    """

    sizes: Mapping[str, int] = MappingProxyType({})
    files: Mapping[str, int] = MappingProxyType({})
    value: Any = None


class _Records:
    """What a pass leaves by partition, in files of a folder that every worker sees."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _Elsewhere, (self._folder, self._name)

    def record(self, number: int) -> Any:
        """Return what was left of a partition, None if nothing was."""
        return self._left(number).value

    def _path(self, number: int, stream: str = "") -> Path:
        part = f".{stream}.part" if stream else ""
        return self._folder / f".{self._name}.{number}{part}"

    def _load(self, number: int) -> _Record:
        return _Record(*pickle.loads(self._path(number).read_bytes()))

    def _left(self, number: int) -> _Record:
        """Return a record that an earlier sink may have left; a damaged one is none."""
        with suppress(Exception):  # pickle raises anything
            return self._load(number)
        return _Record()

    def _dumped(self, streams: Streams, value: Any, files: Iterable[str]) -> bytes:
        """Return a record as it is written."""
        there = {name: self._size(name) for name in files}
        try:
            return pickle.dumps((_sizes(streams), there, value), pickle.HIGHEST_PROTOCOL)
        except Exception:  # a user's own stage sums up what cannot be pickled: not to be resumed
            return pickle.dumps((_sizes(streams), there, None), pickle.HIGHEST_PROTOCOL)

    def _is_whole(self, record: _Record) -> bool:
        """Return whether a record can be read, and the partition's own files are there."""
        there = all(self._size(name) == size for name, size in record.files.items())
        return record.value is not None and there

    def _size(self, name: str) -> int:
        path = self._folder / name
        return path.stat().st_size if path.exists() else -1

    def _set_aside(self, number: int, streams: Streams, record: bytes) -> None:
        """Write the bytes of a partition to files of their own."""
        for name, parts in streams.items():
            _replace(self._path(number, name), *parts)
        _replace(self._path(number), record)


class _Elsewhere(_Records):
    """A sink in another process than the one that made it."""

    def put(self, number: int, streams: Streams, value: Any, files: Iterable[str] = ()) -> None:
        """See ``Sink``."""
        with _writing():
            self._set_aside(number, streams, self._dumped(streams, value, files))


class Sink(_Records):
    """Streams and records of one pass over the partitions; a context manager.

    On entry it takes over what an earlier sink of the same folder and name has left.

    Args:
        folder: Where all lies; every worker must see it.
        name: Of the pass, unique in the folder.

    Attributes:
        resumed: Partitions that an earlier sink had done.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.resumed = 0
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}  # those open, the one that was used last behind
        self._begun: set[str] = set()  # streams of which this sink has opened the file
        self._ends: dict[str, int] = {}  # of streams, where an earlier sink's records end
        self._next = 0
        self._waiting: dict[int, tuple[Streams, bytes] | None] = {}  # None: it is set aside
        self._waiting_bytes = 0
        self._is_writing = False

    def __enter__(self) -> Sink:
        self._resume()
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def put(self, number: int, streams: Streams, value: Any, files: Iterable[str] = ()) -> None:
        """Leave what a partition made.

        Args:
            number: The partition's.
            streams: Buffers, one after the other, by the name of the stream.
            value: What ``record`` is to return; anything that can be pickled.
            files: Names of files in the folder that the partition has written for itself.

        Raises:
            OutputError: The operating system refuses.
        """
        record = self._dumped(streams, value, files)
        size = sum(_sizes(streams).values())
        with self._lock:
            waits = number == self._next or self._waiting_bytes + size <= WAITING_BYTES_MAX
            if waits:
                self._waiting[number] = streams, record
                self._waiting_bytes += size
        with _writing():
            if not waits:
                self._set_aside(number, streams, record)
                with self._lock:
                    self._waiting[number] = None
            self._drain()

    def finish(self, count: int) -> None:
        """Bring everything to its place.

        Args:
            count: How many partitions there are; all have been put, here or elsewhere.

        Raises:
            OutputError: The operating system refuses.
        """
        for number in range(self._next, count):
            self._waiting.setdefault(number)
        with _writing():
            self._drain()
            for name in self._ends:
                self._stream(name)

    def _resume(self) -> None:
        """Take over what an earlier sink of the same name left.

        A record whose bytes are gone, or a file of whose partition, goes, too.
        """
        heads = f".{self._name}."
        names = [path.name.removeprefix(heads) for path in self._folder.glob(f"{heads}*")]
        records = {int(name) for name in names if name.isdigit()}
        aside = {int(name.partition(".")[0]) for name in names if name.endswith(".part")}
        ends = self._ends
        while self._next in records - aside:
            record = self._left(self._next)
            after = {name: ends.get(name, 0) + size for name, size in record.sizes.items()}
            is_there = all(self._size(name) >= end for name, end in after.items())
            if not (is_there and self._is_whole(record)):
                break
            ends.update(after)
            self._next += 1
        for number in sorted(one for one in records if one >= self._next):
            record, part = self._left(number), partial(self._path, number)
            is_there = all(self._size(part(x).name) == size for x, size in record.sizes.items())
            if is_there and self._is_whole(record):
                self._waiting[number] = None
            else:
                self._path(number).unlink()
        self.resumed = self._next + len(self._waiting)

    def _stream(self, name: str) -> int:
        """Return the descriptor of a stream; what no record speaks of is cut off at first."""
        file = self._files.pop(name, -1)
        if file < 0:
            while len(self._files) >= OPEN_MAX:
                os.close(self._files.pop(next(iter(self._files))))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(self._folder / name, flags, 0o666)
        self._files[name] = file
        if name not in self._begun:
            os.ftruncate(file, self._ends.get(name, 0))
            self._begun.add(name)
        return file

    def _drain(self) -> None:
        """Write what has its turn, unless another thread is at it: then that one will."""
        with self._lock:
            if self._is_writing:
                return
            self._is_writing = True
        while True:
            with self._lock:
                number = self._next
                if number not in self._waiting:
                    self._is_writing = False
                    return
                item = self._waiting.pop(number)
            size = self._take_in(number) if item is None else self._append(number, *item)
            with self._lock:
                self._next += 1
                self._waiting_bytes -= size

    def _append(self, number: int, streams: Streams, record: bytes) -> int:
        """Write the bytes of a partition to the end of its streams; return how many."""
        for name, parts in streams.items():
            _write(self._stream(name), parts)
        _replace(self._path(number), record)
        return sum(_sizes(streams).values())

    def _take_in(self, number: int) -> int:
        """Copy what was set aside to the end of its streams; return how many bytes waited."""
        paths = self._aside(number)
        for name, path in paths.items():
            file = self._stream(name)
            with path.open("rb") as part:
                while block := part.read(_COPY_BYTES):
                    _write(file, [block])
        for path in paths.values():
            path.unlink()
        return 0

    def _aside(self, number: int) -> dict[str, Path]:
        """Return the files of what was set aside, by stream.

        Raises:
            ClusterError: They are not there as their worker wrote them.
        """
        try:
            sizes = self._load(number).sizes
        except Exception as error:  # pickle raises anything
            raise _unseen(number, f"{type(error).__name__}: {error}") from error
        paths = {name: self._path(number, name) for name in sizes}
        for name, path in paths.items():
            if self._size(path.name) != sizes[name]:
                raise _unseen(number, f"{path.name} does not have {sizes[name]} bytes")
        return paths


def _unseen(number: int, why: str) -> ClusterError:
    what = f"what a worker wrote of partition {number} is not there ({why})"
    return ClusterError(what, "each worker must see the output's folder as this process does")


def _sizes(streams: Streams) -> dict[str, int]:
    return {name: sum(map(len, parts)) for name, parts in streams.items()}


def _write(file: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all of some buffers, many in one call."""
    for at in range(0, len(parts), _BUFFERS_MAX):
        buffers = (part for part in parts[at : at + _BUFFERS_MAX] if len(part))
        some = [memoryview(part).cast("B") for part in buffers]
        while some:
            done = os.writev(file, some)
            while some and done >= len(some[0]):
                done -= len(some.pop(0))
            if some:
                some[0] = some[0][done:]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole, or not at all.

    Raises:
        OutputError: The operating system refuses.
    """
    with _writing():
        _replace(path, content)


def _replace(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file that is there whole, or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    with part.open("wb") as file:
        file.writelines(parts)
    part.replace(path)


@contextmanager
def _writing() -> Iterator[None]:
    """Report what the operating system refuses."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write: {error.strerror or error}", "give another out=DIR"
        ) from error
