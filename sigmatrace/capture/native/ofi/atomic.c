/* Remote atomic operations. */
#include <complex.h>

#include "ofi.h"

/* Bytes of one element; 0 for a type that this build does not know. */
static uint64_t datatype_bytes(enum fi_datatype type)
{
    /* By number, since the headers of 2.x have types that those of 1.17 have not. */
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, sizeof(float), sizeof(double),
                                    sizeof(float complex), sizeof(double complex),
                                    sizeof(long double), sizeof(long double complex),
                                    16, 16, 2, 2, 1, 1};
    return (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

static uint64_t ioc_count(const struct fi_ioc *iov, size_t count)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < count; i++)
        elements += iov[i].count;
    return elements;
}

/* What all atomic calls have in common. */
struct atomic {
    enum ofi_call_name name;
    uint64_t peer, elements;
    enum fi_datatype type;
    void *context;
    bool fetch, inject;
    const struct fi_msg_atomic *msg; /* its peer, targets and flags; NULL: one target */
    uint64_t flags;
    struct fi_rma_iov target;
};

static struct ofi_out atomic_out(const struct atomic *a)
{
    uint64_t bytes = datatype_bytes(a->type);
    struct ofi_out out = {
        .name = a->name,
        .op = a->fetch ? ST_OP_ATOMIC_FETCH : ST_OP_ATOMIC,
        .kind = ST_KIND_RMA,
        .peer = a->peer,
        .size_bytes = bytes * a->elements,
        .context = a->context,
        .targets = &a->target,
        .target_count = 1,
        .record_flags = (a->inject ? ST_INLINE : 0) | (bytes ? 0 : ST_SIZE_UNKNOWN),
    };
    if (a->msg) {
        out.data = a->msg->data;
        out.flags = a->flags;
        out.has_flags = true;
        out.targets = (const struct fi_rma_iov *)a->msg->rma_iov;
        out.target_count = a->msg->rma_iov_count;
    }
    return out;
}

/* A list of targets of atomics differs from that of reads and writes in one name only. */
_Static_assert(sizeof(struct fi_rma_ioc) == sizeof(struct fi_rma_iov) &&
                   offsetof(struct fi_rma_ioc, key) == offsetof(struct fi_rma_iov, key),
               "targets of atomics are laid out like those of reads and writes");

static struct atomic atomic_msg(enum ofi_call_name name, const struct fi_msg_atomic *msg,
                                uint64_t flags, bool fetch, uint64_t elements)
{
    return (struct atomic){.name = name, .peer = msg->addr, .elements = elements,
                           .type = msg->datatype, .context = msg->context, .fetch = fetch,
                           .msg = msg, .flags = flags};
}

static ssize_t atomic_write(struct fid_ep *fid, const void *buf, size_t count, void *desc,
                            fi_addr_t peer, uint64_t addr, uint64_t key, enum fi_datatype type,
                            enum fi_op op, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_atomic, .peer = peer, .elements = count,
                             .type = type, .context = context, .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->write(fid, buf, count, desc, peer, addr, key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
                             size_t count, fi_addr_t peer, uint64_t addr, uint64_t key,
                             enum fi_datatype type, enum fi_op op, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_atomicv, .peer = peer,
                             .elements = ioc_count(iov, count), .type = type, .context = context,
                             .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->writev(fid, iov, desc, count, peer, addr, key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
                               uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = atomic_msg(OFI_CALL_fi_atomicmsg, msg, flags, false,
                                       ioc_count(msg->msg_iov, msg->iov_count));
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->writemsg(fid, msg, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_inject(struct fid_ep *fid, const void *buf, size_t count, fi_addr_t peer,
                             uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_inject_atomic, .peer = peer, .elements = count,
                             .type = type, .inject = true, .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->inject(fid, buf, count, peer, addr, key, type, op);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_readwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
                                void *result_buf, void *result_desc, fi_addr_t peer,
                                uint64_t addr, uint64_t key, enum fi_datatype type,
                                enum fi_op op, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_fetch_atomic, .peer = peer, .elements = count,
                             .type = type, .context = context, .fetch = true,
                             .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->readwrite(fid, buf, count, desc, result_buf, result_desc, peer, addr,
                                      key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
                                 size_t count, struct fi_ioc *results, void **result_desc,
                                 size_t result_count, fi_addr_t peer, uint64_t addr,
                                 uint64_t key, enum fi_datatype type, enum fi_op op,
                                 void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    /* Elements of the results: a pure read has no operands. */
    const struct atomic a = {.name = OFI_CALL_fi_fetch_atomicv, .peer = peer,
                             .elements = ioc_count(results, result_count), .type = type,
                             .context = context, .fetch = true, .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->readwritev(fid, iov, desc, count, results, result_desc, result_count,
                                       peer, addr, key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
                                   struct fi_ioc *results, void **result_desc,
                                   size_t result_count, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = atomic_msg(OFI_CALL_fi_fetch_atomicmsg, msg, flags, true,
                                       ioc_count(results, result_count));
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result =
        inner->readwritemsg(fid, msg, results, result_desc, result_count, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_compwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
                                const void *compare, void *compare_desc, void *result_buf,
                                void *result_desc, fi_addr_t peer, uint64_t addr, uint64_t key,
                                enum fi_datatype type, enum fi_op op, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_compare_atomic, .peer = peer, .elements = count,
                             .type = type, .context = context, .fetch = true,
                             .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->compwrite(fid, buf, count, desc, compare, compare_desc, result_buf,
                                      result_desc, peer, addr, key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
                                 size_t count, const struct fi_ioc *compares,
                                 void **compare_desc, size_t compare_count,
                                 struct fi_ioc *results, void **result_desc,
                                 size_t result_count, fi_addr_t peer, uint64_t addr,
                                 uint64_t key, enum fi_datatype type, enum fi_op op,
                                 void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = {.name = OFI_CALL_fi_compare_atomicv, .peer = peer,
                             .elements = ioc_count(iov, count), .type = type, .context = context,
                             .fetch = true, .target = {addr, 0, key}};
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->compwritev(fid, iov, desc, count, compares, compare_desc,
                                       compare_count, results, result_desc, result_count, peer,
                                       addr, key, type, op, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t atomic_compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
                                   const struct fi_ioc *compares, void **compare_desc,
                                   size_t compare_count, struct fi_ioc *results,
                                   void **result_desc, size_t result_count, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->atomic);
    const struct fi_ops_atomic *inner = table->original;
    const struct atomic a = atomic_msg(OFI_CALL_fi_compare_atomicmsg, msg, flags, true,
                                       ioc_count(msg->msg_iov, msg->iov_count));
    struct ofi_out out = atomic_out(&a);
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->compwritemsg(fid, msg, compares, compare_desc, compare_count, results,
                                         result_desc, result_count, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

void ofi_atomic_install(void *ops)
{
    struct fi_ops_atomic *table = ops;
    OFI_INSTALL(table, write, atomic_write);
    OFI_INSTALL(table, writev, atomic_writev);
    OFI_INSTALL(table, writemsg, atomic_writemsg);
    OFI_INSTALL(table, inject, atomic_inject);
    OFI_INSTALL(table, readwrite, atomic_readwrite);
    OFI_INSTALL(table, readwritev, atomic_readwritev);
    OFI_INSTALL(table, readwritemsg, atomic_readwritemsg);
    OFI_INSTALL(table, compwrite, atomic_compwrite);
    OFI_INSTALL(table, compwritev, atomic_compwritev);
    OFI_INSTALL(table, compwritemsg, atomic_compwritemsg);
}
