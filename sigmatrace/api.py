"""SigmaTrace from Python: what the command line does, and the tables in hand.

from sigmatrace import api

result = api.run("run/", export=["perfetto", "json"])
result.tables["traffic"].to_pylist()
result.frames["traffic"].pandas()  # or .polars(), .arrow(): words, labels, times

done = api.open_output("run/")  # an output that is there already, of export=parquet
done.frames["ops"].pandas(["t_ns", "src", "dst"], filters=[("op", "==", "send")], window="1s..2s")

settings = api.compose(["run=run/", "preset=everything"])  # options as on the command line
print(api.plan(settings).text())
api.execute(settings)
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import pyarrow as pa

from sigmatrace import kernel_cache, layout, ledger, output, summary
from sigmatrace import plan as planning
from sigmatrace.cluster import Cluster, Threads, make
from sigmatrace.errors import ConfigError, DataLossError
from sigmatrace.export.base import Exporter
from sigmatrace.fingerprint import fingerprint
from sigmatrace.partition import Run
from sigmatrace.plan import Plan
from sigmatrace.progress import tell
from sigmatrace.settings import Settings, build
from sigmatrace.stages.base import Exchange, Stage
from sigmatrace.text import counted

if TYPE_CHECKING:
    from sigmatrace.frames.finished import FinishedOutput
    from sigmatrace.frames.frames import Frames

__all__ = [
    "Plan",
    "Result",
    "Run",
    "Settings",
    "compose",
    "execute",
    "open_output",
    "open_run",
    "plan",
    "run",
]
STRICT_HINT = "strict=true allows no loss; without it the rest is used"
PACKAGES = ("dask", "distributed", "hydra-core", "msgpack", "numba", "numpy", "pyarrow", "scipy")


@dataclass(frozen=True)
class Result:
    """What a run of the pipeline made.

    Attributes:
        run: All whole-run tables and facts.
        ledger: The ledger, as in ``ledger.json``.
        out: Folder of the output.
        files: Finished files and folders by exporter.
        hints: How to open them, by exporter.
        lines: What stages say for the closing summary.
    """

    run: Run
    ledger: Mapping[str, Any]
    out: Path
    files: Mapping[str, tuple[Path, ...]]
    hints: Mapping[str, str]
    lines: Sequence[str]

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """Whole-run tables by name, as Arrow tables with codes and Unix ns as they are."""
        return self.run.tables

    @property
    def frames(self) -> Frames:
        """The tables by name, as frames for people: ``frames["traffic"].pandas()``.

        Those of events are among them if the exporter parquet was; else whole-run tables alone.
        """
        from sigmatrace.frames.frames import Frames  # with pyarrow.dataset, which takes its time

        base_ns = cast("int | None", self.run.facts.get("base_ns"))
        if "parquet" in self.files:
            return Frames.in_folder(self.out / layout.PARQUET, base_ns)
        return Frames.in_memory(self.tables, base_ns)

    def text(self) -> str:
        """Return the closing summary."""
        return summary.text(self.run, self.ledger, self.lines, self.files, self.hints, self.out)


def run(
    folder: str | os.PathLike[str],
    export: Sequence[str] | str = ("perfetto",),
    *,
    out: str | os.PathLike[str] | None = None,
    stage: Sequence[str] | None = None,
    cluster: str = "threads",
    strict: bool = False,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    progress: TextIO | None = None,
) -> Result:
    """Correlate a run and export it, exactly as the command line does.

    Args:
        folder: Folder of the trace files.
        export: Names of exporters.
        out: Folder of the output; default ``FOLDER/sigmatrace-out``.
        stage: Names of stages; default: those of the command line.
        cluster: "threads", "processes", "distributed", or a batch system such as "slurm".
        strict: Any loss is an error.
        overwrite: Replace an output that is already there.
        overrides: Further options as on the command line (``"partition_mb=4"``).
        progress: Where to say how far the work is.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``.
    """
    names = [export] if isinstance(export, str) else list(export)
    words = [f"run={os.fspath(folder)}", f"export=[{','.join(names)}]", f"cluster={cluster}"]
    words += [f"out={os.fspath(out)}"] if out is not None else []
    words += [f"stage=[{','.join(stage)}]"] if stage is not None else []
    words += [f"strict={strict}", f"overwrite={overwrite}", *overrides]
    return execute(compose(words), progress=progress)


def compose(words: Sequence[str]) -> Settings:
    """Compose and check a configuration.

    Args:
        words: Options as on the command line.

    Raises:
        ConfigError: An option is unknown or has an impossible value.
    """
    from sigmatrace.compose import compose as composed  # with Hydra, which takes its time

    return composed(words)


def open_run(folder: str | os.PathLike[str], *, run_id: str | None = None) -> Run:
    """Return the index tables of a run (processes, threads, channels, ...), without events.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``.
    """
    kernel_cache.use_writable_cache()
    from sigmatrace import config, pipeline

    size = config.Config.partition_mb << 20
    return pipeline.index(Path(folder), Threads(), partition_bytes=size, run_id=run_id).run


def open_output(folder: str | os.PathLike[str]) -> FinishedOutput:
    """Return what a run of the pipeline left, of any size: nothing is read before it is asked for.

    Args:
        folder: A run whose pipeline had ``export=parquet``, or that output.

    Returns:
        It has ``frames``, ``ledger`` and ``text()`` as a ``Result`` has.

    Raises:
        RunNotFoundError: There are no Parquet files.
        QueryError: They cannot be read.
    """
    from sigmatrace.frames.finished import opened  # with pyarrow.dataset, which takes its time

    return opened(Path(folder))


def plan(settings: Settings) -> Plan:
    """Return the ordered plan of a configuration.

    Raises:
        ConfigError: A class cannot be imported, or refuses its options.
        PipelineError: The stages do not fit together.
        PcapError: ``validate.pcap`` is no packet capture.
    """
    kernel_cache.use_writable_cache()
    steps = build("stage", settings.stage, (Stage, Exchange))
    if settings.validate["pcap"] is not None:
        steps.append(_wire(**settings.validate))
    exporters = build("export", settings.export, (Exporter,))
    if not exporters:
        raise ConfigError("nothing to export", "choose an exporter with export=NAME")
    steps = planning.completed(steps, exporters)
    return replace(planning.make(steps, exporters), settings=settings)


def execute(settings: Settings, *, progress: TextIO | None = None) -> Result:
    """Run the pipeline as the configuration says; the output appears when all is done.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``; then there is no output.
    """
    chosen = plan(settings)
    if settings.run.is_dir():
        output.check(settings.out, overwrite=settings.overwrite)
        output.check_alone(settings.out)
    # What is staged goes when the cluster has gone: no worker writes there any more.
    with contextlib.ExitStack() as last, make(**settings.cluster) as cluster:
        return _execute(settings, chosen, cluster, progress, last)


def _execute(
    settings: Settings,
    chosen: Plan,
    cluster: Cluster,
    progress: TextIO | None,
    last: contextlib.ExitStack,
) -> Result:
    from sigmatrace import pipeline

    indexed = pipeline.index(
        settings.run,
        cluster,
        run_id=settings.run_id,
        window=settings.window,
        partition_bytes=settings.partition_mb << 20,
        progress=progress,
    )
    if settings.strict:
        _refuse_damage(indexed.run)
        _refuse_open(indexed.run)
    same = fingerprint(
        settings.options,
        [name for file in indexed.files for name in (file.path, file.ring)],
        (*chosen.stages, *chosen.exchanges, *chosen.exporters),
    )
    place = output.Output(
        settings.out, overwrite=settings.overwrite, fingerprint=same, resume=settings.resume
    )
    for name, why in place.discarded.items():
        _say(progress, f"{name}, of a run that was killed, is removed: {why}")
    made = last.enter_context(place)
    done = pipeline.correlate(indexed, chosen, made.staging, cluster, progress=progress)
    book = ledger.build(done.account, done.stages, done.exported)
    if settings.strict:
        _refuse_loss(book, settings.run)
    files = {
        name: tuple(made.place / file for file in one.files) for name, one in done.exported.items()
    }
    hints = {name: one.hint for name, one in done.exported.items() if one.hint}
    result = Result(done.run, book, made.place, files, hints, done.lines)
    made.keep(name for one in done.exported.values() for name in one.files)
    made.write_json(layout.LEDGER, book)
    zero = {"base_ns": done.run.facts.get("base_ns")}
    made.write_json(layout.RUN, {**_record(settings), **zero, "files": made.names})
    made.write(layout.SUMMARY, result.text())
    made.publish()
    return result


def _say(progress: TextIO | None, text: str) -> None:
    tell(progress, f"resume: {text}\n")


def _wire(pcap: str, mtu: int | None) -> Stage:
    """Return the stage that compares with a capture file, which is to be there already."""
    from sigmatrace.validate.pcap import check_file, read_capture
    from sigmatrace.validate.wire import Wire

    path = Path(pcap)
    check_file(path)
    return Wire(partial(read_capture, path, mtu), pcap)


def _refuse_damage(run: Run) -> None:
    damage = run.tables["damage"].to_pylist()
    if damage:
        first, more = damage[0], len(damage) - 1
        what = first["what"]
        if first["size_bytes"]:  # what could not be read, or is empty, has no place
            what = f"{counted(first['size_bytes'], 'byte')} {what} at byte {first['offset']}"
        also = f", and {counted(more, 'more place')}" if more else ""
        raise DataLossError(f"{first['path']}: {what}{also}", STRICT_HINT)


def _refuse_open(run: Run) -> None:
    """Refuse a run with a file without an end item: nobody knows what else it should hold."""
    columns = (run.tables["processes"].column(name).to_pylist() for name in ("path", "end"))
    found = [path for path, end in zip(*columns, strict=True) if not end]
    if found:
        more = f", and {counted(len(found) - 1, 'more file')}" if len(found) > 1 else ""
        raise DataLossError(
            f"{found[0]}: no end item (killed, replaced by exec, cut, or still running){more}",
            STRICT_HINT,
        )


def _refuse_loss(book: Mapping[str, Any], folder: Path) -> None:
    found = ledger.losses(book) + [f"balance violated: {x}" for x in ledger.violated(book)]
    wire = book["stages"].get("wire")
    if wire and wire["differs"]:
        what = counted(wire["differs"], "flow differs", "flows differ")
        found.append(f"{what} from the packet capture: {wire['differing'][0]}")
    if wire and (undecided := wire["not_whole"] + wire["not_captured"]):
        what = counted(undecided, "flow is not whole", "flows are not whole")
        first = f": {wire['undecided'][0]}" if wire["undecided"] else ""
        found.append(f"{what} in the packet capture, or not there{first}")
    if wire and not wire["equal"] + wire["differs"] + undecided:
        found.append("no flow could be compared with the packet capture")
    if found:
        raise DataLossError(
            f"{folder}: {'; '.join(found)}",
            STRICT_HINT,
        )


def _record(settings: Settings) -> dict[str, Any]:
    versions = {name: _version(name) for name in ("sigmatrace", *PACKAGES)}
    return {
        "run": str(settings.run),
        "out": str(settings.out),
        "options": settings.options,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
