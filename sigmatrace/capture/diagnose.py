"""Why nothing was recorded: the likely reasons, most certain first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sigmatrace.capture.elf import Program
from sigmatrace.capture.layers import LAYERS
from sigmatrace.capture.mentioned import programs, words
from sigmatrace.capture.runid import under_launcher

_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "srun")
_PRRTE = ("prterun", "orterun", "ompi", "openmpi")
_HYDRA = ("hydra", "mpich")
# Ways to move MPI's traffic on one node from its own shared memory into a traced layer, by shim.
_MPICH = (
    ("ucx", "MPICH over UCX: MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self"),
    (
        "ofi",
        "MPICH over libfabric: MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp",
    ),
)
_OPEN_MPI = (
    (
        "ucx",
        "Open MPI over UCX: mpirun --mca pml ucx --mca osc ucx --mca pml_ucx_tls any"
        " --mca pml_ucx_devices any -x UCX_TLS=tcp,self",
    ),
    (
        "ofi",
        "Open MPI over libfabric: mpirun --mca pml cm --mca mtl ofi"
        " --mca mtl_ofi_provider_include tcp --mca osc ^ucx",
    ),
)
_INTEL = (("ofi", "Intel MPI over libfabric: I_MPI_FABRICS=ofi FI_PROVIDER=tcp"),)
_FAILED = "the command failed, perhaps before it communicated"
_NO_DEVICE = "no RDMA device was opened"


@dataclass(frozen=True)
class Attempt:
    """What was to be traced.

    Attributes:
        command: The command line.
        layers: The layers that were traced: chosen and built.
        unbuilt: The layers that were chosen, but are not built here.
        environment: The launcher's environment.
        failed: Whether the command ended with another code than 0, or by a signal.
    """

    command: Sequence[str]
    layers: Sequence[str]
    unbuilt: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    failed: bool = False

    @cached_property
    def words(self) -> list[str]:
        """The words of the command line, and of the shell code in it."""
        return words(self.command, self.environment.get("PATH", os.defpath))

    @cached_property
    def programs(self) -> list[Program]:
        """The programs among the words."""
        return programs(self.words, self.environment)


def nothing_hooked(attempt: Attempt) -> list[str]:
    """Return likely reasons, one line each, when no traced library was seen in any process."""
    reasons = [x for program in attempt.programs for x in _obstacles(program, attempt)]
    if reasons:
        return reasons
    if _is_mpi(attempt):
        failed = [_FAILED] if attempt.failed else []
        return [*failed, *shared_memory(attempt)]
    return [*_unseen(attempt), *_missed(attempt)]


def nothing_recorded(attempt: Attempt, ranks: bool, instead: Sequence[str] = ()) -> list[str]:
    """Return likely reasons for a command that loaded a library but used it for nothing.

    Args:
        attempt: What was to be traced.
        ranks: Whether trace files know their MPI rank.
        instead: What was recorded though no operation was; a line each.
    """
    failed = [_FAILED] if attempt.failed else []
    if instead:
        return [*failed, *instead]
    if ranks or _is_mpi(attempt):
        return [*failed, *shared_memory(attempt)]
    used = failed or ["the libraries were loaded, but no message went through them"]
    return [*used, *_missed(attempt)]


def shared_memory(attempt: Attempt) -> list[str]:
    """Return how to make MPI's traffic on one node visible to the traced layers."""
    shims = {LAYERS[layer].shim for layer in attempt.layers}
    lines = [f"  {line}" for shim, line in _settings(attempt) if shim in shims]
    text = (
        "MPI carries messages between ranks of one node in shared memory of its own, past"
        " libfabric and UCX; to trace them, choose a network path:"
    )
    return [*_left_out(attempt), *([text, *lines] if lines else [])]


def _obstacles(program: Program, attempt: Attempt) -> Iterator[str]:
    """Yield what certainly keeps a program from being traced."""
    if program.static:
        yield f"{program.path} is statically linked: nothing can be preloaded into it"
    elif program.privileged:
        yield (
            f"{program.path} runs with another user's rights (setuid, setgid or capabilities):"
            " the loader ignores LD_PRELOAD"
        )
    linked = _linked(program)
    if linked and not set(linked) & set(attempt.layers):
        for layers, why in _untraced(linked, attempt):
            yield f"{program.path} is linked with {_listed(layers)}, which {_verb(layers)} {why}"


