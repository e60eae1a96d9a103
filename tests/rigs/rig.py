"""Virtual machines with soft-RoCE devices on one network, on a host that has no RDMA at all.

QEMU emulates them (TCG; no KVM). A guest's root is the host's ``/``, read-only below a tmpfs: what
is built and installed on the host is at the same path in the guest, and nothing that the guest
writes reaches the host, but for ``/share``. A file that changes on the host after a guest has read
it may keep its old content there.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.rigs import image, tsc
from tests.rigs.capture import SNAPLEN, Capture
from tests.rigs.errors import RigError
from tests.rigs.node import Node, Result

AGENT = Path(__file__).resolve().parent / "guest" / "agent.py"
RSH = AGENT.with_name("rsh.py")  # for MPI launchers: RSH HOST COMMAND...
BOOT_S = 240
_KERNEL_OPTIONS = (
    *("console=ttyS0", "panic=-1", "quiet", "loglevel=4", "mitigations=off", "net.ifnames=0"),
    *("random.trust_cpu=on", "audit=0", "nowatchdog", "tsc=reliable", "no_timer_check"),
)
_COUNTED_ON = 3  # queue pairs made and dropped on each node more than on the one before


class Rig:
    """A context manager: boots on entry, switches off on exit.

    Attributes:
        nodes: The nodes, once booted.
        share: Folder of the host that is ``/share`` in each guest, readable and writable.
        capture: The packets between the nodes.
    """

    nodes: Sequence[Node]
    capture: Capture

    def __init__(self, folder: Path, nodes: int = 2, memory_mb: int = 768) -> None:
        self._folder, self._count, self._memory_mb = folder, nodes, memory_mb
        self.share = folder / "share"
        self._stack = ExitStack()

    def __enter__(self) -> Rig:
        """Boots.

        Raises:
            RigUnavailableError: This machine cannot run the rig.
            RigError: A guest did not boot, or has a wrong clock.
        """
        kernel = image.prepare()
        self.share.mkdir(parents=True)
        config = {
            "RIG_PYTHON": sys.executable,
            "RIG_AGENT": str(AGENT),
            "RIG_NODES": str(self._count),
        }
        image.write_initramfs(kernel, config, self._folder / "initramfs")
        with self._stack:
            khz = tsc.host_khz()
            self.nodes = self._launch(kernel, khz)
            self._await_boot(khz)
            self.capture = Capture(self._folder / "network.pcap", self.nodes)
            self._shift_numbers()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def node(self, number: int) -> Node:
        """A node by its number."""
        return self.nodes[number]

    def pair(
        self,
        server: Sequence[str],
        client: Sequence[str],
        port: int,
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> tuple[Result, Result]:
        """Runs a server on node 0 and, once it listens on `port`, its client on node 1.

        The client's arguments get the server's address as the last one; `env` is for both.

        Raises:
            RigError: One of them failed.
        """
        serving = self.node(0).start(server, env=env)
        try:
            serving.listening(port)
            command = [*client, self.node(0).address]
            client_result = self.node(1).run(command, env=env, timeout=timeout)
            return serving.wait(timeout), client_result
        except RigError as error:
            serving.signal(signal.SIGKILL)  # nothing happens where it has ended
            served = serving.wait(check=False)
            raise RigError(f"{error}\nits server, ended or killed: {served}") from error

    def collect(self, node: Node, path: str) -> Path:
        """Copies a file or folder of a guest to the host; where it is there.

        For what is written in a guest's own file system, which ends with it.
        """
        name = f"node{node.number}"
        (self.share / name).mkdir(exist_ok=True)
        node.run(["cp", "-r", "--", path, f"/share/{name}/"])
        return self.share / name / Path(path).name

    def _launch(self, kernel: image.Kernel, khz: int) -> list[Node]:
        """Starts the emulators; node 0 has the hub that the others are connected to."""
        links = [socket.socketpair() for _ in range(1, self._count)]
        near_ends, far_ends = [one for one, _ in links], [other for _, other in links]
        nodes = []
        with ExitStack() as handed_over:
            for end in (*near_ends, *far_ends):
                handed_over.enter_context(end)
            for number in range(self._count):
                control, guest_end = socket.socketpair()
                handed_over.enter_context(guest_end)
                sockets = near_ends if number == 0 else [far_ends[number - 1]]
                command = [
                    *self._command(kernel, number, khz),
                    *_serial_port(guest_end),
                    *_network(number, sockets, self._folder / "network.pcap"),
                ]
                with (self._folder / f"qemu.{number}").open("wb") as log:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=[guest_end.fileno(), *(one.fileno() for one in sockets)],
                    )
                node = Node(number, process, control, self._folder)
                self._stack.callback(node.stop)
                nodes.append(node)
        return nodes

    def _command(self, kernel: image.Kernel, number: int, khz: int) -> list[str]:
        """The emulator of a node, but for its sockets. It ends with this process at the latest."""
        append = [*_KERNEL_OPTIONS, f"tsc_early_khz={khz}", f"RIG_NODE={number}"]
        shared = {"root": ("/", ",readonly=on,multidevs=remap"), "share": (str(self.share), "")}
        plan9 = []
        for tag, (path, options) in shared.items():
            escaped = path.replace(",", ",,")
            plan9 += [
                *("-fsdev", f"local,id={tag},path={escaped},security_model=none{options}"),
                *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            ]
        console = str(self._folder / f"console.{number}").replace(",", ",,")
        return [
            *("setpriv", "--pdeathsig", "KILL", shutil.which("qemu-system-x86_64") or ""),
            *("-accel", "tcg,tb-size=256", "-M", "q35", "-cpu", "max", "-smp", "1"),
            *("-m", str(self._memory_mb), "-nodefaults", "-display", "none", "-no-reboot"),
            *("-serial", f"file:{console}"),
            *("-kernel", str(kernel.image), "-initrd", str(self._folder / "initramfs")),
            *("-append", " ".join(append)),
            *plan9,
        ]

    def _await_boot(self, khz: int) -> None:
        deadline = time.monotonic() + BOOT_S
        for node in self.nodes:
            fault = tsc.fault(node.wait_ready(deadline)["tsc"], khz)
            if fault:
                raise RigError(f"node {node.number}: {fault}")

    def _shift_numbers(self) -> None:
        """Makes each node count queue pairs on, so that two ends never have the same number.

        Else a test could not see that the two ends of a pair are swapped.
        """
        for node in self.nodes:
            servers = []
            for port in range(20000, 20000 + _COUNTED_ON * node.number):
                servers.append(node.start(["ibv_rc_pingpong", "-g", "1", "-p", str(port)]))
                servers[-1].listening(port)
            for server in servers:
                server.signal(signal.SIGKILL)
                server.wait(check=False)


def _serial_port(end: socket.socket) -> list[str]:
    return [
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=control,fd={end.fileno()}"),
        *("-device", "virtserialport,chardev=control,name=rig"),
    ]


def _network(number: int, sockets: Sequence[socket.socket], capture: Path) -> list[str]:
    """A network card; on node 0 on a hub, with the capture, and connected to the other nodes."""
    card = f"virtio-net-pci,netdev=card,mac=52:54:00:77:00:{number:02x},romfile="
    if number:
        return ["-netdev", f"socket,id=card,fd={sockets[0].fileno()}", "-device", card]
    network = ["-netdev", "hubport,id=card,hubid=0", "-device", card]
    for index, one in enumerate(sockets):
        network += [
            *("-netdev", f"socket,id=link{index},fd={one.fileno()}"),
            *("-netdev", f"hubport,id=port{index},hubid=0,netdev=link{index}"),
        ]
    file = str(capture).replace(",", ",,")
    dump = f"filter-dump,id=dump,netdev=card,file={file},maxlen={SNAPLEN}"
    return [*network, "-object", dump]
