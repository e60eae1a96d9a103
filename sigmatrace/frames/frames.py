"""All tables of a run by name, from memory or from its Parquet output."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset, parquet

from sigmatrace import code_words, layout
from sigmatrace.errors import ConfigError, QueryError
from sigmatrace.export import tables as for_people
from sigmatrace.frames.columns import columns
from sigmatrace.frames.frame import Frame, reading
from sigmatrace.settings import suggest

_CODES = ("field", "code", "name")


class UnknownTableError(ConfigError, KeyError):
    """There is no table of this name; a ``KeyError`` too, as frames are a mapping."""


class Frames(Mapping[str, Frame]):
    """Tables of a run as frames by name; nothing is read before a frame is asked for rows.

    Args:
        sources: By name a table in memory, a Parquet file, or a folder of these.
        codes: The table ``codes``: what codes mean.
        base_ns: Unix ns of the run's zero; None: not known.
        check: Raises ``QueryError`` for a table of an output that is another one by now.
    """

    def __init__(
        self,
        sources: Mapping[str, pa.Table | Path],
        codes: pa.Table,
        base_ns: int | None,
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._sources = sources
        rows = (codes.column(name).to_pylist() for name in _CODES)
        self._codes = code_words.codes(zip(*rows, strict=True))
        self.base_ns = base_ns
        self._check = check

    @classmethod
    def in_memory(cls, tables: Mapping[str, pa.Table], base_ns: int | None) -> Frames:
        """Return whole-run tables, of a run of the pipeline that just took place."""
        return cls(tables, for_people.codes(), base_ns)

    @classmethod
    def in_folder(cls, folder: Path, base_ns: int | None) -> Frames:
        """Return all tables, events too, of a Parquet output.

        Args:
            folder: What ``layout.find`` returned.
            base_ns: Unix ns of the run's zero; None: not known.

        Raises:
            QueryError: What codes mean cannot be read.
        """
        path = layout.file_of(folder, layout.CODES)
        check = _Unchanged(path)
        with reading(str(path)):
            found = parquet.read_table(path)
            if set(_CODES) - set(found.column_names):
                raise QueryError(f"{path}: it does not tell what codes mean", "make it again")
            return cls(layout.tables(folder), found, base_ns, check)

    def __getitem__(self, name: str) -> Frame:
        if name not in self._sources:
            raise UnknownTableError(f"no table {name!r}", suggest(name, self._sources))
        self._check(name)
        source = _dataset(name, self._sources[name])
        made = columns(name, source.schema, self._codes, self._labels)
        self._check(name)
        return Frame(name, source, made, self.base_ns, self._check)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._sources))

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return f"{len(self)} tables: {', '.join(self)}"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    @functools.cached_property
    def _labels(self) -> dict[int, str]:
        if "processes" not in self._sources:
            return {}
        with reading("processes"):
            source = _dataset("processes", self._sources["processes"])
            table = source.to_table(["proc", "label"])
        return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


class _Unchanged:
    """Tells whether an output is still the one that was opened.

    The pipeline replaces an output as a whole. What was read of the old one (where its rows and
    columns lie, labels of processes, what values a file has) is wrong of the new one.

    Args:
        path: A file of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was = self._now()

    def __call__(self, name: str) -> None:
        if self._now() != self._was:
            raise QueryError(
                f"{name}: the output was replaced, or is gone, since it was opened", "open it again"
            )

    def _now(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _dataset(name: str, source: pa.Table | Path) -> dataset.Dataset:
    if isinstance(source, pa.Table):
        return dataset.dataset(source)
    paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    with reading(name):
        return dataset.dataset([str(path) for path in paths], format="parquet")
