"""One virtual machine, seen from the host: runs programs there over the control port."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.errors import RigError, RigTimeoutError

ANSWER_S = 60  # for an answer of the agent, on a loaded machine
_TAIL = 20


@dataclass(frozen=True)
class Result:
    """What an ended program left: exit code (negative: the signal), and its output."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}: exit code {self.code}\n{self.stdout}{self.stderr}"


class Node:
    """A booted guest.

    Attributes:
        number: 0, 1, ...; the host name is ``node<number>``.
        address: IPv4 address on the rig's network.
        addresses: All IP addresses there; each is a GID of the RDMA device.
    """

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], control: socket.socket, folder: Path
    ) -> None:
        self.number = number
        self.address = f"10.77.0.{number + 1}"
        self.addresses = (f"fe80::5054:ff:fe77:{number:x}", self.address)
        self.process = process
        self._control = control
        self._logs = (folder / f"console.{number}", folder / f"qemu.{number}")
        self._received = b""
        self._requests = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._ready: dict[str, Any] = {}

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/share"
    ) -> Program:
        """Starts a program in the background; `env` adds to the guest's small environment.

        Raises:
            RigError: It cannot be started, or the guest died.
        """
        argv = tuple(map(str, argv))
        answer = self.request("start", argv=argv, env=dict(env or {}), cwd=cwd)
        return Program(self, answer["pid"], argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/share",
        timeout: float = 60,
        check: bool = True,
    ) -> Result:
        """Runs a program to its end.

        Raises:
            RigError: It cannot be started, lasts longer than `timeout` seconds (it is killed then),
                ends with another exit code than 0 while `check` is set, or the guest died.
        """
        return self.start(argv, env=env, cwd=cwd).wait(timeout, check=check)

    @contextmanager
    def dropping(self, one_in: int) -> Iterator[None]:
        """Meanwhile, the node loses one of so many RoCE packets that reach it, at random.

        A capture on the host still sees them: the loss is behind it.
        """
        self._tc("qdisc", "add", "dev", "eth0", "ingress")
        try:
            for protocol in ("ip", "ipv6"):
                roce = ["protocol", protocol, "flower", "ip_proto", "udp", "dst_port", "4791"]
                drop = ["action", "pass", "random", "netrand", "drop", str(one_in)]
                self._tc("filter", "add", "dev", "eth0", "ingress", *roce, *drop)
            yield
        finally:
            self._tc("qdisc", "del", "dev", "eth0", "ingress")

    @contextmanager
    def netem(self, *arguments: str) -> Iterator[None]:
        """Meanwhile, what the node sends passes netem: ``("delay", "1ms", "reorder", "25%")``.

        It acts before a capture on the host: what is lost here is on no wire.
        """
        self._tc("qdisc", "add", "dev", "eth0", "root", "netem", *arguments)
        try:
            yield
        finally:
            self._tc("qdisc", "del", "dev", "eth0", "root")

    def _tc(self, *arguments: str) -> None:
        self.run(["tc", *arguments])

    def wait_ready(self, deadline: float) -> dict[str, Any]:
        """What the agent says when the guest is set up."""
        self.receive(lambda: bool(self._ready), deadline, "it did not boot")
        return self._ready

    def request(self, do: str, timeout: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        """Asks the agent for something; its answer."""
        number = self.send(do, **fields)
        deadline = time.monotonic() + timeout
        self.receive(lambda: number in self._answers, deadline, f"no answer to {do}")
        return self.answer_to(number)

    def send(self, do: str, **fields: Any) -> int:
        """Sends a request; its number."""
        self._requests += 1
        line = json.dumps({"id": self._requests, "do": do, **fields}) + "\n"
        try:
            self._control.settimeout(ANSWER_S)
            self._control.sendall(line.encode())
        except OSError as error:
            raise self.failure(f"the control port failed: {error}") from error
        return self._requests

    def has_answer(self, number: int) -> bool:
        """Whether the answer to a request has come."""
        return number in self._answers

    def answer_to(self, number: int) -> dict[str, Any]:
        """Takes the answer that came."""
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RigError(f"node {self.number}: {answer['error']}")
        return answer

    def has_ended(self, pid: int) -> bool:
        """Whether the agent has told the end of a program."""
        return pid in self._ended

    def end_of(self, pid: int) -> dict[str, Any]:
        """What the agent told about the end of a program."""
        return self._ended[pid]

    def receive(self, done: Callable[[], bool], deadline: float, what: str) -> None:
        """Takes messages until `done`.

        Raises:
            RigTimeoutError: The deadline passed.
            RigError: The guest died.
        """
        while not done():
            self._control.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                data = self._control.recv(1 << 16)
            except TimeoutError as error:
                raise RigTimeoutError(str(self.failure(f"{what} in time"))) from error
            except OSError as error:
                raise self.failure(f"the control port failed: {error}") from error
            if not data:
                raise self.failure("the guest died")
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif "ended" in message:
            self._ended[message["ended"]] = message
        else:
            self._ready = message

    def console(self) -> str:
        """What the guest's kernel and init printed, and after it what the emulator did."""
        texts = [log.read_text(errors="replace") for log in self._logs if log.exists()]
        return "".join(texts)

    def failure(self, what: str) -> RigError:
        """An error that shows the end of the console."""
        tail = "\n".join(self.console().splitlines()[-_TAIL:])
        return RigError(f"node {self.number}: {what}; its console ends with:\n{tail}")

    def stop(self) -> None:
        """Switches the guest off, with force where it does not follow."""
        try:
            if self.process.poll() is None and self._ready:
                self.send("off")
                self.process.wait(20)
        except (RigError, subprocess.TimeoutExpired):
            pass  # it is killed below
        finally:
            self._control.close()
            self.process.kill()
            self.process.wait()


class Program:
    """A program that was started on a node."""

    def __init__(self, node: Node, pid: int, argv: tuple[str, ...]) -> None:
        self.node, self.pid, self.argv = node, pid, argv

    def wait(self, timeout: float = 60, *, check: bool = True) -> Result:
        """Waits for the end.

        Raises:
            RigError: As for `Node.run`.
        """
        try:
            result = self._end(timeout)
        except RigTimeoutError as error:
            self.signal(signal.SIGKILL)
            late = f"node {self.node.number}: killed after {timeout} s: {self._end(ANSWER_S)}"
            raise RigTimeoutError(late) from error
        if check and result.code != 0:
            raise RigError(f"node {self.node.number}: {result}")
        return result

    def _end(self, timeout: float) -> Result:
        deadline, what = time.monotonic() + timeout, f"{self.argv[0]} did not end"
        self.node.receive(lambda: self.node.has_ended(self.pid), deadline, what)
        end = self.node.end_of(self.pid)
        return Result(self.argv, end["code"], end["stdout"], end["stderr"])

    def listening(self, port: int, timeout: float = 60) -> None:
        """Waits until a TCP socket or an rdma_cm id listens on the port of the node.

        Raises:
            RigError: The program ended before, or nothing listens within `timeout` seconds.
        """
        node = self.node
        number = node.send("listening", port=port, pid=self.pid)
        node.receive(
            lambda: node.has_answer(number) or node.has_ended(self.pid),
            time.monotonic() + timeout,
            f"nothing listens on port {port}",
        )
        if not node.has_answer(number):
            raise RigError(f"node {node.number}: {self.wait(check=False)}")
        node.answer_to(number)

    def signal(self, number: int) -> None:
        """Sends a signal to the program and its children; nothing happens after its end."""
        self.node.request("signal", pid=self.pid, number=int(number))
