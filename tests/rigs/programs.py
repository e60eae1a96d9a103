"""Programs of ibverbs-utils, rdmacm-utils and perftest on two nodes: how they are run and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sigmatrace.validate.flows import Flow, PacketCapture
from sigmatrace.validate.pcap import read_capture
from tests.rigs.errors import RigError
from tests.rigs.node import Result
from tests.rigs.rig import Rig

PORT = 18515
COUNT = 40

# With -R, perftest connects a second time at once, and its server may not listen again by then.
_TOO_EARLY = "RDMA_CM_EVENT_REJECTED; error: 8"
_ATTEMPTS = 12


def pingpong(kind: str, *options: str) -> list[str]:
    """Arguments of a program of ibverbs-utils: kind is rc, uc, ud or srq."""
    return [f"ibv_{kind}_pingpong", "-g", "1", "-n", str(COUNT), *options]


def perftest(program: str, *options: str) -> list[str]:
    """Arguments of a program of perftest."""
    return [program, "-d", "rxe0", "-x", "1", "-n", str(COUNT), "-F", *options]


@dataclass(frozen=True)
class Ran:
    """What ran on the nodes, and what was captured meanwhile.

    Attributes:
        rig: The nodes.
        results: Of a pair of programs: the server's on node 0, then the client's on node 1.
        capture: File of the packets.
    """

    rig: Rig
    results: tuple[Result, ...]
    capture: Path

    @cached_property
    def wire(self) -> PacketCapture:
        return read_capture(self.capture)

    @property
    def server(self) -> Result:
        return self.results[0]

    @property
    def client(self) -> Result:
        return self.results[-1]

    def flow(self, sender: int, qpn: int) -> Flow:
        """What a node sent to the queue pair of the other one."""
        source = self.rig.node(sender).address
        (found,) = [f for f in self.wire.flows if (f.source, f.qpn) == (source, qpn)]
        return found

    def is_whole(self) -> bool:
        """Whether all frames were decoded, and all packets belong to a message."""
        frames = self.wire.frames
        undecoded = frames.damaged + frames.cut + frames.fragments + frames.roce_v1
        return not undecoded and not any(f.incomplete + f.contradicting for f in self.wire.flows)


def run_pair(
    rig: Rig,
    folder: Path,
    server: Sequence[str],
    client: Sequence[str] | None = None,
    *,
    port: int = PORT,
    env: Mapping[str, str] | None = None,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
    before: Callable[[], None] = lambda: None,
) -> Ran:
    """Runs the pair and captures its packets in ``case.pcap`` of `folder`.

    Args:
        rig: The nodes.
        folder: Of the host.
        server: Arguments of the server.
        client: Those of the client, to which the server's address is added; like the server's when
            left out.
        port: Where the server listens.
        env: Added to the environment of both.
        within: Makes a context to run them in, `Node.netem` for example.
        before: Called before each attempt: what an earlier one left is to be removed.

    Raises:
        RigError: One of them failed.
    """
    capture = folder / "case.pcap"
    for attempt in range(1, _ATTEMPTS + 1):
        before()
        try:
            with rig.capture.into(capture), within():
                results = rig.pair(server, client or server, port, env=env)
            return Ran(rig, results, capture)
        except RigError as error:
            if _TOO_EARLY not in str(error) or attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def printed_ends(output: str) -> list[dict[str, int]]:
    """The queue pairs that a program prints: its own ones, and then those of the other end.

    Keys: qpn and psn; rkey and address where the program tells them.
    """
    fields = {"qpn": r"QPN:? 0x(\w+)", "psn": r"PSN 0x(\w+)", "rkey": r"RKey 0x(\w+)"}
    fields["address"] = r"VAddr 0x(\w+)"
    found = []
    for line in output.splitlines():
        if re.search(r"(local|remote) address:", line):
            seen = {name: re.search(pattern, line) for name, pattern in fields.items()}
            found.append({name: int(match[1], 16) for name, match in seen.items() if match})
    return found
