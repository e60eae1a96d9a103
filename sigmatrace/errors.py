"""The errors a user can meet, each with its exit code.

A command prints ``str(error)`` as one line (what, where, what to do) and exits
with ``error.exit_code``; a traceback appears only with ``--debug``.
"""

from __future__ import annotations


class SigmaTraceError(Exception):
    """Base of every error that is reported to a user in one line.

    Args:
        what: What is wrong, naming the file, column or option.
        hint: What the user can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.hint}" if self.hint else self.what


class ConfigError(SigmaTraceError):
    """An option, stage, exporter or value that the configuration does not know."""

    exit_code = 2


class RunNotFoundError(SigmaTraceError):
    """The run folder is missing, or holds no trace files."""

    exit_code = 3


class ChunkFormatError(SigmaTraceError):
    """A file is not a SigmaTrace file, or of a version that this reader refuses."""

    exit_code = 4


class PcapError(SigmaTraceError):
    """A file is not a packet capture of an Ethernet, or is damaged."""

    exit_code = 4


class MixedRunsError(SigmaTraceError):
    """Files of several runs lie in one folder."""

    exit_code = 5


class OutputError(SigmaTraceError):
    """The output cannot be written, or is already there."""

    exit_code = 6


class PipelineError(SigmaTraceError):
    """Stages do not fit together, by their columns; or a user's own stage or exporter failed."""

    exit_code = 7


class DataLossError(SigmaTraceError):
    """Some data was lost or damaged, and ``strict=true`` was asked for."""

    exit_code = 8


class CaptureError(SigmaTraceError):
    """The traced command cannot be started, or the capture cannot be set up."""

    exit_code = 9


class ClusterError(SigmaTraceError):
    """Workers or the scheduler of a cluster went away, or did not come."""

    exit_code = 10


class QueryError(SigmaTraceError):
    """A query that the database refused, or gave up."""

    exit_code = 11


class MissingPackageError(SigmaTraceError):
    """A Python package that an optional part needs is not installed."""

    exit_code = 12