def _unseen(attempt: Attempt) -> list[str]:
    """Return why libraries of traced layers were not seen, as far as the command tells it."""
    if _changes_preload(attempt.words):
        return ["the command changes LD_PRELOAD, by which its programs are traced"]
    if attempt.failed:
        return [_FAILED, *([_NO_DEVICE] if "verbs" in _used(attempt) else [])]
    for program in attempt.programs:
        linked = _linked(program)
        if linked:
            traced = [layer for layer in linked if layer in attempt.layers]
            used = "called nothing of it that is traced"
            return [
                f"{program.path} is linked with {_listed(traced)}, but"
                f" {'opened no RDMA device' if traced == ['verbs'] else used},"
                " or LD_PRELOAD did not reach it",
                *_texts(_untraced(linked, attempt)),
            ]
    libraries = " or ".join(dict.fromkeys(LAYERS[layer].library for layer in attempt.layers))
    return [f"no process used {libraries}, or LD_PRELOAD did not reach it"]


def _changes_preload(said: Sequence[str]) -> bool:
    if "LD_PRELOAD" in said or "sudo" in said:
        return True
    after_env = {said[at + 1] for at in range(len(said) - 1) if Path(said[at]).name == "env"}
    return bool(after_env & {"-i", "-", "--ignore-environment"})


def _used(attempt: Attempt) -> set[str]:
    """Return the traced layers that a program of the command is linked with."""
    linked = {layer for program in attempt.programs for layer in _linked(program)}
    return linked & set(attempt.layers)


def _missed(attempt: Attempt) -> list[str]:
    """Return which layers were not traced, unless the command is known to use one that was."""
    return [] if _used(attempt) else _left_out(attempt)


def _left_out(attempt: Attempt) -> list[str]:
    """Return which layers were not traced; those for which one has to ask are not missed."""
    # By shim: who chose UCT alone sees what goes through UCP, too.
    covered = {LAYERS[layer].shim for layer in attempt.layers}
    missed = [
        layer
        for layer, info in LAYERS.items()
        if layer in attempt.unbuilt or (info.default and info.shim not in covered)
    ]
    return _texts(_untraced(missed, attempt))


def _untraced(layers: Sequence[str], attempt: Attempt) -> list[tuple[list[str], str]]:
    """Return those of some layers that were not traced, by the reason."""
    unbuilt = [layer for layer in layers if layer in attempt.unbuilt]
    asked = (*attempt.layers, *attempt.unbuilt)
    unchosen = [layer for layer in layers if layer not in asked]
    parts = (
        (unbuilt, "not built here, see sigmatrace-capture --check"),
        (unchosen, "not chosen with --layers"),
    )
    return [part for part in parts if part[0]]


def _texts(untraced: Sequence[tuple[list[str], str]]) -> list[str]:
    return [f"{_listed(layers)} {_verb(layers)} {why}" for layers, why in untraced]


def _listed(layers: Sequence[str]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(layers)}"


def _verb(layers: Sequence[str]) -> str:
    return "were" if len(layers) > 1 else "was"


def _settings(attempt: Attempt) -> tuple[tuple[str, str], ...]:
    needed = {name for program in attempt.programs for name in program.needed}
    # mpirun is a name that all use, often for a link to a program with a telling one.
    resolved = (str(program.path.resolve()) for program in attempt.programs)
    places = " ".join([*attempt.command[:1], *resolved])
    environment = attempt.environment
    if "I_MPI_ROOT" in environment:
        return _INTEL
    if "libmpi.so.40" in needed or "PMIX_NAMESPACE" in environment or _named(places, _PRRTE):
        return _OPEN_MPI
    if "libmpi.so.12" in needed or "HYDI_CONTROL_FD" in environment or _named(places, _HYDRA):
        return _MPICH
    return (*_MPICH, *_OPEN_MPI)


def _named(places: str, names: Sequence[str]) -> bool:
    return any(name in places for name in names)


def _is_mpi(attempt: Attempt) -> bool:
    if under_launcher(attempt.environment):
        return True
    if any(Path(word).name.partition(".")[0] in _LAUNCHERS for word in attempt.words):
        return True
    return any(name.startswith("libmpi") for one in attempt.programs for name in one.needed)


def _linked(program: Program) -> list[str]:
    """Return the layers that a program is linked with: the upper ones, where there are any.

    libfabric is itself linked with libibverbs, and so is every program of it.
    """
    linked = [
        layer
        for layer, info in LAYERS.items()
        if any(name.startswith(info.linked) for name in program.needed)
    ]
    return [layer for layer in linked if LAYERS[layer].default] or linked
