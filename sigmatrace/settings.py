"""A checked configuration, and what its names of classes stand for; apart from Hydra.

Hydra takes as long to import as all that a run computes with, so what needs the outcome alone
does without it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmatrace.errors import ConfigError
from sigmatrace.window import Window


@dataclass(frozen=True)
class Settings:
    """A checked configuration.

    Attributes:
        run: Folder of the trace files, absolute.
        out: Folder of the output, absolute.
        run_id: As in ``Config``, like all that follow.
        stage: Arguments of each chosen stage, with ``_target_``.
        export: The same of exporters.
        options: All options as plain data, for ``run.json``.
    """

    run: Path
    out: Path
    run_id: str | None
    window: Window | None
    strict: bool
    overwrite: bool
    resume: str
    partition_mb: int
    plan: bool
    stage: Mapping[str, Mapping[str, Any]]
    export: Mapping[str, Mapping[str, Any]]
    cluster: Mapping[str, Any]
    validate: Mapping[str, Any]
    options: Mapping[str, Any]


def suggest(word: str, known: Iterable[str], below: str = "") -> str:
    """Return what a user may have meant, as a hint.

    Args:
        word: What was written.
        known: What there is.
        below: The group of options that it is in, "" if none.
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if not names:
        return "it has no options"
    listed = f"known: {', '.join(sorted(names))}"
    if not close:
        return listed
    meant = f"{below}.{close[0]}" if below else close[0]
    return f"did you mean {meant!r}? ({listed})"


def build(kind: str, chosen: Mapping[str, Mapping[str, Any]], bases: tuple[type, ...]) -> list[Any]:
    """Instantiate the chosen stages or exporters by the import paths in ``_target_``.

    Args:
        kind: "stage" or "export", for messages.
        chosen: Keyword arguments by name, each with ``_target_``.
        bases: What the classes must be subclasses of.

    Raises:
        ConfigError: A path does not lead to such a class, or an argument does not fit it.
    """
    made = []
    for name, arguments in chosen.items():
        given = {key: value for key, value in arguments.items() if key != "_target_"}
        target = arguments.get("_target_")
        cls = load(f"{kind}.{name}", target, bases)
        known = [key for key in inspect.signature(cls).parameters if key not in ("args", "kwargs")]
        for key in given:
            if key not in known:
                at = f"{kind}.{name}"
                raise ConfigError(f"unknown option '{at}.{key}'", suggest(key, known, at))
        try:
            made.append(cls(**given))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{kind}.{name} refuses its options", str(error)) from error
    return made


def load(at: str, target: Any, bases: tuple[type, ...]) -> type:
    """Import a class.

    Args:
        at: The option that names it, for messages.
        target: Its import path.
        bases: What it must be a subclass of one of.

    Raises:
        ConfigError: The path does not lead to such a class.
    """
    module, _, attribute = str(target or "").rpartition(".")
    if not module:
        raise ConfigError(f"{at} names no class", "its YAML needs _target_: module.Class")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{at}: cannot import {target}", f"{error}; is its folder on PYTHONPATH?"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{at}: cannot import {module}", f"{type(error).__name__}: {error}"
        ) from error
    if not hasattr(loaded, attribute):
        raise ConfigError(f"{at}: module {module} has no {attribute}", "check _target_")
    cls = getattr(loaded, attribute)
    if not (isinstance(cls, type) and issubclass(cls, bases)):
        wanted = " or ".join(base.__name__ for base in bases)
        raise ConfigError(f"{at}: {target} is not a subclass of {wanted}", "check _target_")
    return cls
