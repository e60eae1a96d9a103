/* Completion queues: what the program reads from them. */
#include <stdlib.h>

#include "ofi.h"

struct reading {
    struct ofi_cq *cq;
    const void *outer;
    uint8_t depth;
};

static bool reading_begin(struct reading *reading, struct ofi_cq *cq)
{
    if (ofi_busy == cq) /* sread reaches read through the queue's own table */
        return false;
    if (cq->shared)
        st_owner_claim(&cq->reader, &ofi_busy);
    reading->cq = cq;
    reading->outer = ofi_busy;
    ofi_busy = cq;
    reading->depth = ofi_deeper(st_enter(), cq->depth);
    return true;
}

static void reading_leave(const struct reading *reading)
{
    st_leave();
    ofi_busy = reading->outer;
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
    reading_leave(reading);
    if (count <= 0 || !buf)
        return;
    struct ofi_cq *cq = reading->cq;
    struct ofi_entry entry = {
        .t_tsc = ofi_mode == ST_MODE_AGGREGATE ? 0 : st_now(),
        .call = ofi_call_number[name],
        .depth = reading->depth,
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

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
    const struct ofi_table *table = ofi_table_of(fid->ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    if (!reading_begin(&reading, table->owner))
        return inner->read(fid, buf, count);
    ssize_t result = inner->read(fid, buf, count);
    reading_end(&reading, OFI_CALL_fi_cq_read, buf, result, NULL);
    return result;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *source)
{
    const struct ofi_table *table = ofi_table_of(fid->ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    if (!reading_begin(&reading, table->owner))
        return inner->readfrom(fid, buf, count, source);
    ssize_t result = inner->readfrom(fid, buf, count, source);
    reading_end(&reading, OFI_CALL_fi_cq_readfrom, buf, result, source);
    return result;
}

static ssize_t cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *condition,
                        int timeout)
{
    const struct ofi_table *table = ofi_table_of(fid->ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    if (!reading_begin(&reading, table->owner))
        return inner->sread(fid, buf, count, condition, timeout);
    ssize_t result = inner->sread(fid, buf, count, condition, timeout);
    reading_end(&reading, OFI_CALL_fi_cq_sread, buf, result, NULL);
    return result;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *source,
                            const void *condition, int timeout)
{
    const struct ofi_table *table = ofi_table_of(fid->ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    if (!reading_begin(&reading, table->owner))
        return inner->sreadfrom(fid, buf, count, source, condition, timeout);
    ssize_t result = inner->sreadfrom(fid, buf, count, source, condition, timeout);
    reading_end(&reading, OFI_CALL_fi_cq_sreadfrom, buf, result, source);
    return result;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->ops);
    const struct fi_ops_cq *inner = table->original;
    struct reading reading;
    if (!reading_begin(&reading, table->owner))
        return inner->readerr(fid, buf, flags);
    ssize_t result = inner->readerr(fid, buf, flags);
    reading_leave(&reading);
    if (result <= 0 || !buf)
        return result;
    struct ofi_cq *cq = reading.cq;
    const struct ofi_entry entry = {
        .context = buf->op_context,
        .flags = buf->flags,
        .size_bytes = buf->len + buf->olen,
        .data = buf->data,
        .tag = buf->tag,
        .source = FI_ADDR_NOTAVAIL,
        .t_tsc = ofi_mode == ST_MODE_AGGREGATE ? 0 : st_now(),
        .error = buf->err,
        .call = ofi_call_number[OFI_CALL_fi_cq_readerr],
        .depth = reading.depth,
        .has_flags = true,
        .has_data = true,
        .has_tag = buf->flags & FI_TAGGED,
    };
    ofi_entry_record(cq, &entry);
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
    if (__atomic_sub_fetch(&cq->references, 1, __ATOMIC_ACQ_REL))
        return;
    ofi_swap_free(&cq->swaps[0]);
    ofi_swap_free(&cq->swaps[1]);
    free(cq);
}

static int cq_close(struct fid *fid)
{
    struct ofi_cq *cq = ofi_table_of(fid->ops)->owner;
    ofi_swap_out(&cq->swaps[0]);
    ofi_swap_out(&cq->swaps[1]);
    st_enter();
    int result = fid->ops->close(fid);
    st_leave();
    if (!result) {
        cq_put(cq);
        return 0;
    }
    ofi_swap_in(&cq->swaps[0], cq);
    ofi_swap_in(&cq->swaps[1], cq);
    return result;
}

static void cq_fid_install(void *ops)
{
    struct fi_ops *table = ops;
    OFI_INSTALL(table, close, cq_close);
}

struct ofi_cq *ofi_cq_of(struct fid *fid)
{
    return fid->ops && fid->ops->close == cq_close ? ofi_table_of(fid->ops)->owner : NULL;
}

void ofi_cq_wrap(struct ofi_domain *domain, struct fid_cq *fid, const struct fi_cq_attr *attr,
                 uint8_t depth)
{
    struct ofi_cq *cq = ofi_cq_of(&fid->fid) ? NULL : calloc(1, sizeof(*cq));
    if (!cq)
        return;
    cq->fid = fid;
    cq->references = 1;
    /* Without a wish the provider chooses, and says so in the attributes when it is not the
     * smallest format. */
    cq->format = attr && attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
    cq->space = ofi_space_new();
    cq->depth = depth;
    cq->shared = domain->shared;
    cq->swaps[0] = (struct ofi_swap){(void **)&fid->fid.ops, NULL, cq_fid_install};
    cq->swaps[1] = (struct ofi_swap){(void **)&fid->ops, NULL, cq_ops_install};
    ofi_swap_in(&cq->swaps[0], cq);
    ofi_swap_in(&cq->swaps[1], cq);
}

/* --- what is bound to it --------------------------------------------------------------------- */

void ofi_cq_bound(struct ofi_cq *cq, struct ofi_ep *ep, uint64_t flags)
{
    __atomic_add_fetch(&cq->references, 1, __ATOMIC_ACQ_REL);
    if (flags & FI_TRANSMIT) {
        __atomic_add_fetch(&cq->transmits, 1, __ATOMIC_ACQ_REL);
        return;
    }
    __atomic_add_fetch(&cq->receives, 1, __ATOMIC_ACQ_REL);
    if (ep->takes_receives)
        cq->takes_receives = true;
    uint64_t entry = ep->object | (ep->connected ? OFI_CQ_CONNECTED : 0);
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

void ofi_cq_context(struct ofi_cq *cq, const struct ofi_ep *ep)
{
    for (size_t i = 0; i < OFI_CQ_SOURCES; i++) {
        uint32_t space = 0;
        if (__atomic_compare_exchange_n(&cq->contexts[i], &space, ep->srx_space, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED) ||
            space == ep->srx_space)
            return;
    }
    st_lost("shared receive contexts beyond those a completion queue can tell apart", 1);
}
