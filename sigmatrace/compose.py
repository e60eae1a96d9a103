"""Composes a configuration outside of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sigmatrace import argv, config, mistakes


def compose(words: Sequence[str]) -> config.Settings:
    """Compose and check a configuration.

    Args:
        words: Options as on the command line.

    Raises:
        ConfigError: An option is unknown or has an impossible value.
    """
    command = argv.parse(words)
    try:
        return config.check(options(command))
    except (HydraException, OmegaConfBaseException) as error:
        raise mistakes.explain(error, command.folders) from error


def options(command: argv.Command) -> DictConfig:
    """Compose the options of a command line, whose flags do not count.

    Raises:
        HydraException: An option is unknown or has an impossible value.
        OmegaConfBaseException: So has one behind it.
    """
    config.register()
    before = dict(GlobalHydra.instance().__dict__)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config.folder()), version_base="1.3"):
            return hydra_compose("config", command.overrides)
    finally:
        GlobalHydra.instance().__dict__.update(before)
