/* From a completion to a record: which operation is it, and what does the queue tell of it. */
#include "ofi.h"

#define OWN_OPERATION (FI_SEND | FI_READ | FI_WRITE)
#define REMOTE_OPERATION (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* The one endpoint that receives on this queue; 0 when there are or, in its time, were several:
 * the later ones of its messages would take the places of those that nobody could tell. */
static uint64_t only_endpoint(const struct ofi_cq *cq)
{
    if (__atomic_load_n(&cq->receives, __ATOMIC_ACQUIRE) != 1)
        return 0;
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint64_t entry = __atomic_load_n(&cq->endpoints[i], __ATOMIC_ACQUIRE);
        if (entry)
            return entry & OFI_CQ_MIXED ? 0 : entry;
    }
    return 0;
}

static bool receive_look(uint16_t space, const struct ofi_entry *entry, struct st_pending *posted)
{
    /* A multi-receive buffer stays until the library says that it is done with it; a message
     * that was peeked at and claimed stays until it is received. */
    if (__atomic_load_n(&ofi_lasting_receives, __ATOMIC_RELAXED) && !entry->error &&
        ofi_pending_peek(space, OFI_RX, entry->context, posted) &&
        (((posted->flags & OFI_PENDING_MULTI) && !(entry->flags & FI_MULTI_RECV)) ||
         (posted->flags & OFI_PENDING_CLAIM)))
        return true;
    return ofi_pending_take(space, OFI_RX, entry->context, posted);
}

static bool receive_find(const struct ofi_cq *cq, const struct ofi_entry *entry,
                         struct st_pending *posted)
{
    if (receive_look(cq->space, entry, posted))
        return true;
    for (size_t i = 0; i < OFI_CQ_SOURCES && cq->contexts[i]; i++) {
        if (!receive_look((uint16_t)cq->contexts[i], entry, posted))
            continue;
        /* Posted for any endpoint of the context: with one endpoint it is clear for which. */
        uint64_t endpoint = only_endpoint(cq);
        if (endpoint) {
            posted->object = (uint32_t)endpoint;
            if (endpoint & OFI_CQ_CONNECTED) {
                posted->peer = posted->object;
                posted->flags |= OFI_PENDING_CONNECTED;
            }
        }
        return true;
    }
    return false;
}

/* Stands in for the posted receive of a message for which none is known. */
static bool receive_guess(struct ofi_cq *cq, const struct ofi_entry *entry,
                          struct st_pending *posted)
{
    uint64_t endpoint = only_endpoint(cq);
    if (!endpoint) {
        st_lost("arrival whose endpoint is unknown", 1);
        return false;
    }
    *posted = (struct st_pending){
        .object = (uint32_t)endpoint,
        .peer = endpoint & OFI_CQ_CONNECTED ? (uint32_t)endpoint : ST_UNKNOWN_PEER,
        .order = __atomic_fetch_add(&cq->arrivals, 1, __ATOMIC_RELAXED),
        .kind = entry->has_flags && (entry->flags & FI_TAGGED) ? ST_KIND_TAG : ST_KIND_MSG,
        .flags = ST_TAG_UNKNOWN | (endpoint & OFI_CQ_CONNECTED ? OFI_PENDING_CONNECTED : 0),
    };
    return true;
}

static struct st_channel *in_channel(const struct ofi_cq *cq, const struct ofi_entry *entry,
                                     const struct st_pending *posted)
{
    /* Receives without a tag may be given tagged messages (rxm's over tcp are). */
    bool tagged_anyway = posted->kind == ST_KIND_MSG && entry->has_flags &&
                         (entry->flags & FI_TAGGED);
    struct st_channel_key key = {
        .object = posted->object,
        .kind = tagged_anyway ? ST_KIND_TAG : posted->kind,
        .dir = ST_IN,
        .layer = ST_LAYER_OFI,
        .peer = posted->peer,
        .shared = cq->shared,
    };
    if (key.kind == ST_KIND_TAG) {
        const uint8_t unsure = ST_TAG_UNKNOWN | OFI_PENDING_SHARED;
        key.flags = ST_HAS_TAG;
        if (entry->has_tag)
            key.tag = entry->tag;
        else if (tagged_anyway || (posted->flags & unsure))
            key.flags = ST_TAG_UNKNOWN;
        else
            key.tag = posted->tag;
    }
    if (entry->source != FI_ADDR_NOTAVAIL && !(posted->flags & OFI_PENDING_CONNECTED))
        key.peer = entry->source;
    if (entry->has_flags && (entry->flags & FI_REMOTE_CQ_DATA)) {
        key.peer = ST_UNKNOWN_PEER;
        if (entry->has_data) {
            key.data = entry->data;
            key.flags |= ST_HAS_DATA;
        } else {
            key.flags |= ST_TAG_UNKNOWN; /* there was data, but this format has no room for it */
        }
    }
    return st_channel_get(&key);
}

/* Two threads that post at once, and two that read the queue where the posting order does not
 * tell messages apart: a buffer for many, or none that was posted. */
