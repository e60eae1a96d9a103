"""From the index's endpoint and address tables to "who is at the other end of a channel".

An **identity** stands for the object at which messages arrive and from which they leave: the
root of an endpoint (a ``ucp_ep``'s worker, a ``uct_ep``'s iface, otherwise the endpoint
itself). Identities are equal when the names are: an object closed and opened again under its
name is the same place. Connected endpoints of one process may share their local name (a
server's port), so theirs is the pair of both ends' names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Run
from sigmatrace.trace_format import UNKNOWN_PEER

Ints = NDArray[np.int64]
NONE, SEVERAL = -1, -2


class Found(IntEnum):
    """What is known of the process at the other end."""

    TRACED = 0
    UNKNOWN = 1
    NOT_TRACED = 2
    SEVERAL = 3


@dataclass(frozen=True)
class Ends:
    """Both ends of every channel, own and other, ``(channels,)`` each.

    Attributes:
        own_ident: Identity of the channel's own endpoint.
        own_name: Index into ``names`` of its name, -1 when it has none.
        other_ident: Identity of the other end, -1 when not known, not traced or several.
        other_proc: Its process, -1 likewise.
        other_name: Index into ``names``, -1 when not known.
        found: ``Found`` of the other end.
        own_several: Whether several processes used the own endpoint's name.
        lossy: Whether the own endpoint's transport may lose messages, or exchange them.
        names: All names.
    """

    own_ident: Ints
    own_name: Ints
    other_ident: Ints
    other_proc: Ints
    other_name: Ints
    found: NDArray[np.uint8]
    own_several: NDArray[np.bool_]
    lossy: NDArray[np.bool_]
    names: pa.Array


def number_rows(*columns: NDArray[Any]) -> tuple[Ints, int]:
    """Number distinct rows of integer columns densely; equal rows get equal numbers."""
    from sigmatrace.stages.kernels.rows import number_rows_kernel

    keys = np.empty((columns[0].size, len(columns)), np.uint64)
    for number, column in enumerate(columns):
        keys[:, number] = column.astype(np.uint64, copy=False)
    table = np.full(1 << max(4, (2 * columns[0].size).bit_length()), -1, np.int64)
    out_id = np.empty(columns[0].size, np.int64)
    return out_id, int(number_rows_kernel(keys, table, out_id))


def find(table: tuple[NDArray[Any], ...], query: tuple[NDArray[Any], ...]) -> Ints:
    """Return for each row of ``query`` the first equal row of ``table``, or -1."""
    size = table[0].size
    ids, count = number_rows(
        *(
            np.concatenate([_bits(left), _bits(right)])
            for left, right in zip(table, query, strict=True)
        )
    )
    row_of_id = np.full(count, NONE, np.int64)
    row_of_id[ids[:size][::-1]] = np.arange(size)[::-1]
    return row_of_id[ids[size:]]


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    return column.astype(np.uint64, copy=False)


def one_of(ids: Ints, count: int, values: NDArray[Any]) -> Ints:
    """Return each id's value: -1 when it has none, -2 when it has several."""
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, NONE, np.int64)
    np.minimum.at(low, ids, values.astype(np.int64))
    np.maximum.at(high, ids, values.astype(np.int64))
    return np.where(high < 0, NONE, np.where(low == high, high, SEVERAL))


@dataclass(frozen=True)
class _Endpoints:
    """The table ``endpoints`` as integers; names are indexes, -1 for none."""

    proc: Ints
    object: Ints
    av: Ints
    lossy: Ints
    local: Ints
    peer: Ints
    life: Ints
    name: Ints
    ident: Ints
    idents: int
    proc_of_ident: Ints


