"""One name for each port over the whole run.

A port has several GIDs, each process tells those that it saw, and each path may use another one.
One GID, the **place**, stands for all of a port: in ``gids``, and in the places and names of queue
pairs. Whatever has to know which port a GID belongs to reads the column ``place``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from sigmatrace.capture.names.verbs import verbs_name

_SEATS = (
    ("endpoints", "local", "place", "qpn"),
    ("endpoints", "peer", "peer_place", "peer_qpn"),
    ("addresses", "name", "place", "qpn"),
)


def settle_places(tables: dict[str, pa.Table]) -> None:
    """Replace each GID by the one that stands for its port, in places and in names.

    Args:
        tables: Whole-run tables, as in ``schema.INDEX_TABLES``; changed.
    """
    if not tables["gids"].num_rows:
        return
    known = port_places(_ports(tables))
    gids = tables["gids"].column("gid").to_pylist()
    _set(tables, "gids", "place", [known.get(gid, gid) for gid in gids])
    for table, name, place, qpn in _SEATS:
        columns = (tables[table].column(key).to_pylist() for key in (name, place, qpn))
        settled = [
            (verbs_name(known[where], number), known[where]) if where in known else (text, where)
            for text, where, number in zip(*columns, strict=True)
        ]
        _set(tables, table, name, [text for text, _ in settled])
        _set(tables, table, place, [where for _, where in settled])


def port_places(ports: Iterable[tuple[str, list[str]]]) -> dict[str, str]:
    """Return for each GID the one that stands for its port: the first that is its alone.

    Args:
        ports: Of all processes: what tells a port from others on its host and over the run, and
            its GIDs in hex in the order of their index. One port may come many times.

    Returns:
        GIDs that two different ports claim are left out: they name no port for certain.
    """
    claims: dict[str, set[str]] = {}
    order: dict[str, dict[str, None]] = {}
    for port, gids in ports:
        for gid in gids:
            claims.setdefault(gid, set()).add(port)
            order.setdefault(port, {})[gid] = None
    own = {port: [x for x in gids if len(claims[x]) == 1] for port, gids in order.items()}
    return {gid: gids[0] for gids in own.values() for gid in gids}


def _ports(tables: Mapping[str, pa.Table]) -> Iterator[tuple[str, list[str]]]:
    """Yield every port of every process, named over the run, with its GIDs."""
    hosts = tables["processes"].column("host").to_pylist()
    gids: dict[tuple[int, int], list[str]] = {}
    for row in tables["gids"].sort_by("index").to_pylist():
        gids.setdefault((row["proc"], row["port"]), []).append(row["gid"])
    for row in tables["ports"].to_pylist():
        name = f"{hosts[row['proc']]} {row['device']} {row['node_guid']:x} {row['port']}"
        yield name, gids.get((row["proc"], row["object"]), [])


def _set(tables: dict[str, pa.Table], table: str, column: str, values: list[str]) -> None:
    at = tables[table].column_names.index(column)
    tables[table] = tables[table].set_column(at, column, pa.array(values, pa.string()))
