/* What happens around every operation: nesting, time, channel, record. */
#include "ofi.h"

__thread const void *ofi_busy;
bool ofi_lasting_receives;

static bool call_enter(struct ofi_call *call, struct ofi_ep *ep)
{
    call->ep = ofi_enter(&call->frame, ep, ep->depth) ? ep : NULL;
    call->channel = NULL;
    return call->ep;
}

static struct st_channel *out_channel(const struct ofi_ep *ep, const struct ofi_out *out)
{
    const struct st_channel_key key = {
        .object = ep->object,
        .kind = out->kind,
        .dir = ST_OUT,
        .layer = ST_LAYER_OFI,
        .flags = out->channel_flags,
        .peer = ep->connected ? ep->object : out->peer,
        .tag = out->tag,
        .data = out->channel_flags & ST_HAS_DATA ? out->data : 0,
        .shared = ep->shared,
    };
    return st_channel_get(&key);
}

/* Will a completion be read for it, and is that of use? */
static bool out_reported(const struct ofi_ep *ep, const struct ofi_out *out)
{
    if (!ep->tx_cq || (out->record_flags & ST_INLINE))
        return false;
    if (ep->selective_tx && !(out->flags & FI_COMPLETION))
        return false;
    return ofi_mode == ST_MODE_FULL || ofi_cq_mixed(ep->tx_cq);
}

static void out_file(struct ofi_call *call, struct ofi_out *out)
{
    const struct ofi_ep *ep = call->ep;
    const struct st_pending value = {
        .size_bytes = out->size_bytes,
        .object = ep->object,
        .channel = call->channel->id,
        .ordinal = out->predicted,
        .op = out->op,
        .kind = out->kind,
        .call = ofi_call_number[out->name],
    };
    out->filed = ofi_pending_put(ep->tx_cq->space, OFI_TX, out->context, &value);
}

void ofi_out_begin(struct ofi_call *call, const struct ofi_table *table, struct ofi_out *out)
{
    struct ofi_ep *ep = table->owner;
    if (!call_enter(call, ep))
        return;
    if (ep->shared)
        st_owner_claim(&ep->sender, &ofi_busy);
    if (!out->has_flags)
        out->flags = ep->tx_flags;
    else if (out->flags & FI_REMOTE_CQ_DATA)
        out->channel_flags |= ST_HAS_DATA;
    if (out->flags & FI_MATCH_COMPLETE)
        out->record_flags |= ST_SYNC;
    /* Filed before the call: another thread may read the completion before it returns. */
    bool reported = out_reported(ep, out);
    call->refused = reported && !(call->channel = out_channel(ep, out));
    if (call->channel) {
        out->predicted = __atomic_load_n(&call->channel->ordinal, __ATOMIC_RELAXED);
        out_file(call, out);
    }
    call->begin_tsc = ofi_now();
}

static void out_refile(struct ofi_call *call, struct ofi_out *out, uint32_t ordinal)
{
    struct st_pending value;
    /* Another thread was quicker on this channel: file it under its own number, unless its
     * completion has been read already. */
    if (!ofi_pending_take(call->ep->tx_cq->space, OFI_TX, out->context, &value))
        return;
    out->predicted = ordinal;
    out_file(call, out);
}

void ofi_out_end(struct ofi_call *call, struct ofi_out *out, ssize_t result)
{
    if (!call->ep)
        return;
    uint64_t end_tsc = ofi_mode == ST_MODE_FULL ? st_now() : 0;
    ofi_leave(&call->frame);
    if (result) {
        if (out->filed)
            ofi_pending_undo(call->ep->tx_cq->space, OFI_TX, out->context);
        return;
    }
    struct st_channel *channel = call->channel;
    if (!channel && (call->refused || !(channel = out_channel(call->ep, out))))
        return; /* a channel that is refused counts its operation as lost: once */
    uint32_t ordinal = st_ordinal_next(channel, call->ep->shared);
    if (out->filed && ordinal != out->predicted)
        out_refile(call, out, ordinal);
    if (st_owner_several(&call->ep->sender))
        out->record_flags |= ST_ORDER_UNCERTAIN;
    st_op(call->begin_tsc, out->size_bytes, channel->id, ordinal, out->op,
          ofi_call_number[out->name], call->frame.depth, out->record_flags | call->frame.flags,
          end_tsc ? st_span(call->begin_tsc, end_tsc) : 0);
    if (ofi_mode == ST_MODE_FULL)
        for (size_t i = 0; i < out->target_count; i++)
            st_target(out->targets[i].addr, out->targets[i].key, (uintptr_t)out->context,
                      channel->id, ordinal);
}

