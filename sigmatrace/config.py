"""Dataclass schemas of the configuration, and what is checked after it is composed.

Hydra refuses a misspelt or mistyped key by these schemas; ``check`` refuses what can still
slip through (``+expotr=json``, ``+stage.clock.foo=1``, a class that is no stage).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING as REQUIRED
from omegaconf import DictConfig, OmegaConf

import sigmatrace
from sigmatrace import layout
from sigmatrace.config_batch import CondorConfig, QueueConfig
from sigmatrace.errors import ConfigError, RunNotFoundError
from sigmatrace.settings import Settings, load, suggest
from sigmatrace.window import Window

RESUMES = ("own", "any", "none")
GROUPS = ("stage", "export", "cluster", "preset")


@dataclass
class StageConfig:
    """A stage: the class that does it. Further keys are arguments of its constructor."""

    _target_: str = REQUIRED


@dataclass
class ClockConfig(StageConfig):
    """Times of events.

    Attributes:
        method: "calibration", hosts' clocks as they are; "messages", corrected by messages, in a
            further pass; "auto", corrected if messages were received before they were sent.
    """

    method: str = "auto"


@dataclass
class ExportConfig:
    """An exporter: the class that does it. Further keys are arguments of its constructor."""

    _target_: str = REQUIRED


@dataclass
class BarriersConfig(StageConfig):
    """Where processes or GPUs come together.

    Attributes:
        region: Regions of the program are barriers if their name contains this.
    """

    region: str = "barrier"


@dataclass
class MatrixConfig(ExportConfig):
    """Pictures of who sent how much to whom.

    Attributes:
        nested: Count operations that another one of the same layer made, too.
        dpi: Resolution of the PNG files.
    """

    nested: bool = False
    dpi: int = 120


@dataclass
class ReportConfig(ExportConfig):
    """One HTML file for someone who has five minutes, and its figures.

    Attributes:
        rows: Rows of each table, the heaviest.
        dpi: Resolution of the PNG files.
    """

    rows: int = 200
    dpi: int = 120


@dataclass
class PerfettoConfig(ExportConfig):
    """The time line for Perfetto. Counters are always of the whole run; the rest may be chosen.

    Attributes:
        window: Slices and instants of this time alone, "10s..12.5s" (``sigmatrace.window``).
        ranks: Those of these ranks alone, "0-15,64".
        qps: Those of queue pairs with these numbers alone, "0x11,18-20".
        ops: Operations of these kinds alone, "send,write".
        budget_mb: Size in MB that the trace should not exceed: the time shown is cut to fit.
        split: Several files, "ranks:32" or "time:10s", and an overview; the budget is of each.
    """

    window: str | None = None
    ranks: str | None = None
    qps: str | None = None
    ops: str | None = None
    budget_mb: int = 1000
    split: str | None = None


@dataclass
class ThreadsConfig:
    """Threads of this process (kernels release the interpreter's lock)."""

    kind: str = "threads"
    workers: int | None = None


@dataclass
class ProcessesConfig:
    """Processes of this machine."""

    kind: str = "processes"
    workers: int | None = None


@dataclass
class DistributedConfig:
    """A Dask scheduler that already runs; its workers must see the same files.

    Attributes:
        address: Of the scheduler.
        timeout_s: How long to wait for it, and for workers while there are none.
    """

    kind: str = "distributed"
    address: str = REQUIRED
    timeout_s: float = 10.0


@dataclass
class ValidateConfig:
    """Comparison with judges that are independent of the trace.

    Attributes:
        pcap: A packet capture (RoCEv2) of what ran; differences are told, and errors with strict.
        mtu: Path MTU of its queue pairs in bytes, where the packets do not tell.
    """

    pcap: str | None = None
    mtu: int | None = None


@dataclass
class Config:
    """All options of a run of the pipeline.

    Attributes:
        run: Folder of the trace files.
        out: Where the output goes; default ``RUN/sigmatrace-out``.
        run_id: Which run to read when files of several lie in the folder.
        window: Read this time alone, "10s..12.5s" (``sigmatrace.window``).
        strict: Any loss is an error.
        overwrite: Replace an output that is already there.
        resume: Go on where a killed run of the same options and files was: "own" (one of this
            host), "any" (also of another host: it must not be running any more), "none".
        partition_mb: Event bytes of a partition, in MiB.
        plan: Print the plan and compute nothing.
        stage: Chosen stages by name.
        export: Chosen exporters by name.
        cluster: Where tasks run.
        validate: What to compare the trace with.
    """

    run: str = REQUIRED
    out: str | None = None
    run_id: str | None = None
    window: str | None = None
    strict: bool = False
    overwrite: bool = False
    resume: str = "own"
    partition_mb: int = 12
    plan: bool = False
    stage: dict[str, Any] = field(default_factory=dict)
    export: dict[str, Any] = field(default_factory=dict)
    cluster: Any = REQUIRED
    validate: ValidateConfig = field(default_factory=ValidateConfig)


SCHEMAS: dict[str, dict[str, type]] = {
    "schema": {
        "config": Config,
        "stage": StageConfig,
        "clock": ClockConfig,
        "export": ExportConfig,
        "matrix": MatrixConfig,
        "barriers": BarriersConfig,
        "perfetto": PerfettoConfig,
        "report": ReportConfig,
    },
    "schema/cluster": {
        "threads": ThreadsConfig,
        "processes": ProcessesConfig,
        "distributed": DistributedConfig,
        "queue": QueueConfig,
        "htcondor": CondorConfig,
    },
}
"""Schemas by group and name; every YAML file of ``conf/`` extends one of these. Which stages and
exporters there are, the YAML files alone say, and their ``_target_`` which class each is."""


def folder() -> Path:
    """Return the folder of the configuration tree, in a checkout or in an installed package."""
    spec = importlib.util.find_spec("sigmatrace.conf")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    beside = Path(sigmatrace.__file__).parent
    installed, checkout = beside / "conf", beside.parent / "conf"
    return installed if installed.is_dir() else checkout


def register() -> None:
    """Make the schemas known to Hydra."""
    store = ConfigStore.instance()
    for group, choices in SCHEMAS.items():
        for name, schema in choices.items():
            store.store(group=group, name=name, node=schema)


def choices(group: str, folders: Iterable[Path] = ()) -> list[str]:
    """Return the names that a group offers, with those of a user's own folders."""
    return sorted(
        {path.stem for at in (folder(), *folders) for path in (at / group).glob("*.yaml")}
    )


def shipped(group: str, bases: tuple[type, ...]) -> dict[str, type]:
    """Return the classes of this package's own stages or exporters by name."""
    files = {name: folder() / group / f"{name}.yaml" for name in choices(group)}
    return {
        name: load(f"{group}.{name}", OmegaConf.select(OmegaConf.load(path), "_target_"), bases)
        for name, path in files.items()
    }


def check(config: DictConfig) -> Settings:
    """Check a composed configuration and return it as plain data.

    Raises:
        ConfigError: A key is unknown, a required one is missing, or a value is impossible.
        RunNotFoundError: ``run`` names several folders.
    """
    known = [item.name for item in fields(Config)]
    for key in map(str, config):
        if key not in known:
            value = config[key]
            below = next(map(str, value), None) if isinstance(value, DictConfig) else None
            option = f"{key}.{below}" if below else key
            hint = in_full(option) or suggest(option, known)
            raise ConfigError(f"unknown option {option!r}", hint)
    if not config.plan and OmegaConf.is_missing(config, "run"):
        raise ConfigError("no run folder is given", "add run=DIR, the folder of the trace files")
    _check_packages(config)
    for at in ("cluster", "validate", *(f"stage.{name}" for name in config.stage)):
        _check_node(at, OmegaConf.select(config, at))
    for name in config.export:
        _check_node(f"export.{name}", config.export[name])
    if config.partition_mb < 1:
        raise ConfigError("partition_mb must be at least 1", f"it is {config.partition_mb}")
    if config.resume not in RESUMES:
        raise ConfigError(f"unknown resume={config.resume}", suggest(config.resume, RESUMES))
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    options = cast("dict[str, Any]", plain)
    run, out = str(options["run"]), options["out"]
    if run == "":
        raise ConfigError("run= is empty", "give the folder of the trace files")
    if out == "":
        raise ConfigError("out= is empty", "give a folder, or leave it out")
    base = _one_run(run)
    place = Path(str(out)).resolve() if out is not None else base / layout.OUTPUT
    window = _window(options["window"], options["stage"])
    others = {key: options[key] for key in known if key not in ("run", "out", "window")}
    return Settings(run=base, out=place, window=window, options=options, **others)


def in_full(option: str) -> str | None:
    """Return a hint where a user wrote only the end of an option's name, as in perfetto.window."""
    name, _, below = option.partition(".")
    for group in ("export", "stage"):
        if name in choices(group):
            chosen = f"it is chosen by {group}=[{name}]"
            return f"did you mean '{group}.{option}'?" if below else chosen
    schemas = SCHEMAS["schema"]
    nodes: list[tuple[str, type]] = [
        ("export.perfetto", schemas["perfetto"]),
        ("export.matrix", schemas["matrix"]),
        ("stage.clock", schemas["clock"]),
        ("stage.barriers", schemas["barriers"]),
        ("export.report", schemas["report"]),
        ("validate", ValidateConfig),
        *(("cluster", schema) for schema in SCHEMAS["schema/cluster"].values()),
    ]
    for at, schema in nodes:
        if option in (item.name for item in fields(schema)):
            return f"did you mean '{at}.{option}'?"
    return None


def _window(text: str | None, stages: Iterable[str]) -> Window | None:
    if text is None:
        return None
    if "clock" not in stages:
        raise ConfigError("window= needs times of events", "add clock to stage=[...]")
    return Window.parse("window", text)


def _one_run(run: str) -> Path:
    path, parts = Path(run).resolve(), run.split(",")
    if len(parts) > 1 and not path.exists() and all(Path(part).is_dir() for part in parts):
        raise RunNotFoundError(
            f"run folder {run} does not exist", "for several runs add --multirun"
        )
    return path


def _check_packages(config: DictConfig) -> None:
    """Refuse a user's own file whose keys, without its first line, are those of the whole group."""
    for group in ("stage", "export"):
        if "_target_" in config[group]:
            raise ConfigError(
                f"{group}={config[group]._target_}: the YAML file of this class has no package",
                f"its first line must be '# @package {group}.NAME', NAME that of the file",
            )


def _check_node(at: str, node: Any) -> None:
    """Refuse keys that the node's schema does not have, and required keys without a value."""
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{at} is not a group of options", f"it is {node!r}")
    schema = OmegaConf.get_type(node)
    known = [item.name for item in fields(schema)] if is_dataclass(schema) else None
    for key in map(str, node):
        if known is not None and key not in known:
            shown = [name for name in known if not name.startswith("_") and name != "kind"]
            raise ConfigError(f"unknown option '{at}.{key}'", suggest(key, shown, at))
        if OmegaConf.is_missing(node, key):
            raise ConfigError(f"{at}.{key} has no value", f"add {at}.{key}=...")