def resolve_ends(run: Run) -> Ends:
    """Find both ends of every channel.

    Args:
        run: With the index tables ``channels``, ``endpoints``, ``addresses``.

    Returns:
        The ends, in the order of the channels.
    """
    codes, names = _encode(run)
    endpoints = _endpoints(run, codes)
    proc = run.column("channels", "proc").astype(np.int64)
    thing = run.column("channels", "object").astype(np.int64)
    own = find((endpoints.proc, endpoints.object), (proc, thing))
    known = own >= 0
    lost, _ = number_rows(proc, thing)
    pseudo = endpoints.idents + len(names)
    own_ident = np.where(known, _at(endpoints.ident, own), pseudo + lost)
    asked = _asked(run, codes[2], endpoints, own)
    ident, other_proc, found = _places(endpoints, asked, len(names))
    several = known & (_at(endpoints.proc_of_ident, _at(endpoints.ident, own)) == SEVERAL)
    return Ends(
        own_ident=own_ident,
        own_name=_at(endpoints.name, own),
        other_ident=ident,
        other_proc=other_proc,
        other_name=asked.name,
        found=found,
        own_several=several,
        lossy=_at(endpoints.lossy, own) > 0,
        names=names,
    )


def _at(values: Ints, index: Ints) -> Ints:
    """Return ``values[index]``, -1 where the index is negative."""
    if values.size == 0:
        return np.full(index.size, NONE, np.int64)
    return np.where(index >= 0, values[np.maximum(index, 0)], NONE)


def _encode(run: Run) -> tuple[list[Ints], pa.Array]:
    """Return endpoints' local and peer and addresses' names as indexes, and the names."""
    columns = [
        run.tables["endpoints"].column("local"),
        run.tables["endpoints"].column("peer"),
        run.tables["addresses"].column("name"),
    ]
    chunks = [chunk.cast(pa.string()) for column in columns for chunk in column.chunks]
    text = pa.chunked_array(chunks, pa.string()).combine_chunks()
    encoded = pc.fill_null(text, "").dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    index = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    empty = pc.index(encoded.dictionary, pa.scalar("", pa.string())).as_py()
    if empty >= 0:
        index[index == empty] = NONE
    lengths = np.cumsum([len(column) for column in columns])[:-1]
    return np.split(index, lengths), encoded.dictionary


def _endpoints(run: Run, codes: list[Ints]) -> _Endpoints:
    local, peer, _ = codes
    proc = run.column("endpoints", "proc").astype(np.int64)
    thing = run.column("endpoints", "object").astype(np.int64)
    owner = run.column("endpoints", "owner").astype(np.int64)
    root = find((proc, thing), (proc, np.where(owner > 0, owner, thing)))
    root = np.where(root >= 0, root, np.arange(proc.size))
    row = np.where(local[root] < 0, root + 1, 0)
    life = run.column("endpoints", "life").astype(np.int64)
    ident, idents = number_rows(local[root] + 1, peer[root] + 1, life[root], row)
    return _Endpoints(
        proc=proc,
        object=thing,
        av=run.column("endpoints", "av").astype(np.int64),
        lossy=run.column("endpoints", "lossy").astype(np.int64),
        local=local,
        peer=peer,
        life=life,
        name=np.where(local >= 0, local, local[root]),
        ident=ident,
        idents=idents,
        proc_of_ident=one_of(ident, idents, proc),
    )


@dataclass(frozen=True)
class _Asked:
    """How channels name their other ends, ``(channels,)`` each; -1 for none.

    Attributes:
        name: Index of the name.
        pair: Index of the own name of the connection, where there is one.
        life: Which connection of these two names.
    """

    name: Ints
    pair: Ints
    life: Ints


def _asked(run: Run, address_name: Ints, endpoints: _Endpoints, own: Ints) -> _Asked:
    """Name the other ends: by address vector where the own endpoint has one, else by object."""
    proc = run.column("channels", "proc").astype(np.int64)
    peer = run.column("channels", "peer")
    told = peer != UNKNOWN_PEER
    av = _at(endpoints.av, own)
    table = (
        run.column("addresses", "proc"),
        run.column("addresses", "av"),
        run.column("addresses", "addr"),
    )
    address = find(table, (proc, av, peer))
    connection = np.where(av > 0, own, find((endpoints.proc, endpoints.object), (proc, peer)))
    connected = told & (_at(endpoints.peer, connection) >= 0)
    name = np.where(connected, _at(endpoints.peer, connection), NONE)
    return _Asked(
        np.where(told & ~connected & (av > 0), _at(address_name, address), name),
        np.where(connected, _at(endpoints.local, connection), NONE),
        np.where(connected, _at(endpoints.life, connection), NONE),
    )


