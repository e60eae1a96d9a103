"""The environment of a traced command: what the launcher sets, as a pure function."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sigmatrace.capture.layers import DEFAULT_LAYERS, GROUPS, LAYERS
from sigmatrace.errors import CaptureError, ConfigError

MODES = ("aggregate", "simple", "full")
ENTRIES = ("hook", "preload")
HOOK_NAME = "sigmatrace"


@dataclass(frozen=True)
class Shims:
    """Where the native libraries lie; None: not built.

    Attributes:
        core: libsigmatrace_core.so, which all others need.
        preload: Shims to preload, by name.
        ofi_hook: The libfabric hook provider.
    """

    core: Path
    preload: Mapping[str, Path] = field(default_factory=dict)
    ofi_hook: Path | None = None


@dataclass(frozen=True)
class Settings:
    """What is captured, and where to.

    Attributes:
        out: Output folder, absolute.
        run_id: Id of the run, equal in all its processes.
        mode: One of ``MODES``.
        layers: Some of ``LAYERS``.
        clock: Clock that is paired with the TSC.
        ofi_entry: How libfabric is reached: "hook" or "preload".
    """

    out: Path
    run_id: str
    mode: str = "simple"
    layers: tuple[str, ...] = DEFAULT_LAYERS
    clock: str = "realtime"
    ofi_entry: str = "hook"


def parse_layers(text: str) -> tuple[str, ...]:
    """Turn ``"ofi,ucx"`` into layer names, in the order of ``LAYERS``.

    Raises:
        ConfigError: A name is unknown, or there is none.
    """
    chosen: set[str] = set()
    for name in filter(None, (part.strip().lower() for part in text.split(","))):
        if name not in LAYERS and name not in GROUPS:
            raise ConfigError(
                f"unknown layer {name!r}", f"choose from {', '.join((*LAYERS, *GROUPS))}"
            )
        chosen.update(GROUPS.get(name, (name,)))
    if not chosen:
        raise ConfigError("no layer chosen", f"choose from {', '.join((*LAYERS, *GROUPS))}")
    return tuple(layer for layer in LAYERS if layer in chosen)


def missing_layers(settings: Settings, shims: Shims) -> tuple[str, ...]:
    """Return the chosen layers whose shim this installation was built without."""
    return tuple(layer for layer in settings.layers if _shim(layer, settings, shims) is None)


def _hooked(layer: str, settings: Settings) -> bool:
    """Tell whether libfabric itself loads what traces this layer."""
    return layer == "ofi" and settings.ofi_entry == "hook"


def _shim(layer: str, settings: Settings, shims: Shims) -> Path | None:
    if _hooked(layer, settings):
        return shims.ofi_hook
    return shims.preload.get(LAYERS[layer].shim)


def compose(
    settings: Settings,
    shims: Shims,
    base: Mapping[str, str],
    provider_dirs: Sequence[Path] = (),
) -> dict[str, str]:
    """Return the variables to set for a traced command.

    What the user has in ``base`` (LD_PRELOAD, FI_PROVIDER_PATH, FI_HOOK) keeps working.

    Args:
        settings: What to capture.
        shims: The native libraries.
        base: The environment that the command would have had.
        provider_dirs: Default provider folders of the machine's libfabrics.

    Raises:
        CaptureError: The installation lies in a folder whose name LD_PRELOAD cannot carry.
    """
    changes = {
        "SIGMATRACE_OUT": str(settings.out),
        "SIGMATRACE_RUN_ID": settings.run_id,
        "SIGMATRACE_MODE": settings.mode,
        "SIGMATRACE_LAYERS": ",".join(settings.layers),
        "SIGMATRACE_CLOCK": settings.clock,
    }
    preload = {shims.core: None}
    # The lowest first: the GPU's shim passes calls of libibverbs on to that of verbs.
    for layer in sorted(settings.layers, key=list(LAYERS).index, reverse=True):
        shim = _shim(layer, settings, shims)
        if shim and _hooked(layer, settings):
            changes["FI_PROVIDER_PATH"] = provider_path(
                shim.parent, base.get("FI_PROVIDER_PATH", ""), provider_dirs
            )
            changes["FI_HOOK"] = _join([HOOK_NAME], base.get("FI_HOOK", ""), ";")
        elif shim:
            preload[shim] = None
    return {**changes, **_preload(list(preload), base)}


def provider_path(ours: Path, users: str, defaults: Sequence[Path]) -> str:
    """Put our provider folder in front of those that libfabric would have searched.

    A set FI_PROVIDER_PATH replaces libfabric's default folder, so the defaults are named too
    unless the user had replaced them himself. A leading ``@`` (order of discovery decides) and
    ``+FILE`` entries (preferred providers, which alone do not replace the default) are kept.
    Source: libfabric ``src/fabric.c``, ``ofi_load_dl_prov``, 1.17.0 and 2.x.
    """
    _refuse(ours, ":", "FI_PROVIDER_PATH")
    order, entries = ("@", users[1:]) if users.startswith("@") else ("", users)
    kept = [entry for entry in entries.split(":") if entry and entry != str(ours)]
    if all(entry.startswith("+") for entry in kept):
        kept += [str(path) for path in defaults if ":" not in str(path)]
    return order + ":".join([str(ours), *dict.fromkeys(kept)])


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Return ``export NAME='value'`` lines that any POSIX shell can evaluate."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]


def _preload(libraries: Sequence[Path], base: Mapping[str, str]) -> dict[str, str]:
    """Return LD_PRELOAD, and LD_LIBRARY_PATH where LD_PRELOAD cannot carry the folder.

    LD_PRELOAD is split at blanks and colons and knows no quoting; a folder with a blank in
    its name goes into LD_LIBRARY_PATH instead, which is split at colons and semicolons.
    """
    folder = libraries[0].parent
    _refuse(folder, ":;\n", "LD_PRELOAD")
    if not any(character.isspace() for character in str(folder)):
        entries = [str(path) for path in libraries]
        return {"LD_PRELOAD": _join(entries, base.get("LD_PRELOAD", ""), ":", " ")}
    return {
        "LD_PRELOAD": _join(
            [path.name for path in libraries], base.get("LD_PRELOAD", ""), ":", " "
        ),
        "LD_LIBRARY_PATH": _join([str(folder)], base.get("LD_LIBRARY_PATH", ""), ":"),
    }


def _join(ours: Sequence[str], users: str, separator: str, also: str = "") -> str:
    """Put our entries before the user's, each once."""
    for character in also:
        users = users.replace(character, separator)
    return separator.join(dict.fromkeys([*ours, *filter(None, users.split(separator))]))


def _refuse(folder: Path, characters: str, variable: str) -> None:
    if set(characters) & set(str(folder)):
        raise CaptureError(
            f"{folder}: {variable} cannot name a folder with one of {characters!r} in its path",
            "install SigmaTrace in another folder",
        )