static bool arrival_unsure(const struct ofi_cq *cq, const struct st_pending *posted)
{
    if ((posted->flags & OFI_PENDING_SHARED) && !(posted->flags & OFI_PENDING_CONNECTED))
        return true;
    bool by_arrival = !posted->channel || (posted->flags & OFI_PENDING_MULTI);
    return (by_arrival && st_owner_several(&cq->reader)) ||
           (posted->channel && ofi_several_posted(posted->channel));
}

static void arrival_record(struct ofi_cq *cq, const struct ofi_entry *entry,
                           const struct st_pending *posted, uint8_t flags)
{
    struct st_channel *channel = in_channel(cq, entry, posted);
    if (!channel)
        return;
    /* The length is defined for receives; of a remote write some providers leave it out. */
    bool sized = entry->has_flags && posted->kind != ST_KIND_RMA;
    flags |= entry->record_flags;
    if (!sized)
        flags |= ST_SIZE_UNKNOWN;
    uint32_t ordinal = st_ordinal_next(channel, cq->shared);
    if (arrival_unsure(cq, posted))
        flags |= ST_ORDER_UNCERTAIN;
    st_op(entry->t_tsc, sized ? entry->size_bytes : 0, channel->id, ordinal, ST_OP_RECV,
          entry->call, entry->depth, flags, posted->order);
}

static void receive_failed(struct ofi_cq *cq, const struct ofi_entry *entry,
                           const struct st_pending *posted)
{
    struct st_channel *channel;
    if (entry->error == FI_ETRUNC) {
        /* The message was matched and is gone: it has its place in the channel. */
        arrival_record(cq, entry, posted, ST_FAILED);
    } else if (entry->error != FI_ECANCELED && ofi_mode == ST_MODE_FULL &&
               (channel = in_channel(cq, entry, posted))) {
        st_completion(entry->t_tsc, 0, channel->id, OFI_NO_ORDINAL, entry->error, ST_OP_RECV,
                      entry->call, entry->depth, ST_FAILED);
    }
}

static void receive_done(struct ofi_cq *cq, const struct ofi_entry *entry)
{
    struct st_pending posted;
    bool known = receive_find(cq, entry, &posted);
    if (known && (posted.flags & OFI_PENDING_PEEK))
        return;
    if (known && entry->error) {
        receive_failed(cq, entry, &posted);
        return;
    }
    if (!entry->error && (known || receive_guess(cq, entry, &posted)))
        arrival_record(cq, entry, &posted, known ? 0 : ST_ORDER_UNCERTAIN);
}

static void own_done(struct ofi_cq *cq, const struct ofi_entry *entry)
{
    struct st_pending sent;
    if (ofi_mode != ST_MODE_FULL && !ofi_cq_mixed(cq))
        return;
    if (!ofi_pending_take(cq->space, OFI_TX, entry->context, &sent)) {
        st_lost("completion whose operation is unknown", 1);
        return;
    }
    if (ofi_mode == ST_MODE_FULL)
        st_completion(entry->t_tsc, 0, sent.channel, sent.ordinal, entry->error, sent.op,
                      entry->call, entry->depth, entry->error ? ST_FAILED : 0);
}

/* A peer wrote here and sent data along: the only one-sided operation that its target sees. */
static void remote_done(struct ofi_cq *cq, const struct ofi_entry *entry)
{
    struct st_pending posted;
    if (entry->error || !(entry->flags & FI_REMOTE_CQ_DATA))
        return;
    if (!(cq->takes_receives && receive_find(cq, entry, &posted)) &&
        !receive_guess(cq, entry, &posted))
        return;
    posted.kind = ST_KIND_RMA;
    arrival_record(cq, entry, &posted, 0);
}

/* No flags: the context alone tells what it was. */
static void unflagged_done(struct ofi_cq *cq, const struct ofi_entry *entry)
{
    struct st_pending found;
    if (!cq->transmits) {
        receive_done(cq, entry);
        return;
    }
    bool received = cq->receives && ofi_pending_peek(cq->space, OFI_RX, entry->context, &found);
    for (size_t i = 0; i < OFI_CQ_SOURCES && cq->contexts[i] && !received; i++)
        received = ofi_pending_peek((uint16_t)cq->contexts[i], OFI_RX, entry->context, &found);
    bool sent = ofi_pending_peek(cq->space, OFI_TX, entry->context, &found);
    if (received && sent)
        st_lost("completion that may be a send's or a receive's", 1);
    if (received && !sent)
        receive_done(cq, entry);
    else
        own_done(cq, entry);
}

void ofi_entry_record(struct ofi_cq *cq, const struct ofi_entry *entry)
{
    struct st_pending released;
    uint64_t flags = entry->has_flags ? entry->flags : 0;
    if (flags & REMOTE_OPERATION)
        remote_done(cq, entry);
    else if (flags & FI_RECV)
        receive_done(cq, entry);
    else if (flags & OWN_OPERATION)
        own_done(cq, entry);
    else if (flags & FI_MULTI_RECV) /* the buffer alone, without a message */
        receive_find(cq, entry, &released);
    else
        unflagged_done(cq, entry);
}
