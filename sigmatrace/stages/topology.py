"""Stage topology: which process is at the other end, and which channels belong together.

An out-channel and an in-channel carry the same stream of messages, a **group**, when layer,
destination, kind, tag, data and the REPLY flag are equal and the source is the same. An
in-channel whose API does not tell the source takes the only out-channel with its key. Wherever
two channels could carry the same message, nothing is matched: the k-th send would not be
the k-th receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import INDEX_TABLES, NO_GROUP, STAGE_TABLES, Columns, Fate
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.topology_names import Ends, Found, Ints, number_rows, resolve_ends
from sigmatrace.trace_format import OP_CLASS, UNKNOWN_PEER, ChannelFlag, Dir, Kind, Layer

KEY_FLAGS = ChannelFlag.REPLY | ChannelFlag.HAS_DATA
"""Flags that tell streams apart (HAS_DATA: data 0 is not the same as no data)."""

_ENDS, _FATE, _TRANSPORT = ("src_proc", "dst_proc"), ("group", "fate"), ("layer", "lossy")
_MADE_WITH = {name: names for names in (_ENDS, _FATE, _TRANSPORT) for name in names}
"""Columns by one of them that one kernel makes."""


@dataclass(frozen=True)
class Routes:
    """What is known of every channel, as the kernel takes it.

    Attributes:
        src: ``(channels,)`` i4, process that sends (RMA: that initiates), -1 unknown.
        dst: ``(channels,)`` i4, process that receives (RMA: the target), -1 unknown.
        group: ``(channels,)`` u4.
        fate: ``(channels,)`` u1.
        layer: ``(channels,)`` u1.
        lossy: ``(channels,)`` u1, 1 where the transport may lose messages or exchange them.
        table: Table ``routes``.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    group: NDArray[np.uint32]
    fate: NDArray[np.uint8]
    layer: NDArray[np.uint8]
    lossy: NDArray[np.uint8]
    table: pa.Table


@dataclass
class _Channels:
    """The channels' columns while their fates are decided."""

    out: NDArray[np.bool_]
    layer: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    tag: NDArray[np.uint64]
    data: NDArray[np.uint64]
    src_ident: Ints
    dst_ident: Ints
    found: NDArray[np.uint8]
    own_several: NDArray[np.bool_]
    fate: NDArray[np.uint8]
    group: NDArray[np.uint32]
    src: NDArray[np.int32]
    own_proc: NDArray[np.int32]


class Topology(Stage):
    """Adds source, destination, group, fate and layer to operations; makes ``routes``."""

    name: ClassVar[str] = "topology"
    summary: ClassVar[SummaryKind] = "index"
    requires: ClassVar[Columns] = {
        "channels": INDEX_TABLES["channels"],
        "endpoints": INDEX_TABLES["endpoints"],
        "addresses": INDEX_TABLES["addresses"],
        "ops": {"proc": "i4", "channel": "u4", "op": "u1"},
    }
    produces: ClassVar[Columns] = {
        # Processes: -1 = unknown or not traced. group: the stream of messages that both ends
        # share (NO_GROUP: none). lossy: as in `routes`; 0 where the channel is not known.
        "ops": {
            "src_proc": "i4",
            "dst_proc": "i4",
            "group": "u4",
            "fate": "u1",
            "layer": "u1",
            "lossy": "u1",
        },
        "routes": STAGE_TABLES["routes"],
    }

    def survey(self, run: Run) -> Routes:
        """Find ends, fates and groups of all channels from the index."""
        ends = resolve_ends(run)
        channels = _channels(run, ends)
        _plain_fates(channels)
        _pair(channels)
        src = np.where(channels.out, channels.own_proc, channels.src)
        dst = np.where(channels.out, ends.other_proc, channels.own_proc).astype(np.int32)
        lossy = _lossy(ends, channels)
        table = _table(run, ends, channels, src, dst).append_column("lossy", pa.array(lossy))
        return Routes(src, dst, channels.group, channels.fate, channels.layer, lossy, table)

    def apply(self, part: Partition, resolved: Routes) -> Partition:
        """Give each operation what is known of its channel."""
        from sigmatrace.stages.kernels.topology import ends_kernel, fate_kernel, transport_kernel

        size = part.tables["ops"].num_rows
        columns: dict[str, NDArray[Any]] = {
            name: np.empty(size, dtype)
            for name, dtype in self.produces["ops"].items()
            if any(part.is_read("ops", one) for one in _MADE_WITH[name])
        }
        if not columns:
            return part
        channel, op = (part.column("ops", name) for name in ("channel", "op"))
        if "src_proc" in columns:
            own = part.column("ops", "proc")
            out = (columns[name] for name in _ENDS)
            ends_kernel(channel, op, own, OP_CLASS, resolved.src, resolved.dst, *out)
        if "fate" in columns:
            out = (columns[name] for name in _FATE)
            fate_kernel(channel, op, OP_CLASS, resolved.group, resolved.fate, *out)
        if "layer" in columns:
            out = (columns[name] for name in _TRANSPORT)
            transport_kernel(channel, resolved.layer, resolved.lossy, *out)
        return part.with_columns("ops", columns)

    def results(self, resolved: Routes) -> Mapping[str, pa.Table]:
        """Return the table ``routes``."""
        return {"routes": resolved.table}

    def account(self, resolved: Routes) -> Mapping[str, object]:
        """Return how many channels have which fate, and how many groups there are."""
        counts = np.bincount(resolved.fate, minlength=len(Fate))
        grouped = resolved.group[resolved.group != NO_GROUP]
        return {
            "channels": int(resolved.fate.size),
            "groups": int(grouped.max()) + 1 if grouped.size else 0,
            "channels_by_fate": {fate.name.lower(): int(counts[fate]) for fate in Fate},
        }


