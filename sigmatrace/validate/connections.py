"""Which queue pairs the connection manager (rdma_cm) connected, from its datagrams.

Source: InfiniBand Architecture Specification, volume 1, chapters 12 ("Communication management",
fields of the messages REQ and REP) and 13 (common header of management datagrams).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sigmatrace.validate.roce import Packet

_CLASS = 0x07  # of management datagrams: communication management
_REQUEST, _REPLY = 0x0010, 0x0013
_HEADER = 24


class Connection(NamedTuple):
    """Two queue pairs that the connection manager (rdma_cm) connected.

    Attributes:
        client: IP address of the end that asked.
        client_qpn: Its queue pair.
        server: IP address of the other end.
        server_qpn: Its queue pair.
        service: The 64-bit service id; the low 16 bits are the port of rdma_cm.
    """

    client: str
    client_qpn: int
    server: str
    server_qpn: int
    service: int


class ConnectionManager:
    """Finds the connections in management datagrams, which it takes in the order of the capture.

    Attributes:
        connections: Those accepted so far; one that was asked for twice, or answered twice, once.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self._requests: dict[tuple[str, str, int], tuple[int, int]] = {}

    def take(self, packet: Packet) -> None:
        """Looks at a datagram; others than REQ and REP change nothing."""
        data = packet.datagram
        if len(data) < _HEADER + 36 or data[1] != _CLASS:
            return
        (attribute,) = struct.unpack_from(">H", data, 16)
        body = data[_HEADER:]
        if attribute == _REQUEST:
            number, service = struct.unpack_from(">I4xQ", body)
            client_qpn = int.from_bytes(body[32:35], "big")
            self._requests[packet.source, packet.destination, number] = client_qpn, service
        elif attribute == _REPLY:
            (number,) = struct.unpack_from(">I", body, 4)
            asked = self._requests.pop((packet.destination, packet.source, number), None)
            if asked is not None:
                client, server_qpn = packet.destination, int.from_bytes(body[12:15], "big")
                made = Connection(client, asked[0], packet.source, server_qpn, asked[1])
                if made not in self.connections:
                    self.connections.append(made)

    def senders(self) -> dict[tuple[str, str, int], int]:
        """Sending queue pair by source, destination and receiving queue pair."""
        found = {}
        for client, client_qpn, server, server_qpn, _ in self.connections:
            found[client, server, server_qpn] = client_qpn
            found[server, client, client_qpn] = server_qpn
        return found
