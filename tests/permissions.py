"""Makes the permissions of files count for root, too. Standard library alone."""

from __future__ import annotations

import os


def obeying(*command: object) -> list[str]:
    """The words that run a command which writes only where the permissions of files allow it.

    Root keeps its user and its files, and loses the capability to override permissions.
    """
    drop = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override", "--"]
    return [*(drop if os.getuid() == 0 else []), *map(str, command)]