def _channels(run: Run, ends: Ends) -> _Channels:
    def column(name: str) -> NDArray[np.uint8]:
        return run.column("channels", name)

    out = column("dir") == Dir.OUT
    layer = column("layer")
    return _Channels(
        out=out,
        layer=np.where(layer <= max(Layer), layer, 0).astype(np.uint8),
        kind=column("kind"),
        flags=column("flags"),
        tag=run.column("channels", "tag"),
        data=run.column("channels", "data"),
        src_ident=np.where(out, ends.own_ident, ends.other_ident),
        dst_ident=np.where(out, ends.other_ident, ends.own_ident),
        found=ends.found,
        own_several=ends.own_several,
        fate=np.full(out.size, Fate.MATCHABLE, np.uint8),
        group=np.full(out.size, NO_GROUP, np.uint32),
        src=ends.other_proc.astype(np.int32),
        own_proc=run.column("channels", "proc").astype(np.int32),
    )


def _plain_fates(channels: _Channels) -> None:
    """Set the fates that a channel has by itself; of several reasons the last one stays."""
    fate, found, out = channels.fate, channels.found, channels.out
    fate[channels.own_several] = Fate.SOURCE_AMBIGUOUS
    fate[found == Found.SEVERAL] = Fate.SOURCE_AMBIGUOUS
    fate[found == Found.NOT_TRACED] = Fate.PEER_NOT_TRACED
    fate[out & (found == Found.UNKNOWN)] = Fate.PEER_UNKNOWN
    fate[channels.flags & ChannelFlag.TAG_UNKNOWN > 0] = Fate.TAG_UNKNOWN
    fate[channels.flags & ChannelFlag.OVERFLOW > 0] = Fate.TOO_MANY_CHANNELS
    fate[channels.kind == Kind.STREAM] = Fate.BYTE_STREAM
    fate[_silent(channels)] = Fate.ONE_SIDED
    fate[(channels.kind < min(Kind)) | (channels.kind > max(Kind))] = Fate.NOT_A_MESSAGE


def _silent(channels: _Channels) -> NDArray[np.bool_]:
    """Return the one-sided channels of which the target sees nothing: those without data."""
    no_data: NDArray[np.bool_] = channels.flags & ChannelFlag.HAS_DATA == 0
    no_data &= channels.kind == Kind.RMA
    return no_data


