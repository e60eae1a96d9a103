/* Completion queues: what the program reads from them. */
#include <stdlib.h>

#include "ofi.h"

struct reading {
    struct ofi_cq *cq; /* NULL: sread has reached read through the queue's own table */
    struct ofi_frame frame;
};

static void reading_begin(struct reading *reading, struct ofi_cq *cq)
{
    if (cq->shared)
        st_owner_claim(&cq->reader, &ofi_busy);
    reading->cq = ofi_enter(&reading->frame, cq, cq->depth) ? cq : NULL;
}

/* Is there anything to record? */
static bool reading_leave(const struct reading *reading, ssize_t count)
{
    if (reading->cq)
        ofi_leave(&reading->frame);
    return reading->cq && count > 0;
}

/* Fills in what the format has of entry `i`. */
static void entry_parse(struct ofi_entry *entry, enum fi_cq_format format, const void *buf,
                        size_t i)
{
    switch (format) {
    case FI_CQ_FORMAT_TAGGED: {
        const struct fi_cq_tagged_entry *e = (const struct fi_cq_tagged_entry *)buf + i;
        entry->context = e->op_context;
        entry->flags = e->flags;
        entry->size_bytes = e->len;
        entry->data = e->data;
        entry->tag = e->tag;
        break;
    }
    case FI_CQ_FORMAT_DATA: {
        const struct fi_cq_data_entry *e = (const struct fi_cq_data_entry *)buf + i;
        entry->context = e->op_context;
        entry->flags = e->flags;
        entry->size_bytes = e->len;
        entry->data = e->data;
        break;
    }
    case FI_CQ_FORMAT_MSG: {
        const struct fi_cq_msg_entry *e = (const struct fi_cq_msg_entry *)buf + i;
        entry->context = e->op_context;
        entry->flags = e->flags;
        entry->size_bytes = e->len;
        break;
    }
    default:
        entry->context = ((const struct fi_cq_entry *)buf + i)->op_context;
    }
}

static void reading_end(const struct reading *reading, enum ofi_call_name name, const void *buf,
                        ssize_t count, const fi_addr_t *sources)
{
    if (!reading_leave(reading, count) || !buf)
        return;
    struct ofi_cq *cq = reading->cq;
    struct ofi_entry entry = {
        .t_tsc = ofi_now(),
        .call = ofi_call_number[name],
        .depth = reading->frame.depth,
        .record_flags = reading->frame.flags,
        .has_flags = cq->format >= FI_CQ_FORMAT_MSG,
        .has_data = cq->format >= FI_CQ_FORMAT_DATA,
        .has_tag = cq->format == FI_CQ_FORMAT_TAGGED,
    };
    for (ssize_t i = 0; i < count; i++) {
        entry_parse(&entry, cq->format, buf, (size_t)i);
        entry.source = sources ? sources[i] : FI_ADDR_NOTAVAIL;
        ofi_entry_record(cq, &entry);
    }
}

/* A call that reads entries into `buf`; `sources`: where it tells their senders, or NULL. */
#define CQ_READ(member, parameters, arguments, sources)                                           \
    static ssize_t cq_##member parameters                                                         \
    {                                                                                             \
        struct fi_ops_cq *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);                     \
        if (ops->member != cq_##member) /* see ofi_swaps_close */                                 \
            return ofi_missed(), ops->member arguments;                                           \
        const struct ofi_table *table = ofi_table_of(ops);                                        \
        const struct fi_ops_cq *inner = table->original;                                          \
        struct reading reading;                                                                   \
        reading_begin(&reading, table->owner);                                                    \
        ssize_t result = inner->member arguments;                                                 \
        reading_end(&reading, OFI_CALL_fi_cq_##member, buf, result, sources);                     \
        return result;                                                                            \
    }

CQ_READ(read,
        (struct fid_cq *fid, void *buf, size_t count),
        (fid, buf, count),
        NULL)

CQ_READ(readfrom,
        (struct fid_cq *fid, void *buf, size_t count, fi_addr_t *source),
        (fid, buf, count, source),
        source)

CQ_READ(sread,
        (struct fid_cq *fid, void *buf, size_t count, const void *condition, int timeout),
        (fid, buf, count, condition, timeout),
        NULL)

CQ_READ(sreadfrom,
        (struct fid_cq *fid, void *buf, size_t count, fi_addr_t *source, const void *condition,
         int timeout),
        (fid, buf, count, source, condition, timeout),
        source)

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags)
{
    struct fi_ops_cq *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);
    if (ops->readerr != cq_readerr) /* see ofi_swaps_close */
        return ofi_missed(), ops->readerr(fid, buf, flags);
    const struct ofi_table *table = ofi_table_of(ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    reading_begin(&reading, table->owner);
    ssize_t result = inner->readerr(fid, buf, flags);
    if (!reading_leave(&reading, result) || !buf)
        return result;
    const struct ofi_entry entry = {
        .context = buf->op_context,
        .flags = buf->flags,
        .size_bytes = buf->len + buf->olen,
        .data = buf->data,
        .tag = buf->tag,
        .source = FI_ADDR_NOTAVAIL,
        .t_tsc = ofi_now(),
        .error = buf->err,
        .call = ofi_call_number[OFI_CALL_fi_cq_readerr],
        .depth = reading.frame.depth,
        .record_flags = reading.frame.flags,
        .has_flags = true,
        .has_data = true,
        .has_tag = buf->flags & FI_TAGGED,
    };
    ofi_entry_record(reading.cq, &entry);
    return result;
}

