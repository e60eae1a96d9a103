"""Runs in a guest as its first process: sets the network up, then does what the host asks for.

Requests and answers are lines of JSON over a virtio serial port. One thread, standard library
alone. When the host closes its end, the guest is switched off.

Requests (each has an "id", which its answer repeats):
    start: argv, env, cwd -> pid; later, without a request: ended, code, stdout, stderr
    signal: pid, number
    listening: port, pid -> answered when a TCP socket or an rdma_cm id listens there, unless the
        program ends before
    send: token -> broadcasts it in a UDP datagram
    off
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NODE, NODES = int(os.environ["RIG_NODE"]), int(os.environ["RIG_NODES"])
NETWORK = "10.77.0."
ADDRESS = f"{NETWORK}{NODE + 1}"
DEVICE = "/sys/class/infiniband/rxe0/ports/1"
RSH_PORT, DISCARD_PORT = 514, 9
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", "RIG_NODE": str(NODE)}
TICK_S = 0.05  # between two looks at what the kernel does not announce


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def run(*command: str) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def wait_for(what: str, condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come")
        time.sleep(TICK_S)


def set_up() -> None:
    """Network, names of the nodes, the RDMA device, limits."""
    write("/proc/sys/kernel/hostname", f"node{NODE}")
    names = [f"{NETWORK}{node + 1} node{node}\n" for node in range(NODES)]
    write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(names))
    run("ip", "link", "set", "lo", "up")
    wait_for("the network device", Path("/sys/class/net/eth0").exists)
    write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0")
    run("ip", "address", "add", f"{ADDRESS}/24", "broadcast", "+", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    wait_for("the RDMA port", lambda: "ACTIVE" in read(f"{DEVICE}/state"))
    gid = f"ffff:0a4d:{NODE + 1:04x}"  # of the IPv4 address
    wait_for("the RDMA device's GID", lambda: gid in read(f"{DEVICE}/gids/1"))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def listens(port: int) -> bool:
    for table in ("tcp", "tcp6"):
        for line in read(f"/proc/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    ids = run("rdma", "resource", "show", "cm_id").splitlines()
    return any("state LISTEN " in one and f":{port} " in one for one in ids)


def calibration() -> list[str]:
    """What the kernel's log says about the frequency of the time stamp counter."""
    return [line for line in run("dmesg").splitlines() if "tsc: " in line and "MHz" in line]


class Agent:
    """The loop over the control port, ended children and pending waits."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received = b""
        # Referenced until reaped here: subprocess would collect a forgotten child by itself.
        self.children: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
        self.waits: list[dict[str, Any]] = []
        self.server = socket.create_server((ADDRESS, RSH_PORT))
        self.broadcast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.broadcast.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def say(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.port, data) :]

    def loop(self) -> None:
        while True:
            timeout = TICK_S if self.waits else None
            ready = select.select([self.port, self.wakeup, self.server], [], [], timeout)[0]
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
                self.reap()
            if self.server in ready:
                self.serve_rsh()
            if self.port in ready:
                data = os.read(self.port, 1 << 16)
                if not data:
                    return
                *lines, self.received = (self.received + data).split(b"\n")
                for line in lines:
                    self.answer(json.loads(line))
            ready_waits = [wait for wait in self.waits if listens(wait["port"])]
            for wait in ready_waits:
                self.waits.remove(wait)
                self.say(id=wait["id"])

    def answer(self, request: dict[str, Any]) -> None:
        what = request["do"]
        if what == "listening":
            self.waits.append(request)
            return
        try:
            answer = getattr(self, f"do_{what}")(request)
        except OSError as error:
            answer = {"error": str(error)}
        self.say(id=request["id"], **answer)

    def do_start(self, request: dict[str, Any]) -> dict[str, Any]:
        base = f"/run/output.{request['id']}"
        with Path(base + ".out").open("wb") as out, Path(base + ".err").open("wb") as err:
            child = subprocess.Popen(
                request["argv"],
                env=ENVIRONMENT | request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.children[child.pid] = child, base
        return {"pid": child.pid}

    def do_signal(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["pid"] in self.children:
            os.killpg(request["pid"], request["number"])
        return {}

    def do_send(self, request: dict[str, Any]) -> dict[str, Any]:
        self.broadcast.sendto(request["token"].encode(), (f"{NETWORK}255", DISCARD_PORT))
        return {}

    def do_off(self, request: dict[str, Any]) -> dict[str, Any]:
        os.sync()
        switch_off()
        return {}

    def reap(self) -> None:
        """Reports the children that ended, and collects orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.children:
                self.report(pid, os.waitstatus_to_exitcode(status))

    def report(self, pid: int, code: int) -> None:
        child, base = self.children.pop(pid)
        child.returncode = code
        self.waits = [wait for wait in self.waits if wait["pid"] != pid]
        if not base:
            return
        texts = {}
        for name in ("out", "err"):
            output = Path(f"{base}.{name}")
            texts[f"std{name}"] = output.read_text(encoding="utf-8", errors="replace")
            output.unlink()
        self.say(ended=pid, code=code, **texts)

    def serve_rsh(self) -> None:
        """Runs the command line that another node sent; its output is the answer."""
        connection = self.server.accept()[0]
        with connection, connection.makefile() as stream:
            child = subprocess.Popen(
                ["bash", "-c", stream.readline()],
                env=ENVIRONMENT,
                cwd="/share",
                stdin=subprocess.DEVNULL,
                stdout=connection.fileno(),
                stderr=connection.fileno(),
            )
        self.children[child.pid] = child, ""


def switch_off() -> None:
    write("/proc/sysrq-trigger", "b")  # the emulator ends at a reboot


def main() -> None:
    try:
        wait_for("the control port", lambda: any(Path("/dev").glob("vport*")))
        port = next(Path("/dev").glob("vport*"))
        set_up()
        agent = Agent(os.open(port, os.O_RDWR))
        agent.say(ready=NODE, address=ADDRESS, tsc=calibration())
        agent.loop()
    except BaseException as error:
        print(f"rig: the agent failed: {error!r}", file=sys.stderr, flush=True)
    switch_off()


if __name__ == "__main__":
    main()
