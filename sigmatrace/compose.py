"""Composes a configuration outside of a command line."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from sigmatrace import argv, config, mistakes
from sigmatrace.settings import Settings


def compose(words: Sequence[str]) -> Settings:
    """Compose and check a configuration.

    Args:
        words: Options as on the command line.

    Raises:
        ConfigError: An option is unknown or has an impossible value.
    """
    return composed(argv.parse(words))


def composed(command: argv.Command) -> Settings:
    """Compose and check the options of a command line, whose flags do not count.

    Raises:
        ConfigError: An option is unknown or has an impossible value.
    """
    try:
        return config.check(_options(command))
    except mistakes.OF_HYDRA as error:
        raise mistakes.explain(error, command.folders) from error


def _options(command: argv.Command) -> DictConfig:
    config.register()
    before = dict(GlobalHydra.instance().__dict__)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config.folder()), version_base="1.3"):
            return hydra_compose("config", command.overrides)
    finally:
        GlobalHydra.instance().__dict__.update(before)