static void cq_ops_install(void *ops)
{
    struct fi_ops_cq *table = ops;
    OFI_INSTALL(table, read, cq_read);
    OFI_INSTALL(table, readfrom, cq_readfrom);
    OFI_INSTALL(table, readerr, cq_readerr);
    OFI_INSTALL(table, sread, cq_sread);
    OFI_INSTALL(table, sreadfrom, cq_sreadfrom);
}

/* --- life ------------------------------------------------------------------------------------ */

static void cq_put(struct ofi_cq *cq)
{
    if (!__atomic_sub_fetch(&cq->references, 1, __ATOMIC_ACQ_REL))
        free(cq);
}

static int cq_close(struct fid *fid)
{
    struct ofi_cq *cq = ofi_table_of(fid->ops)->owner;
    int result = ofi_swaps_close(&cq->swaps, fid);
    if (!result)
        cq_put(cq);
    return result;
}

static void cq_fid_install(void *ops)
{
    struct fi_ops *table = ops;
    OFI_INSTALL(table, close, cq_close);
}

struct ofi_cq *ofi_cq_of(struct fid *fid)
{
    const struct fi_ops *ops = fid->ops;
    return ops && ops->close == cq_close ? ofi_table_of(ops)->owner : NULL;
}

void ofi_cq_wrap(struct ofi_domain *domain, struct fid_cq *fid, const struct fi_cq_attr *attr,
                 uint8_t depth)
{
    struct ofi_cq *cq = ofi_cq_of(&fid->fid) ? NULL : calloc(1, sizeof(*cq));
    if (!cq)
        return;
    cq->references = 1;
    /* Without a wish the provider chooses, and says so in the attributes when it is not the
     * smallest format. */
    cq->format = attr && attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
    cq->space = ofi_space_new();
    cq->depth = depth;
    cq->shared = domain->shared;
    cq->swaps.owner = cq;
    ofi_swaps_add(&cq->swaps, &fid->fid.ops, cq_fid_install);
    ofi_swaps_add(&cq->swaps, &fid->ops, cq_ops_install);
}

/* --- what is bound to it --------------------------------------------------------------------- */

static void cq_mixed(struct ofi_cq *cq)
{
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint64_t entry = __atomic_load_n(&cq->endpoints[i], __ATOMIC_ACQUIRE);
        while (entry && !__atomic_compare_exchange_n(&cq->endpoints[i], &entry,
                                                     entry | OFI_CQ_MIXED, false,
                                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
    }
}

void ofi_cq_bound(struct ofi_cq *cq, struct ofi_ep *ep, uint64_t flags)
{
    __atomic_add_fetch(&cq->references, 1, __ATOMIC_ACQ_REL);
    if (flags & FI_TRANSMIT) {
        __atomic_add_fetch(&cq->transmits, 1, __ATOMIC_ACQ_REL);
        return;
    }
    bool mixed = __atomic_add_fetch(&cq->receives, 1, __ATOMIC_ACQ_REL) > 1;
    if (ep->takes_receives)
        cq->takes_receives = true;
    if (mixed)
        cq_mixed(cq);
    uint64_t entry = ep->object | (ep->connected ? OFI_CQ_CONNECTED : 0) |
                     (mixed ? OFI_CQ_MIXED : 0);
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint64_t none = 0;
        if (__atomic_compare_exchange_n(&cq->endpoints[i], &none, entry, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return;
    }
}

void ofi_cq_unbound(struct ofi_cq *cq, struct ofi_ep *ep, uint64_t flags)
{
    if (flags & FI_TRANSMIT) {
        __atomic_sub_fetch(&cq->transmits, 1, __ATOMIC_ACQ_REL);
    } else {
        __atomic_sub_fetch(&cq->receives, 1, __ATOMIC_ACQ_REL);
        for (size_t i = 0; i < OFI_CQ_SOURCES; i++)
            if ((uint32_t)__atomic_load_n(&cq->endpoints[i], __ATOMIC_RELAXED) == ep->object)
                __atomic_store_n(&cq->endpoints[i], 0, __ATOMIC_RELEASE);
    }
    cq_put(cq);
}

/* The endpoint gets messages that will be recorded at its shared receive context, since nothing
 * tells for whom they are: whoever matches its channels must know. */
static void cq_untold(uint32_t endpoint)
{
    static const uint8_t kinds[] = {ST_KIND_MSG, ST_KIND_TAG};
    for (size_t i = 0; i < sizeof(kinds); i++) {
        const struct st_channel_key key = {
            .object = endpoint,
            .kind = kinds[i],
            .dir = ST_IN,
            .layer = ST_LAYER_OFI,
            .flags = ST_TAG_UNKNOWN,
            .peer = ST_UNKNOWN_PEER,
        };
        st_channel_get(&key);
    }
}

static void cq_sharing(struct ofi_cq *cq, const struct ofi_ep *ep)
{
    bool mixed = __atomic_load_n(&cq->receives, __ATOMIC_ACQUIRE) > 1;
    if (mixed)
        cq_untold(ep->object);
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint64_t entry = __atomic_load_n(&cq->endpoints[i], __ATOMIC_ACQUIRE);
        if ((uint32_t)entry == ep->object)
            __atomic_fetch_or(&cq->endpoints[i], OFI_CQ_SHARING, __ATOMIC_ACQ_REL);
        else if (mixed && (entry & OFI_CQ_SHARING))
            cq_untold((uint32_t)entry);
    }
}

void ofi_cq_context(struct ofi_cq *cq, const struct ofi_ep *ep)
{
    cq_sharing(cq, ep);
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint32_t space = 0;
        if (__atomic_compare_exchange_n(&cq->contexts[i], &space, ep->srx_space, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED) ||
            space == ep->srx_space)
            return;
    }
    st_lost("shared receive contexts beyond those a completion queue can tell apart", 1);
}
