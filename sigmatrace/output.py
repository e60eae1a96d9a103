"""Where output is put: built in a hidden folder beside its place, moved there by one rename.

A run that is killed, or whose workers are, leaves only its hidden folder. The next run beside it
goes on with that if it is to do exactly the same (``fingerprint``), and else removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sigmatrace.errors import ClusterError, OutputError
from sigmatrace.layout import LEDGER, RUN, SUMMARY

KEPT = "finished work is kept, and the next run with the same options goes on with it"
PARTIAL, OLD = ".partial", ".old"
_FINGERPRINT, _LOCK = ".fingerprint", ".lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT = "boot of the machine"


class Output:
    """The staging folder of one run, a context manager.

    Leaving the context without ``publish`` removes what was staged, unless workers went away: then
    it is kept as that of a killed run would be.

    Args:
        place: Where the finished output shall be.
        overwrite: An output that is already there may be replaced.
        fingerprint: Of all that what is staged depends on, by what it is of; empty: nothing is
            taken over.
        resume: Take over what a killed run of the same fingerprint has left: "own", one of this
            host; "any", of whatever host (nobody can see whether it still runs); "none".

    Attributes:
        names: What the finished output consists of.
        discarded: By folder of a killed run that was removed, why it was not taken over.

    Raises:
        OutputError: Something is already there, or the place cannot be written.
    """

    def __init__(
        self,
        place: Path,
        *,
        overwrite: bool = False,
        fingerprint: Mapping[str, str] = MappingProxyType({}),
        resume: str = "none",
    ) -> None:
        self.place = place.resolve() if place.is_symlink() else place
        self.overwrite = overwrite
        self.names: list[str] = []
        self.discarded: dict[str, str] = {}
        if not self.place.name:
            raise OutputError(f"{self.place} cannot be an output folder", "give out=DIR")
        self.staging = _named(self.place, os.getpid(), _born(os.getpid()))
        self._is_kept = bool(fingerprint) and resume != "none"
        if fingerprint:
            boot = _BOOT_ID.read_text() if _BOOT_ID.is_file() else ""
            fingerprint = {**fingerprint, _BOOT: boot}
        self._lock = -1
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.place.parent):
                self._begin(fingerprint, resume)
        except OSError as error:
            raise _unwritable(self.place, error) from error

    def _begin(self, fingerprint: Mapping[str, str], resume: str) -> None:
        """Take over the staging folder of a killed run, or make one; remove the others."""
        left = _left(self.place, any_host=resume == "any")
        check(self.place, overwrite=self.overwrite)
        check_alone(self.place)
        unfit = {one: _unfit(one, host, fingerprint, resume) for one, host in left.items()}
        taken = next((one for one in left if not unfit[one]), None)
        for one in left:
            if one == taken:
                continue
            if one.suffix == PARTIAL:
                self.discarded[one.name] = unfit[one] or "another one is taken over"
            shutil.rmtree(one, ignore_errors=True)
        if taken:
            taken.rename(self.staging)
        else:
            self.staging.mkdir()
            (self.staging / _FINGERPRINT).write_text(json.dumps(dict(fingerprint)))
        with contextlib.suppress(OSError):  # a file system without locks
            self._lock = _hold(self.staging)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        if isinstance(error, ClusterError) and self._is_kept:
            # As of no process: this one lives on, and may be the one that tries again.
            self.staging.rename(_named(self.place, os.getpid(), 0))
            raise ClusterError(error.what, f"{error.hint}; {KEPT}") from error
        shutil.rmtree(self.staging, ignore_errors=True)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a file of plain data into the staging folder."""
        self.write(name, json.dumps(value, indent=2, ensure_ascii=False, default=_plain))

    def write(self, name: str, text: str) -> None:
        """Write a text file into the staging folder.

        Raises:
            OutputError: The operating system refuses.
        """
        try:
            (self.staging / name).write_text(text + "\n", encoding="utf-8", errors="replace")
        except OSError as error:
            raise _unwritable(self.place, error) from error

    def keep(self, names: Iterable[str]) -> None:
        """Remove everything else from the staging folder: pieces that are joined by now.

        ``names`` becomes what the finished output consists of.
        """
        kept = {Path(name).parts[0] for name in names}
        self.names = sorted({*kept, LEDGER, RUN, SUMMARY})
        for path in self.staging.iterdir():
            if path.name in kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def publish(self) -> None:
        """Move the finished output to its place; an old one is moved aside first, then removed.

        Raises:
            OutputError: Something came to be there in the meantime, or the rename failed.
        """
        aside = self.staging.with_suffix(OLD)
        try:
            with _alone(self.place.parent):
                check(self.place, overwrite=self.overwrite)
                if self.place.exists() and any(self.place.iterdir()):
                    self.place.rename(aside)
                self.staging.rename(self.place)
        except OSError as error:
            if aside.exists() and not self.place.exists():
                aside.rename(self.place)
            check(self.place, overwrite=self.overwrite)  # where locks are not to be had
            raise _unwritable(self.place, error) from error
        shutil.rmtree(aside, ignore_errors=True)


