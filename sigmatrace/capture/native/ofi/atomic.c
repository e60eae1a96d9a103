/* Remote atomic operations. */
#include <complex.h>

#include "wrap.h"

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

static uint64_t elements(const struct fi_ioc *iov, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += iov[i].count;
    return sum;
}

#define ATOMIC(member, name, parameters, arguments, ...)                                          \
    OFI_OUT(atomic, member, name, parameters, arguments, .op = ST_OP_ATOMIC, .kind = ST_KIND_RMA, \
            __VA_ARGS__)
#define FETCH(member, name, parameters, arguments, ...)                                           \
    OFI_OUT(atomic, member, name, parameters, arguments, .op = ST_OP_ATOMIC_FETCH,                \
            .kind = ST_KIND_RMA, __VA_ARGS__)

/* So many elements of a type, and the flags of the record. */
#define SIZE(count, type, flags)                                                                  \
    .size_bytes = (count) * datatype_bytes(type),                                                 \
    .record_flags = (flags) | (datatype_bytes(type) ? 0 : ST_SIZE_UNKNOWN)

/* A list of targets of atomics differs from that of reads and writes in one name only. */
_Static_assert(sizeof(struct fi_rma_ioc) == sizeof(struct fi_rma_iov) &&
                   offsetof(struct fi_rma_ioc, key) == offsetof(struct fi_rma_iov, key),
               "targets of atomics are laid out like those of reads and writes");
#define OF_ATOMIC_MSG(flags)                                                                      \
    .data = msg->data, .targets = (const struct fi_rma_iov *)msg->rma_iov,                        \
    .target_count = msg->rma_iov_count, OFI_OF_MSG(flags)

ATOMIC(write, fi_atomic,
       (struct fid_ep *fid, const void *buf, size_t count, void *desc, fi_addr_t peer,
        uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op, void *context),
       (fid, buf, count, desc, peer, addr, key, type, op, context),
       SIZE(count, type, 0), .peer = peer, .context = context, OFI_TARGET(addr, key))

ATOMIC(writev, fi_atomicv,
       (struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count, fi_addr_t peer,
        uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op, void *context),
       (fid, iov, desc, count, peer, addr, key, type, op, context),
       SIZE(elements(iov, count), type, 0), .peer = peer, .context = context,
       OFI_TARGET(addr, key))

ATOMIC(writemsg, fi_atomicmsg,
       (struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags),
       (fid, msg, flags),
       SIZE(elements(msg->msg_iov, msg->iov_count), msg->datatype, 0), OF_ATOMIC_MSG(flags))

ATOMIC(inject, fi_inject_atomic,
       (struct fid_ep *fid, const void *buf, size_t count, fi_addr_t peer, uint64_t addr,
        uint64_t key, enum fi_datatype type, enum fi_op op),
       (fid, buf, count, peer, addr, key, type, op),
       SIZE(count, type, ST_INLINE), .peer = peer, OFI_TARGET(addr, key))

FETCH(readwrite, fi_fetch_atomic,
      (struct fid_ep *fid, const void *buf, size_t count, void *desc, void *got, void *got_desc,
       fi_addr_t peer, uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op,
       void *context),
      (fid, buf, count, desc, got, got_desc, peer, addr, key, type, op, context),
      SIZE(count, type, 0), .peer = peer, .context = context, OFI_TARGET(addr, key))

/* Elements of the results: a pure read has no operands. */
FETCH(readwritev, fi_fetch_atomicv,
      (struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count,
       struct fi_ioc *got, void **got_desc, size_t got_count, fi_addr_t peer, uint64_t addr,
       uint64_t key, enum fi_datatype type, enum fi_op op, void *context),
      (fid, iov, desc, count, got, got_desc, got_count, peer, addr, key, type, op, context),
      SIZE(elements(got, got_count), type, 0), .peer = peer, .context = context,
      OFI_TARGET(addr, key))

FETCH(readwritemsg, fi_fetch_atomicmsg,
      (struct fid_ep *fid, const struct fi_msg_atomic *msg, struct fi_ioc *got, void **got_desc,
       size_t got_count, uint64_t flags),
      (fid, msg, got, got_desc, got_count, flags),
      SIZE(elements(got, got_count), msg->datatype, 0), OF_ATOMIC_MSG(flags))

FETCH(compwrite, fi_compare_atomic,
      (struct fid_ep *fid, const void *buf, size_t count, void *desc, const void *compare,
       void *compare_desc, void *got, void *got_desc, fi_addr_t peer, uint64_t addr,
       uint64_t key, enum fi_datatype type, enum fi_op op, void *context),
      (fid, buf, count, desc, compare, compare_desc, got, got_desc, peer, addr, key, type, op,
       context),
      SIZE(count, type, 0), .peer = peer, .context = context, OFI_TARGET(addr, key))

FETCH(compwritev, fi_compare_atomicv,
      (struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count,
       const struct fi_ioc *compare, void **compare_desc, size_t compare_count,
       struct fi_ioc *got, void **got_desc, size_t got_count, fi_addr_t peer, uint64_t addr,
       uint64_t key, enum fi_datatype type, enum fi_op op, void *context),
      (fid, iov, desc, count, compare, compare_desc, compare_count, got, got_desc, got_count, peer,
       addr, key, type, op, context),
      SIZE(elements(iov, count), type, 0), .peer = peer, .context = context,
      OFI_TARGET(addr, key))

FETCH(compwritemsg, fi_compare_atomicmsg,
      (struct fid_ep *fid, const struct fi_msg_atomic *msg, const struct fi_ioc *compare,
       void **compare_desc, size_t compare_count, struct fi_ioc *got, void **got_desc,
       size_t got_count, uint64_t flags),
      (fid, msg, compare, compare_desc, compare_count, got, got_desc, got_count, flags),
      SIZE(elements(msg->msg_iov, msg->iov_count), msg->datatype, 0), OF_ATOMIC_MSG(flags))

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
