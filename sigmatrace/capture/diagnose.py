"""Why nothing was recorded: the likely reasons, most certain first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sigmatrace.capture.elf import Program, inspect
from sigmatrace.capture.layers import LAYERS
from sigmatrace.capture.runid import under_launcher

_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "srun")
_PRRTE = ("prterun", "orterun", "ompi", "openmpi")
_HYDRA = ("hydra", "mpich")
# Ways to move MPI's traffic on one node from its own shared memory into a traced layer.
_MPICH = (
    "MPICH over UCX: MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self",
    "MPICH over libfabric: MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp",
)
_OPEN_MPI = (
    "Open MPI over UCX: mpirun --mca pml ucx --mca osc ucx --mca pml_ucx_tls any"
    " --mca pml_ucx_devices any -x UCX_TLS=tcp,self",
    "Open MPI over libfabric: mpirun --mca pml cm --mca mtl ofi"
    " --mca mtl_ofi_provider_include tcp --mca osc ^ucx",
)
_INTEL = ("Intel MPI over libfabric: I_MPI_FABRICS=ofi FI_PROVIDER=tcp",)


def programs(command: Sequence[str], search: str) -> list[Program]:
    """Return the ELF programs among the words of a command line, in their order.

    ``mpirun -n 4 ./app`` names two: the words cannot be told apart without knowing every
    launcher's options, so each word that is an executable file counts.

    Args:
        command: The command line.
        search: Value of PATH.
    """
    found = []
    for word in command:
        folders = [""] if "/" in word else search.split(":")
        paths = [Path(folder, word) for folder in folders]
        path = next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)
        program = inspect(path) if path else None
        if program:
            found.append(program)
    return found


def nothing_hooked(
    command: Sequence[str], layers: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return likely reasons, one line each, for a command that left no trace file."""
    found = programs(command, environment.get("PATH", os.defpath))
    reasons = []
    for program in found:
        if program.static:
            reasons.append(f"{program.path} is statically linked: nothing can be preloaded into it")
        elif program.privileged:
            reasons.append(
                f"{program.path} runs with another user's rights (setuid, setgid or capabilities):"
                " the loader ignores LD_PRELOAD"
            )
        unchosen = [layer for layer in _linked(program) if layer not in layers]
        if unchosen:
            reasons.append(
                f"{program.path} is linked with layer {', '.join(unchosen)},"
                f" but only {','.join(layers)} was chosen and is built here"
            )
    if reasons:
        return reasons
    if _is_mpi(command, found, environment):
        return shared_memory(command, found, environment)
    return [
        "the command used neither libfabric nor UCX, or it loaded them with RTLD_DEEPBIND,"
        " or a script in between cleared LD_PRELOAD",
        *_other_layers(layers),
    ]


def nothing_recorded(
    command: Sequence[str], layers: Sequence[str], environment: Mapping[str, str], ranks: bool
) -> list[str]:
    """Return likely reasons for a command that loaded a library but used it for nothing.

    Args:
        command: The command line.
        layers: The layers that were traced: chosen and built.
        environment: The launcher's environment.
        ranks: Whether trace files know their MPI rank.
    """
    found = programs(command, environment.get("PATH", os.defpath))
    if ranks or _is_mpi(command, found, environment):
        return shared_memory(command, found, environment)
    return [
        "the libraries were loaded, but no message went through them",
        *_other_layers(layers),
    ]


def shared_memory(
    command: Sequence[str], found: Sequence[Program], environment: Mapping[str, str]
) -> list[str]:
    """Return how to make MPI's traffic on one node visible."""
    return [
        "MPI carries messages between ranks of one node in shared memory of its own, past"
        " libfabric and UCX; to trace them, choose a network path:",
        *(f"  {line}" for line in _settings(command, found, environment)),
    ]


def _settings(
    command: Sequence[str], found: Sequence[Program], environment: Mapping[str, str]
) -> tuple[str, ...]:
    needed = {name for program in found for name in program.needed}
    # mpirun is a name that all use, often for a link to a program with a telling one.
    places = " ".join([*command[:1], *(str(program.path.resolve()) for program in found)])
    if "I_MPI_ROOT" in environment:
        return _INTEL
    if "libmpi.so.40" in needed or "PMIX_NAMESPACE" in environment or _named(places, _PRRTE):
        return _OPEN_MPI
    if "libmpi.so.12" in needed or "HYDI_CONTROL_FD" in environment or _named(places, _HYDRA):
        return _MPICH
    return (*_MPICH, *_OPEN_MPI)


def _named_like_a_launcher(command: Sequence[str]) -> bool:
    return any(Path(word).name.partition(".")[0] in _LAUNCHERS for word in command)


def _named(places: str, names: Sequence[str]) -> bool:
    return any(name in places for name in names)


def _is_mpi(
    command: Sequence[str], found: Sequence[Program], environment: Mapping[str, str]
) -> bool:
    if under_launcher(environment) or _named_like_a_launcher(command):
        return True
    return any(name.startswith("libmpi") for program in found for name in program.needed)


def _linked(program: Program) -> list[str]:
    return [
        layer
        for layer, info in LAYERS.items()
        if any(name.startswith(info.linked) for name in program.needed)
    ]


def _other_layers(layers: Sequence[str]) -> list[str]:
    others = [layer for layer in LAYERS if layer not in layers]
    return [f"layers not chosen, or not built here: {', '.join(others)}"] if others else []
