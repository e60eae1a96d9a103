"""Compiles the emulated NIC, the stand-in for the CUDA driver and the test program.

By hand: ``python -m tests.rigs.mlx5.build FOLDER [NVCC]``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "native"

_FLAGS = ["-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-pthread"]
_SHARED = ["-shared", "-fvisibility=hidden", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
_ENGINE = ("decode", "memory", "objects", "mailbox", "cqe", "execute", "target", "engine")
_COMMON = ("options", "cuda", "setup", "verbs", "devx", "exchange", "report")
_PAIR = tuple(f"pair_{name}" for name in (*_COMMON, "main", "verify"))
_BFS = (*(f"pair_{name}" for name in _COMMON), "bfs_main", "bfs_graph")
_KERNELS = ("pair_kernel", "bfs_kernel")
_ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class Built:
    """What was compiled.

    Attributes:
        nic: Folder of libibverbs and libmlx5 of the emulated NIC.
        driver: Folder of the stand-in's libcuda and libcupti.
        pair: The program.
        kernels: Of the program, for the stand-in.
        cubin: The same for a GPU, when nvcc was named.
        bfs: The second program.
        bfs_kernels: Its kernels: for a GPU when nvcc was named, else for the stand-in.
        strip: To be preloaded where the emulated NIC meets a real CUDA driver.
    """

    nic: Path
    driver: Path
    pair: Path
    kernels: Path
    cubin: Path | None
    bfs: Path
    bfs_kernels: Path
    strip: Path


def compile_c(target: Path, names: tuple[str, ...], *options: str) -> Path:
    """Compiles files of ``native/``, warnings being errors."""
    sources = [str(SOURCES / f"{name}.c") for name in names]
    command = [os.environ.get("CC", "cc"), *_FLAGS, "-o", str(target), *sources, *options]
    subprocess.run(command, check=True, timeout=300)
    return target


def _library(folder: Path, name: str, names: tuple[str, ...], *options: str) -> Path:
    """A shared library that is also found without its version."""
    target = compile_c(folder / name, names, *_SHARED, f"-Wl,-soname,{name}", *options)
    bare = folder / re.sub(r"\.\d+$", "", name)
    if bare != target and not bare.is_symlink():
        bare.symlink_to(name)
    return target


def _versions(name: str) -> str:
    return f"-Wl,--version-script,{SOURCES / name}.map"


def build(folder: Path, nvcc: str | None = None) -> Built:
    """Compiles everything into a folder.

    Args:
        folder: Made where missing.
        nvcc: Compiler for a real GPU; without it there is no `Built.cubin`.

    Raises:
        subprocess.CalledProcessError: Something does not compile.
    """
    nic, driver, programs = folder / "nic", folder / "driver", folder / "programs"
    for made in (nic, driver, programs):
        made.mkdir(parents=True, exist_ok=True)
    engine = (f"-L{nic}", "-lmlx5emu")
    _library(nic, "libmlx5emu.so", (*_ENGINE, "fabric", "journal"), "-ldl")
    verbs = _library(
        nic, "libibverbs.so.1", ("verbs", "verbs_queues"), _versions("libibverbs"), *engine
    )
    _library(nic, "libmlx5.so.1", ("mlx5dv",), _versions("libmlx5"), *engine, str(verbs))
    stand_in = ("fake_driver", "fake_kernels", "fake_memory", "fake_stream")
    cuda = _library(driver, "libcuda.so.1", stand_in, "-ldl")
    _library(driver, "libcupti.so.13", ("fake_cupti",), str(cuda))
    # Linked with the system's libraries: the emulated ones must have the same symbol versions.
    links = ("-lmlx5", "-libverbs", "-ldl")
    compile_c(programs / "gpu_pair", _PAIR, *links)
    compile_c(programs / "gpu_bfs", _BFS, *links)
    for name in _KERNELS:
        if nvcc:
            source, target = SOURCES / f"{name}.cu", programs / f"{name}.cubin"
            command = [nvcc, f"-arch={_ARCHITECTURE}", "-cubin", "-o", str(target), str(source)]
            subprocess.run(command, check=True, timeout=300)
        compile_c(programs / f"{name}.so", (name,), "-shared")
    _library(nic, "libmlx5emu_cuda.so", ("strip",), _versions("strip"), "-ldl")
    return built_in(folder)


def built_in(folder: Path) -> Built:
    """What was compiled into a folder."""
    nic, programs = folder / "nic", folder / "programs"
    cubin, bfs_cubin = (programs / f"{name}.cubin" for name in _KERNELS)
    return Built(
        nic=nic,
        driver=folder / "driver",
        pair=programs / "gpu_pair",
        kernels=programs / "pair_kernel.so",
        cubin=cubin if cubin.exists() else None,
        bfs=programs / "gpu_bfs",
        bfs_kernels=bfs_cubin if bfs_cubin.exists() else programs / "bfs_kernel.so",
        strip=nic / "libmlx5emu_cuda.so",
    )


def nvcc_found() -> str:
    """The compiler for GPUs: on the path, or where CUDA is usually installed.

    Raises:
        FileNotFoundError: There is none.
    """
    usual = sorted(map(str, Path("/usr/local").glob("cuda*/bin/nvcc")))
    found = shutil.which("nvcc") or (usual[-1] if usual else None)
    if found is None:
        raise FileNotFoundError("no nvcc: the CUDA toolkit is not installed")
    return found


if __name__ == "__main__":
    built = build(Path(sys.argv[1]), *sys.argv[2:3])
    print(f"LD_LIBRARY_PATH={built.nic}:{built.driver} {built.pair} kernel={built.kernels}")