def _pair(channels: _Channels) -> None:
    """Put channels of one stream into one group; set the fates of those that cannot be.

    Works on classes, the channels with an equal key. In a class in which every in-channel
    knows its source, channels pair by source; a class with an in-channel that does not
    pairs only when it is one out-channel and one in-channel.
    """
    mixed = _mixed(channels)
    at = np.flatnonzero(channels.fate == Fate.MATCHABLE)
    out, blind = channels.out[at], ~channels.out[at] & (channels.src_ident[at] < 0)
    key = [getattr(channels, name)[at] for name in ("layer", "dst_ident", "kind", "tag", "data")]
    classes, count = number_rows(*key, channels.flags[at] & KEY_FLAGS)
    outs = np.bincount(classes[out], minlength=count)
    blinds = np.bincount(classes[blind], minlength=count)
    ins = np.bincount(classes[~out], minlength=count)
    _senders(channels, at, classes, blind, outs)
    source = channels.src_ident[at].copy()
    only_out = np.full(count, -1, np.int64)
    only_out[classes[out]] = source[out]
    source[blind] = only_out[classes[blind]]
    streams, stream_count = number_rows(classes, source)
    stream_outs = np.bincount(streams[out], minlength=stream_count)[streams]
    stream_ins = np.bincount(streams[~out], minlength=stream_count)[streams]
    fate = np.full(at.size, Fate.MATCHABLE, np.uint8)
    fate[(stream_outs > 1) | (stream_ins > 1)] = Fate.SOURCE_AMBIGUOUS
    muddled = (blinds > 0) & (outs > 0) & ((outs > 1) | (ins > 1))
    fate[muddled[classes]] = Fate.SOURCE_AMBIGUOUS
    fate[blind & (outs[classes] == 0)] = Fate.PEER_UNKNOWN
    worst = np.zeros(count, np.uint8)
    np.maximum.at(worst, classes, mixed[at])
    fate[(fate == Fate.MATCHABLE) & _unseen(channels)[at]] = Fate.RECEIVER_NOT_VISIBLE
    channels.fate[at] = np.where(worst[classes] > 0, worst[classes], fate)
    good = channels.fate[at] == Fate.MATCHABLE
    channels.group[at[good]] = number_rows(streams[good])[0].astype(np.uint32)


def _unseen(channels: _Channels) -> NDArray[np.bool_]:
    """Return the out-channels of GPUs to queue pairs at which no arrival is seen at all.

    A GPU posts its receives and reads their completions where nobody looks.
    """
    seen = np.isin(channels.dst_ident, channels.dst_ident[~channels.out])
    unseen: NDArray[np.bool_] = channels.out & (channels.layer == Layer.MLX5DV) & ~seen
    return unseen


def _senders(
    channels: _Channels, at: Ints, classes: Ints, blind: NDArray[np.bool_], outs: Ints
) -> None:
    """Set the source process of in-channels that do not know it, where only one can be."""
    low = np.full(outs.size, np.iinfo(np.int32).max, np.int32)
    high = np.full(outs.size, -1, np.int32)
    out = channels.out[at]
    np.minimum.at(low, classes[out], channels.own_proc[at[out]])
    np.maximum.at(high, classes[out], channels.own_proc[at[out]])
    sender = np.where(low == high, high, -1)
    channels.src[at[blind]] = sender[classes[blind]]