def _connections(endpoints: _Endpoints, asked: _Asked) -> tuple[Ints, Ints]:
    """Return identity and process of the connections' other ends; -1 none, -2 several.

    The n-th connection of two names at one end is the n-th at the other. That holds as long as
    both ends have seen equally many. One that two layers of a process tell of counts once.
    """
    local, peer = endpoints.local, endpoints.peer
    held = np.flatnonzero((local >= 0) & (peer >= 0))
    here, there = (asked.name, asked.pair), (asked.pair, asked.name)
    none = asked.pair < 0
    pairs, count = number_rows(
        *(
            np.concatenate([end[held], np.where(none, NONE, first), np.where(none, NONE, second)])
            for end, first, second in zip((local, peer), here, there, strict=True)
        )
    )
    lives = _lives(pairs[: held.size], count, endpoints, held)
    mine, theirs = np.split(pairs[held.size :], 2)[::-1]
    life, lifes = number_rows(
        np.concatenate([pairs[: held.size], theirs]),
        np.concatenate([endpoints.life[held], asked.life]),
    )
    at = life[held.size :]
    ident = one_of(life[: held.size], lifes, endpoints.ident[held])[at]
    proc = one_of(life[: held.size], lifes, endpoints.proc[held])[at]
    uneven = (lives[theirs] > 0) & (lives[theirs] != lives[mine])
    several = uneven & ~none
    return np.where(several, SEVERAL, ident), np.where(several & (proc == NONE), SEVERAL, proc)


def _lives(pairs: Ints, count: int, endpoints: _Endpoints, held: Ints) -> Ints:
    """Return how many connections each of ``count`` pairs of names has had."""
    one, ones = number_rows(pairs, endpoints.proc[held], endpoints.life[held])
    pair = np.zeros(ones, np.int64)
    pair[one] = pairs
    return np.bincount(pair, minlength=count).astype(np.int64)


def _places(
    endpoints: _Endpoints, asked: _Asked, names: int
) -> tuple[Ints, Ints, NDArray[np.uint8]]:
    """Return identity, process and ``Found`` of the other ends."""
    local, peer, name = endpoints.local, endpoints.peer, asked.name
    pair_ident, pair_proc = _connections(endpoints, asked)
    use = (asked.pair >= 0) & (pair_proc != NONE)
    alone, named = (local >= 0) & (peer < 0), local >= 0
    ident = _at(one_of(local[alone], names, endpoints.ident[alone]), name)
    proc = _at(one_of(local[alone], names, endpoints.proc[alone]), name)
    anyone = _at(one_of(local[named], names, endpoints.proc[named]), name)
    loose = proc == NONE  # a name of connected endpoints only: the process, but no place
    ident = np.where(loose, endpoints.idents + name, ident)
    proc = np.where(loose, anyone, proc)
    ident, proc = np.where(use, pair_ident, ident), np.where(use, pair_proc, proc)
    found = np.full(name.size, Found.TRACED, np.uint8)
    found[
        (ident == SEVERAL) | (_at(endpoints.proc_of_ident, _below(ident, endpoints)) == SEVERAL)
    ] = Found.SEVERAL
    found[proc == SEVERAL] = Found.SEVERAL
    found[proc == NONE] = Found.NOT_TRACED
    found[name < 0] = Found.UNKNOWN
    ident = np.where(found == Found.TRACED, ident, NONE)
    return ident, np.where((proc >= 0) & (name >= 0), proc, NONE), found


def _below(ident: Ints, endpoints: _Endpoints) -> Ints:
    """Return identities of endpoints, -1 for those made up for a name."""
    return np.where(ident < endpoints.idents, ident, NONE)