/* --- receives ------------------------------------------------------------------------------ */

/* Will a completion be read for it? */
static bool in_reported(const struct ofi_ep *ep, const struct ofi_in *in)
{
    return ep->space && (!ep->selective_rx || (in->flags & FI_COMPLETION));
}

#define POSTED_BITS (1u << 16)

static uint64_t several_posted[POSTED_BITS / 64]; /* by object id, modulo */

bool ofi_several_posted(uint32_t object)
{
    uint32_t bit = object % POSTED_BITS;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&several_posted[bit / 64], __ATOMIC_RELAXED) >> bit % 64 & 1;
}

/* This thread is about to post a receive. */
static void in_claim(struct ofi_ep *ep)
{
    uint32_t bit = ep->object % POSTED_BITS;
    st_owner_claim(&ep->receiver, &ofi_busy);
    if (st_owner_several(&ep->receiver) && !ofi_several_posted(ep->object))
        __atomic_fetch_or(&several_posted[bit / 64], 1ULL << bit % 64, __ATOMIC_RELEASE);
}

static uint64_t in_peer(const struct ofi_ep *ep, const struct ofi_in *in)
{
    if (ep->connected)
        return ep->object;
    return ep->directed ? in->peer : ST_UNKNOWN_PEER; /* FI_ADDR_UNSPEC is the same number */
}

static uint8_t in_flags(const struct ofi_ep *ep, const struct ofi_in *in)
{
    uint8_t flags = in->ignore ? ST_TAG_UNKNOWN : 0;
    if (ep->connected)
        flags |= OFI_PENDING_CONNECTED;
    if (in->flags & FI_MULTI_RECV)
        flags |= OFI_PENDING_MULTI;
    /* FI_PEEK with FI_DISCARD takes the message off the queue: that is an arrival. */
    if ((in->flags & FI_PEEK) && !(in->flags & FI_DISCARD))
        flags |= OFI_PENDING_PEEK | (in->flags & FI_CLAIM ? OFI_PENDING_CLAIM : 0);
    return flags;
}

/* A claimed message has its place in the order since it was reserved. */
static uint32_t in_order(struct ofi_ep *ep, const struct ofi_in *in)
{
    struct st_pending reserved;
    if ((in->flags & FI_CLAIM) && !(in->flags & FI_PEEK) &&
        ofi_pending_take(ep->space, OFI_RX, in->context, &reserved))
        return reserved.order;
    return __atomic_fetch_add(&ep->order, 1, __ATOMIC_RELAXED);
}

void ofi_in_begin(struct ofi_call *call, const struct ofi_table *table, struct ofi_in *in)
{
    struct ofi_ep *ep = table->owner;
    if (!call_enter(call, ep))
        return;
    if (!in->has_flags)
        in->flags = ep->rx_flags;
    if (!in_reported(ep, in))
        return;
    if (ep->shared)
        in_claim(ep);
    in->order = in_order(ep, in);
    const struct st_pending value = {
        .size_bytes = in->size_bytes,
        .tag = in->tag,
        .peer = in_peer(ep, in),
        .object = ep->object,
        .channel = ep->object, /* stays when a shared receive context's endpoint is found */
        .order = in->order,
        .op = ST_OP_RECV,
        .call = ofi_call_number[in->name],
        .kind = in->kind,
        .flags = in_flags(ep, in),
    };
    if (value.flags & (OFI_PENDING_MULTI | OFI_PENDING_CLAIM))
        __atomic_store_n(&ofi_lasting_receives, true, __ATOMIC_RELAXED);
    in->filed = ofi_pending_put(ep->space, OFI_RX, in->context, &value);
}

void ofi_in_end(struct ofi_call *call, struct ofi_in *in, ssize_t result)
{
    struct ofi_ep *ep = call->ep;
    if (!ep)
        return;
    ofi_leave(&call->frame);
    if (!result) {
        if (!in_reported(ep, in) && !call->frame.depth)
            st_lost("receive without completion queue entry", 1);
        return;
    }
    if (!in->filed)
        return;
    ofi_pending_undo(ep->space, OFI_RX, in->context);
    uint32_t next = in->order + 1;
    __atomic_compare_exchange_n(&ep->order, &next, in->order, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}