def _mixed(channels: _Channels) -> NDArray[np.uint8]:
    """Return the fate of in-channels that messages of unseen channels may enter or leave, else 0.

    * A receive without a tag (TAG_UNKNOWN) takes messages of any channel to its endpoint.
    * Sends in an overflow channel arrive in in-channels that do not know their source (blind).
    * Blind receives in an overflow channel take from in-channels that do know it; vice versa.
    * Sends to a peer that cannot be named may arrive in any in-channel with the same key, unless
      that one knows another source.
    """
    ins, blind = ~channels.out, channels.src_ident < 0
    message = ~_silent(channels) & (channels.kind != Kind.STREAM)
    nowhere = message & channels.out & (channels.dst_ident < 0)
    nowhere &= channels.found != Found.NOT_TRACED
    full = message & (channels.flags & ChannelFlag.OVERFLOW > 0)
    tagless = message & ins & (channels.flags & ChannelFlag.TAG_UNKNOWN > 0)
    api = number_rows(channels.layer, channels.kind)
    place = number_rows(channels.layer, channels.kind, channels.dst_ident + 1)
    key = number_rows(
        *(channels.layer, channels.kind, channels.tag, channels.data, channels.flags & KEY_FLAGS)
    )
    sender = number_rows(key[0], channels.src_ident + 1)
    mixed = np.zeros(ins.size, np.uint8)
    mixed[ins & blind & _marked(*key, nowhere)] = Fate.SOURCE_AMBIGUOUS
    mixed[ins & ~blind & _marked(*sender, nowhere)] = Fate.SOURCE_AMBIGUOUS
    mixed[ins & blind & _marked(*api, full & nowhere)] = Fate.TOO_MANY_CHANNELS
    mixed[ins & blind & _marked(*place, full & (channels.out | ~blind))] = Fate.TOO_MANY_CHANNELS
    mixed[ins & ~blind & _marked(*place, full & ins & blind)] = Fate.TOO_MANY_CHANNELS
    mixed[_marked(*place, tagless)] = Fate.TAG_UNKNOWN
    return mixed


def _marked(ids: Ints, count: int, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows share an id with a chosen one."""
    mark = np.zeros(count, bool)
    mark[ids[chosen]] = True
    return mark[ids]


def _lossy(ends: Ends, channels: _Channels) -> NDArray[np.uint8]:
    """Return of each channel whether the transport at either end of its group is lossy.

    A shared receive context does not say what it receives from; the senders in its group do.
    """
    lossy = ends.lossy.astype(np.uint8)
    grouped = channels.group != NO_GROUP
    group = channels.group[grouped]
    worst = np.zeros(int(group.max(initial=0)) + 1, np.uint8)
    np.maximum.at(worst, group, lossy[grouped])
    lossy[grouped] = worst[group]
    return lossy


def _table(
    run: Run, ends: Ends, channels: _Channels, src: NDArray[np.int32], dst: NDArray[np.int32]
) -> pa.Table:
    other = _other_text(run, ends, channels)
    own = _text(ends.names, ends.own_name)
    unnamed = _join("unknown: object ", run.tables["channels"].column("object"))
    own = pc.if_else(pa.array(ends.own_name >= 0), own, unnamed)
    out = pa.array(channels.out)
    return pa.table(
        {
            "channel": run.column("channels", "channel").astype(np.uint32),
            "src_proc": src,
            "dst_proc": dst,
            "src_name": pc.if_else(out, own, other),
            "dst_name": pc.if_else(out, other, own),
            "group": channels.group,
            "fate": channels.fate,
        }
    )


def _text(names: pa.Array, index: Ints) -> pa.Array:
    return names.take(pa.array(index, mask=index < 0))


def _join(head: str, column: pa.ChunkedArray, tail: str = "") -> pa.Array:
    """Return ``head`` + the column as text + ``tail``."""
    text = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.binary_join_element_wise(head, text.cast(pa.string()), tail, "")


def _other_text(run: Run, ends: Ends, channels: _Channels) -> pa.Array:
    """Return the other end's name, or "unknown: ..." and why.

    An in-channel that was not told its source and is in a group has the name of its sender.
    """
    other, found = ends.other_name.copy(), ends.found
    grouped = channels.group != NO_GROUP
    sender = np.full(int(channels.group[grouped].max(initial=0)) + 1, -1, np.int64)
    sender[channels.group[grouped & channels.out]] = ends.own_name[grouped & channels.out]
    blind = grouped & ~channels.out & (found == Found.UNKNOWN)
    other[blind] = sender[channels.group[blind]]
    unknown = (found == Found.UNKNOWN) & (other < 0)
    name = _text(ends.names, other)
    several = _join("unknown: several processes used ", name)
    text = pc.if_else(pa.array(found == Found.SEVERAL), several, name)
    peer = _join("unknown: peer ", run.tables["channels"].column("peer"))
    silent = pa.scalar("unknown: the API does not tell the source")
    told = pa.array(run.column("channels", "peer") != np.uint64(UNKNOWN_PEER))
    return pc.if_else(pa.array(unknown), pc.if_else(told, peer, silent), text)
