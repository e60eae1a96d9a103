"""What can go wrong with the rig."""

from __future__ import annotations


class RigUnavailableError(Exception):
    """This machine cannot run the rig: QEMU, a tool or the kernel cannot be had."""


class RigError(Exception):
    """The rig runs, or should, and something in it failed."""


class RigTimeoutError(RigError):
    """Something in the rig did not come in time."""
