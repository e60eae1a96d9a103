"""What the virtual machines boot: Debian's kernel with soft-RoCE, and an initramfs.

The kernel package is downloaded once and kept, unpacked, in ``.deps/rig`` of the checkout; no root
is needed. The initramfs is written for each boot. It loads the modules, makes the host's ``/``
(read-only, with a tmpfs over it) the guest's root and starts the agent there.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.errors import RigUnavailableError

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".deps" / "rig"
TOOLS = (
    "qemu-system-x86_64",
    "busybox",
    "cpio",
    "depmod",
    "modprobe",
    "setpriv",
    "ip",
    "rdma",
    "tc",
    "mpicc.openmpi",
    "mpirun.openmpi",
)
KERNEL_PACKAGE = "linux-image-amd64"  # the -cloud kernel has no rdma_rxe

# Loaded in this order, each after what it needs. The kernel finds no modprobe in the guest, so
# what it would ask for later (the checksum of rdma_rxe, queue disciplines) is here, too.
MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_net"),
    *("crc32_generic", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm", "rdma_rxe"),
    *("sch_netem", "sch_ingress", "cls_flower", "act_gact"),
)
_APT_S = 180
_UNPACK = ("./boot/vmlinuz-*", "*/lib/modules/*/modules.*", "*/lib/modules/*/kernel/*")
_NOT_UNPACKED = ("*/kernel/sound/*", "*/drivers/gpu/*", "*/drivers/media/*", "*/net/wireless/*")


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel.

    Attributes:
        image: The uncompressed kernel (ELF), or the packed one where it cannot be unpacked.
        modules: Folder of the modules, named so that the order of names is that of loading.
    """

    image: Path
    modules: Path


def prepare() -> Kernel:
    """The kernel, fetched on the first use.

    Raises:
        RigUnavailableError: A tool is missing or the kernel cannot be downloaded.
    """
    if platform.machine() != "x86_64":
        raise RigUnavailableError(f"the rig emulates x86_64 on x86_64, not on {platform.machine()}")
    missing = [tool for tool in TOOLS if not _which(tool)]
    if missing:
        raise RigUnavailableError(
            f"not installed: {', '.join(missing)} (scripts/setup.sh --dev installs them)"
        )
    key = hashlib.sha256(repr((KERNEL_PACKAGE, MODULES)).encode()).hexdigest()[:12]
    folder = CACHE / key
    with _locked(CACHE):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as work:
                _build(Path(work))
                (Path(work) / "ready").rename(folder)
    return Kernel(folder / "vmlinux", folder / "modules")


def write_initramfs(kernel: Kernel, config: Mapping[str, str], target: Path) -> None:
    """Writes the initramfs of a boot; `config` becomes shell variables of its init program."""
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        for name in ("bin", "proc", "sys", "dev", "lower", "upper", "root"):
            (root / name).mkdir()
        shutil.copy(_which("busybox"), root / "bin" / "busybox")
        shutil.copytree(kernel.modules, root / "modules")
        shutil.copy(HERE / "guest" / "init.sh", root / "init")
        (root / "init").chmod(0o755)
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in config.items()]
        (root / "config").write_text("".join(lines))
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        packed = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            input=names.encode(),
            cwd=root,
            stdout=subprocess.PIPE,
            check=True,
        )
    target.write_bytes(packed.stdout)


def _which(tool: str) -> str:
    """Path of a tool, also of those that only root has in its PATH; empty if there is none."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin") or ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(work: Path) -> None:
    """Downloads and unpacks the kernel into ``work/ready``."""
    _download(work)
    package = next(work.glob("*.deb"))
    tree, ready = work / "tree", work / "ready"
    tree.mkdir()
    (ready / "modules").mkdir(parents=True)
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
    ) as archive:
        excluded = [f"--exclude={pattern}" for pattern in _NOT_UNPACKED]
        unpack = ["tar", "-x", "--wildcards", "--no-same-owner", *excluded, *_UNPACK]
        subprocess.run(unpack, stdin=archive.stdout, cwd=tree, check=True)
    if (tree / "usr" / "lib").exists():  # where newer packages have them
        (tree / "usr" / "lib").rename(tree / "lib")
        (tree / "usr" / "lib").symlink_to("../lib")
    version = next((tree / "lib" / "modules").iterdir()).name
    subprocess.run([_which("depmod"), "-b", tree, version], check=True)
    for number, module in enumerate(_load_order(tree, version)):
        name = module.name.partition(".ko")[0]
        data = module.read_bytes()
        unpacked = lzma.decompress(data) if module.suffix == ".xz" else data
        (ready / "modules" / f"{number:02}-{name}.ko").write_bytes(unpacked)
    image = next((tree / "boot").glob("vmlinuz-*")).read_bytes()
    (ready / "vmlinux").write_bytes(unpacked_kernel(image) or image)


def _download(work: Path) -> None:
    """Downloads the kernel package that the meta package needs.

    With the system's package lists, or else with fresh ones in the work folder.
    """
    lists = work / "lists"
    (lists / "partial").mkdir(parents=True)
    private = ["-o", f"Dir::State::lists={lists}", "-o", "Dir::Cache::pkgcache="]
    log = ""
    for options in ([], private):
        if options:
            log += _apt(["apt-get", *options, "update"], work)
        depends = _apt(["apt-cache", *options, "depends", KERNEL_PACKAGE], work)
        needs = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-" in line]
        if needs:
            get = ["apt-get", *options, "-o", "APT::Sandbox::User=root", "download", needs[0]]
            log += _apt(get, work)
        if any(work.glob("*.deb")):
            return
    raise RigUnavailableError(f"apt-get cannot download {KERNEL_PACKAGE}: {log.strip()[-500:]}")


def _apt(command: list[str], work: Path) -> str:
    """What a command of apt prints, its errors included; what it left behind tells the outcome."""
    try:
        return subprocess.run(
            command,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_APT_S,
        ).stdout
    except subprocess.TimeoutExpired as error:
        return str(error)


def _load_order(tree: Path, version: str) -> list[Path]:
    """Files of `MODULES` and of what they need, each once, needed ones first."""
    order: dict[Path, None] = {}
    for name in MODULES:
        shown = subprocess.run(
            [_which("modprobe"), "-d", tree, "-S", version, "--show-depends", name],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        files = (line.split()[1] for line in shown.splitlines() if line.startswith("insmod"))
        order |= dict.fromkeys(map(Path, files))
    return list(order)


def unpacked_kernel(image: bytes) -> bytes | None:
    """The ELF file inside a bzImage: it starts at once, without seconds of emulated unpacking.

    Source: the x86 boot protocol of the kernel's documentation, fields setup_sects,
    payload_offset and payload_length.
    """
    start = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[start : start + struct.unpack_from("<I", image, 0x24C)[0]]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(payload)
    return None
