"""Turns a user's command line into one that Hydra takes literally.

Hydra's grammar refuses or changes many paths, knows ``+run=`` but not ``+export=``, and wants
its flags before its overrides. Nobody should have to know that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from sigmatrace.config import GROUPS, Config, folder
from sigmatrace.errors import ConfigError
from sigmatrace.settings import suggest

PATHS = ("run", "out")
LITERAL = ("window", *(f"export.perfetto.{x}" for x in ("window", "ranks", "qps", "ops", "split")))
"""Options whose value is one text; Hydra would take its commas for several values."""
FLAGS = {
    "--help": 0, "-h": 0, "--hydra-help": 0, "--resolve": 0, "--multirun": 0, "-m": 0,
    "--cfg": 1, "-c": 1, "--package": 1, "-p": 1, "--config-dir": 1, "-cd": 1,
    "--config-name": 1, "-cn": 1, "--info": 1, "-i": 1, "--shell-completion": 0, "-sc": 0,
    "--debug": 0, "--plan": 0,
}  # fmt: skip
"""Flags and how many words follow each; Hydra's own, beyond those of the help, do no harm."""
SHOWN = ("--plan", "--multirun", "--config-dir", "--cfg", "--debug", "--version", "--help")
OPTIONS = (*GROUPS, *(item.name for item in fields(Config) if item.name not in GROUPS))


@dataclass
class Command:
    """A command line taken apart.

    Attributes:
        flags: Hydra's own flags with their values.
        overrides: Overrides, quoted for Hydra.
        debug: Show tracebacks.
        multirun: Run once for each combination of values.
        folders: A user's own configuration folders.
    """

    flags: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    debug: bool = False
    multirun: bool = False
    folders: list[Path] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The arguments for Hydra: flags first."""
        return [*self.flags, *self.overrides]

    @property
    def is_plain(self) -> bool:
        """Whether this is one run, of which Hydra has nothing to know but the options."""
        keys = (word.partition("=")[0] for word in self.overrides)
        named = any("hydra" in key for key in keys)
        return not self.flags and not named and not any("${hydra:" in x for x in self.overrides)


def parse(words: Sequence[str]) -> Command:
    """Take a command line apart and quote it for Hydra.

    Raises:
        ConfigError: A flag is unknown, a word is no option, or a path is empty or missing.
    """
    command = Command()
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        flag, _, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif flag not in FLAGS:
            raise _unknown(flag, value or next(iter(queue), ""))
        elif flag == "--debug":
            command.debug = True
        elif flag == "--plan":
            rest.append("plan=true")
        else:
            _take_flag(command, word, flag, value, queue)
    command.multirun = any(flag in ("--multirun", "-m") for flag in command.flags)
    command.overrides = [_override(word, command) for word in rest]
    _check_preset(command)
    for place in command.folders:
        if not place.is_dir():
            raise ConfigError(f"no such configuration folder: {place}", "check the path")
    return command


def quote(text: str) -> str:
    """Return a path as a quoted string that Hydra and OmegaConf read back unchanged.

    ``${hydra:...}`` alone keeps its meaning: a multirun needs ``${hydra:job.num}``.
    """
    literal = re.sub(r"\$\{(?!hydra:)", r"\\${", text)
    return str(QuotedString(literal, Quote.single).with_quotes())


def _unknown(flag: str, value: str) -> ConfigError:
    """Return what is wrong with a flag that is none: it may be an option, which has no dashes."""
    name = flag.lstrip("-").replace("-", "_")
    if name in OPTIONS:
        shown = value if value and not value.startswith("-") and "=" not in value else "VALUE"
        return ConfigError(f"unknown flag {flag!r}", f"options are KEY=VALUE: {name}={shown}")
    return ConfigError(f"unknown flag {flag!r}", suggest(flag, SHOWN))


def _check_preset(command: Command) -> None:
    """Refuse a preset beside a choice that it makes itself: one of them would be dropped."""
    given = dict(word.partition("=")[::2] for word in command.overrides)
    preset = given.get("preset", "")
    for place in (*command.folders, folder()):
        path = place / "preset" / f"{preset}.yaml"
        if path.is_file():
            chosen = re.findall(r"override\s+/?(\w+)\s*:", path.read_text(encoding="utf-8"))
            for group in chosen:
                if group in given:
                    raise ConfigError(
                        f"preset={preset} chooses {group} itself",
                        f"leave out {group}={given[group]}, or the preset",
                    )
            return


def _take_flag(command: Command, word: str, flag: str, value: str, queue: list[str]) -> None:
    command.flags.append(word)
    if FLAGS[flag] and "=" not in word and queue:
        value = queue.pop(0)
        command.flags.append(value)
    if flag in ("--config-dir", "-cd"):
        command.folders.append(Path(value))


def _override(word: str, command: Command) -> str:
    key, equals, value = word.partition("=")
    if not equals and not key.startswith("~"):
        hint = f"did you mean run={word}?" if Path(word).is_dir() else "options are KEY=VALUE"
        raise ConfigError(f"{word!r} is not an option", hint)
    bare = key.lstrip("+")
    if _goes_on(value) and bare not in LITERAL and (bare not in PATHS or command.multirun):
        hint = "no space after the comma, or quotes around the whole option"
        raise ConfigError(f"{word!r} ends within a list", hint)
    if bare in PATHS:
        return f"{bare}={_paths(bare, value, command.multirun)}"
    if bare in LITERAL and value not in ("", "null") and value[0] not in "'\"":
        return f"{bare}={quote(value)}"
    if bare == "hydra.searchpath":
        command.folders += _searchpath(value)
    return f"{bare}{equals}{value}" if bare in GROUPS else word


def _goes_on(value: str) -> bool:
    """Return whether a value was torn at a space, as the shell does with ``[A, B]``."""
    return value.endswith(",") or (value.startswith("[") and "]" not in value)


def _paths(key: str, value: str, several: bool) -> str:
    parts = value.split(",") if several else [value]
    if not all(parts):
        raise ConfigError(f"{key}= is empty", "give a folder")
    return ",".join(quote(_home(part)) for part in parts)


def _home(path: str) -> str:
    """Expand a leading ``~``, which shells leave alone behind ``+run=``."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}", "write the path in full") from error


def _searchpath(value: str) -> list[Path]:
    parts = (part.strip().strip("'\"") for part in value.strip("[]").split(","))
    return [Path(part.removeprefix("file://")) for part in parts if part and "pkg://" not in part]
