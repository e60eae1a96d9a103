"""Builds the UCX shim and the programs, runs them traced, and reads what they left."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from native_run import NATIVE, environment
from plain_reader import Rank, read_all

from tests.listening import free_port, wait_listening

HERE = Path(__file__).parent
KINDS = {1: "MSG", 2: "TAG", 3: "RMA", 4: "AM", 5: "STREAM"}
DIRS = {1: "OUT", 2: "IN"}
OPS = ("SEND", "RECV", "PUT", "GET", "ATOMIC", "ATOMIC_FETCH", "FLUSH", "CANCEL", "PROBE")
UNKNOWN = 2**64 - 1
UCP, UCT = 2, 3


def build(folder: Path) -> Path:
    """A fresh build of the shim; its folder."""
    subprocess.run(["cmake", "-S", NATIVE, "-B", folder, "-G", "Ninja"], check=True)
    subprocess.run(["ninja", "-C", folder, "sigmatrace_ucx"], check=True)
    return folder


def compiled(name: str, folder: Path, *options: str) -> Path:
    """A C program of this folder, compiled with its libraries among the options."""
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = ["cc", "-O1", "-g", *warnings, HERE / f"{name}.c", "-o", folder / name, *options]
    subprocess.run(command, check=True)
    return folder / name


def wheel() -> Path:
    """Folder of the libucx wheel, one of the test packages."""
    found = find_spec("libucx")
    assert found and found.origin
    return Path(found.origin).parent


@dataclass(frozen=True)
class Ucx:
    """One version of UCX: the distribution's, or the wheel's."""

    name: str
    perftest: str
    libraries: str

    @property
    def old(self) -> bool:
        """Is it the distribution's?"""
        return self.name == "debian"


def ucx(name: str) -> Ucx:
    """The version of that name."""
    if name == "debian":
        return Ucx(name, "ucx_perftest", "")
    folder = wheel()
    return Ucx(name, str(folder / "bin" / "ucx_perftest"), str(folder / "lib"))


@dataclass
class Setting:
    """How a program is traced."""

    shim: Path
    ucx: Ucx
    mode: str = "simple"
    layers: str = "ucp"
    tls: str = "tcp,self"

    def environment(self, out: Path) -> dict[str, str]:
        """The traced program's environment."""
        return environment(
            out,
            SIGMATRACE_MODE=self.mode,
            SIGMATRACE_LAYERS=self.layers,
            LD_PRELOAD=str(self.shim / "libsigmatrace_ucx.so"),
            LD_LIBRARY_PATH=self.ucx.libraries,
            UCX_TLS=self.tls,
        )


def perftest(setting: Setting, out: Path, test: str, *options: str) -> tuple[Rank, Rank]:
    """Runs server and client; their rank files in this order."""
    port = free_port()
    common = ["-t", test, "-p", str(port), *options]
    env = setting.environment(out)
    with subprocess.Popen(
        [setting.ucx.perftest, *common], env=env, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            wait_listening(port, server)
            client = subprocess.run(
                [setting.ucx.perftest, "127.0.0.1", *common],
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert client.returncode == 0, client.stdout + client.stderr
            server.communicate(timeout=60)
            assert server.returncode == 0
        finally:
            server.kill()
    by_pid = {rank.header["pid"]: rank for rank in read_all(out)}
    first = by_pid.pop(server.pid)
    (second,) = by_pid.values()
    return first, second


def pair(setting: Setting, program: Path, out: Path, *phases: str) -> dict[int, Rank]:
    """Runs ucx_pair; by rank, its rank file with what the program says it did in `told`."""
    done = subprocess.run(
        [str(program), *phases],
        env=setting.environment(out),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told: dict[int, dict[Any, tuple[int, int]]] = defaultdict(dict)
    pids = {}
    for line in done.stdout.splitlines():
        if not line.startswith(("0 ", "1 ")):  # UCX itself warns on stdout
            continue
        rank, *rest = line.split()
        if rest[0] == "pid":
            pids[int(rest[1])] = int(rank)
        else:
            op, kind, direction, tag, count, size = rest
            told[int(rank)][op, kind, direction, int(tag)] = (int(count), int(size))
    found = {pids[rank.header["pid"]]: rank for rank in read_all(out)}
    for number, rank in found.items():
        rank.told = told[number]
    return found


def merged_objects(rank: Rank) -> dict[int, dict[str, Any]]:
    """Objects by id, later items over earlier ones."""
    objects: dict[int, dict[str, Any]] = defaultdict(dict)
    for item in rank.objects:
        objects[item["id"]].update(item)
    return objects


@dataclass
class Traced:
    """The operations of one layer in a process."""

    rank: Rank
    layer: int = UCP

    def __post_init__(self) -> None:
        channels = {c["id"]: c for c in self.rank.records(2)}
        self.objects = merged_objects(self.rank)
        self.ops = [
            op | {"on": channels[op["channel"]]}
            for op in self.rank.records(1)
            if channels[op["channel"]]["layer"] == self.layer
        ]

    def sums(self) -> dict[Any, tuple[int, int]]:
        """Count and bytes by (operation, kind, direction, tag)."""
        count: Counter[Any] = Counter()
        size: Counter[Any] = Counter()
        for op in self.ops:
            on = op["on"]
            key = (OPS[op["op"] - 1], KINDS[on["kind"]], DIRS[on["dir"]], on["tag"])
            count[key] += 1
            size[key] += op["size_bytes"]
        return {key: (count[key], size[key]) for key in count}

    def check_ordinals(self) -> None:
        """Each channel counts 0, 1, 2, ... and every receive has its own place in the order."""
        ordinals = defaultdict(list)
        orders = defaultdict(list)
        for op in self.ops:
            ordinals[op["channel"]].append(op["ordinal"])
            if op["op"] == 2:
                on = op["on"]
                orders[on["object"], on["kind"], on["peer"] * (on["kind"] == 5)].append(op["aux"])
        for numbers in ordinals.values():
            assert sorted(numbers) == list(range(len(numbers)))
        for numbers in orders.values():
            assert len(set(numbers)) == len(numbers)

    def tag_messages(self) -> tuple[Counter[Any], Counter[Any]]:
        """Sends and receives by (uid of the receiving worker, tag, size)."""
        sent: Counter[Any] = Counter()
        received: Counter[Any] = Counter()
        for op in self.ops:
            on = op["on"]
            if on["kind"] == 2 and op["op"] == 1:
                uid = self.objects[on["peer"]]["remote_uid"]
                sent[uid, on["tag"], op["size_bytes"]] += 1
            elif on["kind"] == 2 and op["op"] == 2:
                uid = self.objects[on["object"]]["uid"]
                received[uid, on["tag"], op["size_bytes"]] += 1
        return sent, received
