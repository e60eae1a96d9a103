"""What a user did wrong, told from the errors of Hydra and OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import MarkedYAMLError

from sigmatrace import config
from sigmatrace.errors import ConfigError, SigmaTraceError
from sigmatrace.settings import suggest

OF_HYDRA = (HydraException, OmegaConfBaseException, MarkedYAMLError)
"""What Hydra raises where an option or a configuration file is wrong."""
SUBMITIT = ("hydra/launcher/submitit_local", "hydra/launcher/submitit_slurm")
"""Launchers of the extra ``cluster``: unknown to Hydra only where it is not installed."""

_TAKES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
_OTHER_TYPE = re.compile(
    r"Value '(?P<value>.*?)'(?: of type '\w+')? (?:could not be converted to|is not a valid) "
    rf"(?P<type>{'|'.join(_TAKES)})\b"
)
"""What OmegaConf says of a value of another type."""


def explain(error: Exception, folders: Sequence[Path] = ()) -> SigmaTraceError:
    """Return the user's mistake behind an error of Hydra or OmegaConf, with a hint."""
    missing = re.search(r"Could not override '([^']*)'\.?", str(error))
    if missing and (hint := config.in_full(missing[1])):
        return ConfigError(f"unknown option {missing[1]!r}", hint)
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for one in reversed(chain):
        found = _cause(one, folders)
        if found is not None:
            return found
    if isinstance(error, OverrideParseException):
        return ConfigError(f"cannot read the option {error.override!r}", "see --help for the form")
    if "Ambiguous value" in str(error):
        return ConfigError(_first(error), "for several values write KEY=[A,B]")
    if missing:
        return ConfigError(f"unknown option {missing[1]!r}", _known_groups(missing[1]))
    return ConfigError(_first(error))


def _cause(error: BaseException, folders: Sequence[Path]) -> ConfigError | None:
    """Return the mistake that this one error of a chain stands for, if it is a known one."""
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error, folders)
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}" if mark else "a configuration file"
        return ConfigError(f"{where} is not valid YAML", error.problem or "")
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(error)
    if isinstance(error, ValidationError):
        return _unfit(error)
    return None


def _unfit(error: ValidationError) -> ConfigError:
    """Return what is wrong with a value that its option does not take."""
    said = _first(error.msg or error)
    found = _OTHER_TYPE.match(said)
    if found is None:
        return ConfigError(f"option {error.full_key}: {said}")
    return ConfigError(f"{error.full_key}={found['value']}", f"it takes {_TAKES[found['type']]}")


def _first(error: object) -> str:
    return str(error).strip().split("\n")[0]


def _known_groups(key: str) -> str:
    return suggest(key, [*config.GROUPS, "run", "out", "strict", "overwrite"])


def _unknown_choice(error: MissingConfigException, folders: Sequence[Path]) -> ConfigError:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return ConfigError(_first(error))
    if error.missing_cfg_file in SUBMITIT:
        return ConfigError(
            f"{group}={name} needs hydra-submitit-launcher, which is not installed",
            "pip install -e '.[cluster]' in a checkout of sigmatrace",
        )
    known = config.choices(group, folders) or error.options or []
    return ConfigError(f"unknown {group} {name!r}", suggest(name, known))


def _unknown_key(error: ConfigKeyError | ConfigAttributeError) -> ConfigError:
    node = error.parent_node
    known = [str(key) for key in node] if isinstance(node, DictConfig) else []
    at, name = error.full_key or str(error.key), str(error.key)
    group = at.rpartition(".")[0]
    if group in config.GROUPS and name in config.choices(group):
        return ConfigError(
            f"option {at!r} belongs to a choice of {group} that is not chosen",
            f"add {name} to {group}=[...]",
        )
    shown = [key for key in known if key not in ("_target_", "kind", "hydra")]
    return ConfigError(f"unknown option {at!r}", suggest(name, shown, group))
