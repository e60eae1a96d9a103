"""A value that every task of a graph reads."""

from __future__ import annotations

import functools
import pickle
import uuid
from pathlib import Path
from typing import Any

from sigmatrace.errors import ClusterError

PICKLE = ".work-{}.pickle"


class Shared:
    """A value that every task reads: passed by reference to threads, once to each process.

    It is pickled as the name of a file, which a process reads once; so a graph of thousands
    of tasks does not carry thousands of copies.

    Args:
        value: What is shared.
        folder: Where its file goes when one is needed; all workers must see this folder.
    """

    def __init__(self, value: Any, folder: Path) -> None:
        self.value = value
        self._path = folder / PICKLE.format(uuid.uuid4().hex)
        self._is_written = False

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._is_written:
            import cloudpickle

            self._path.write_bytes(cloudpickle.dumps(self.value))
            self._is_written = True
        return _shared, (str(self._path),)


@functools.lru_cache(maxsize=2)
def _shared(path: str) -> Shared:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ClusterError(
            f"a worker does not see {path}", "put out= on a file system that all workers share"
        ) from error
    loaded = Shared(pickle.loads(data), Path(path).parent)
    loaded._path, loaded._is_written = Path(path), True
    return loaded