def clear(staging: Path) -> None:
    """Remove what was made in a staging folder; it stays that of its run.

    Raises:
        OutputError: The operating system refuses.
    """
    try:
        for path in staging.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (_FINGERPRINT, _LOCK):
                path.unlink()
    except OSError as error:
        raise _unwritable(staging, error) from error


def check(place: Path, *, overwrite: bool = False) -> None:
    """See whether an output may be put here, and leave no trace of that.

    Raises:
        OutputError: Something is already there, or the place cannot be written.
    """
    try:
        there = place.exists() and (not place.is_dir() or any(place.iterdir()))
    except OSError as error:
        raise _unwritable(place, error) from error
    if not there:
        _check_parents(place)
        return
    if not place.is_dir():
        raise OutputError(f"{place} is a file", "give a folder with out=DIR")
    foreign = sorted({path.name for path in place.iterdir()} - _recorded(place))
    if foreign:
        raise OutputError(
            f"{place} is a folder with other content ({foreign[0]})",
            "give a new folder with out=DIR",
        )
    if not overwrite:
        raise OutputError(
            f"output is already there: {place}", "add overwrite=true, or give out=DIR"
        )


def check_alone(place: Path) -> None:
    """See that no living run of this host is about to write here: one would work for nothing.

    Raises:
        OutputError: There is one, or the place cannot be read.
    """
    try:
        if not place.parent.is_dir():
            return
        for path, _, pid in _stagings(place):
            if pid and path.suffix == PARTIAL:
                raise OutputError(
                    f"process {pid} writes to {place} right now",
                    "wait until it is done, or give out=DIR",
                )
    except OSError as error:
        raise _unwritable(place, error) from error


def _recorded(place: Path) -> set[str]:
    """Return the names that an output says are its own: nothing else may be replaced."""
    try:
        names = json.loads((place / RUN).read_text(encoding="utf-8"))["files"]
        return {str(name) for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _check_parents(place: Path) -> None:
    """Refuse a place whose nearest existing parent cannot be written."""
    parent = next(one for one in place.absolute().parents if one.exists())
    if not parent.is_dir():
        raise _unwritable(place, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _unwritable(place, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _plain(value: object) -> object:
    """Return what JSON has no word for: numpy's numbers as numbers, the rest as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _unwritable(place: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"cannot write {place}: {reason}", "give a writable folder with out=DIR")


def _named(place: Path, pid: int, born: int) -> Path:
    """Return the staging folder of a process of this host; ``born`` is 0 if nobody works in it."""
    return place.with_name(f".{place.name}.{socket.gethostname()}-{pid}-{born}{PARTIAL}")


def _left(place: Path, *, any_host: bool) -> dict[Path, str]:
    """Return folders of killed runs beside ``place``, with their hosts; bring an old output back.

    Args:
        place: Where the output shall be.
        any_host: Those of other hosts, too, which may be alive.
    """
    here = socket.gethostname()
    found = {}
    for left, host, pid in _stagings(place):
        if pid or left.stat().st_uid != os.getuid() or (host != here and not any_host):
            continue
        if left.suffix == OLD and not place.exists():
            left.rename(place)  # killed between the two renames
        else:
            found[left] = host
    return found


def _stagings(place: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the hidden folders beside ``place`` that are for it.

    Yields:
        The folder, its host, and the process that works in it, 0 if none of this host does.
    """
    form = re.compile(rf"\.{re.escape(place.name)}\.(.+)-(\d+)-(\d+)({PARTIAL}|{OLD})")
    for path in sorted(place.parent.iterdir()):
        match = form.fullmatch(path.name)
        if match is not None:
            host, pid, born = match[1], int(match[2]), int(match[3])
            lives = host == socket.gethostname() and born != 0 and _born(pid) == born
            # A process that cannot be seen from here, in another container, holds the lock.
            yield path, host, pid if lives or _is_held(path) else 0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs from looking for outputs in a folder, and from moving theirs there."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _hold(staging: Path, create: int = os.O_CREAT) -> int:
    """Lock a staging folder; return the descriptor that holds it until it is closed.

    Raises:
        BlockingIOError: Another process has it.
        OSError: There are no locks there.
    """
    file = os.open(staging / _LOCK, os.O_RDWR | create | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _is_held(staging: Path) -> bool:
    try:
        os.close(_hold(staging, create=0))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _unfit(staging: Path, host: str, fingerprint: Mapping[str, str], resume: str) -> str:
    """Return why a staging folder cannot be taken over, "" if it can.

    After a reboot what its host wrote before may not have reached the disk. How another host was
    booted says nothing of that, and nobody here can know it.
    """
    if resume == "none":
        return "resume=none"
    try:
        before = json.loads((staging / _FINGERPRINT).read_text())
        known = fingerprint.keys() - ({_BOOT} if host != socket.gethostname() else set())
        differing = [
            what for what in fingerprint if what in known and before.get(what) != fingerprint[what]
        ]
    except (OSError, ValueError, AttributeError):
        return "it does not say what it is of"
    if host != socket.gethostname():
        differing = [what for what in differing if what != _BOOT]
    if differing:
        return f"other {' and '.join(differing)}"
    return "" if fingerprint else "nothing is known of this run"


def _born(pid: int) -> int:
    """Return when a process started, in the kernel's ticks since boot; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19])
