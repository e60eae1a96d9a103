/* Remote memory access. */
#include "wrap.h"

#define GET(member, name, parameters, arguments, ...)                                             \
    OFI_OUT(rma, member, name, parameters, arguments, .op = ST_OP_GET, .kind = ST_KIND_RMA,       \
            __VA_ARGS__)
#define PUT(member, name, op_, parameters, arguments, ...)                                        \
    OFI_OUT(rma, member, name, parameters, arguments, .op = (op_), .kind = ST_KIND_RMA,           \
            __VA_ARGS__)

GET(read, fi_read,
    (struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t addr,
     uint64_t key, void *context),
    (fid, buf, len, desc, peer, addr, key, context),
    .size_bytes = len, .peer = peer, .context = context, OFI_TARGET(addr, key))

GET(readv, fi_readv,
    (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
     uint64_t addr, uint64_t key, void *context),
    (fid, iov, desc, count, peer, addr, key, context),
    .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .context = context,
    OFI_TARGET(addr, key))

/* A read carries no data to its target, whatever its flags say. */
GET(readmsg, fi_readmsg,
    (struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags),
    (fid, msg, flags),
    .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
    .targets = msg->rma_iov, .target_count = msg->rma_iov_count,
    OFI_OF_MSG(flags & ~FI_REMOTE_CQ_DATA))

PUT(write, fi_write, ST_OP_PUT,
    (struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t addr,
     uint64_t key, void *context),
    (fid, buf, len, desc, peer, addr, key, context),
    .size_bytes = len, .peer = peer, .context = context, OFI_TARGET(addr, key))

PUT(writev, fi_writev, ST_OP_PUT,
    (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
     uint64_t addr, uint64_t key, void *context),
    (fid, iov, desc, count, peer, addr, key, context),
    .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .context = context,
    OFI_TARGET(addr, key))

PUT(writemsg, fi_writemsg, flags & FI_REMOTE_CQ_DATA ? ST_OP_PUT_DATA : ST_OP_PUT,
    (struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags),
    (fid, msg, flags),
    .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count), .data = msg->data,
    .targets = msg->rma_iov, .target_count = msg->rma_iov_count, OFI_OF_MSG(flags))

PUT(inject, fi_inject_write, ST_OP_PUT,
    (struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer, uint64_t addr,
     uint64_t key),
    (fid, buf, len, peer, addr, key),
    .size_bytes = len, .peer = peer, .record_flags = ST_INLINE, OFI_TARGET(addr, key))

PUT(writedata, fi_writedata, ST_OP_PUT_DATA,
    (struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t peer,
     uint64_t addr, uint64_t key, void *context),
    (fid, buf, len, desc, data, peer, addr, key, context),
    .size_bytes = len, .peer = peer, .context = context,
    .channel_flags = ST_HAS_DATA, .data = data, OFI_TARGET(addr, key))

PUT(injectdata, fi_inject_writedata, ST_OP_PUT_DATA,
    (struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t peer,
     uint64_t addr, uint64_t key),
    (fid, buf, len, data, peer, addr, key),
    .size_bytes = len, .peer = peer, .record_flags = ST_INLINE,
    .channel_flags = ST_HAS_DATA, .data = data, OFI_TARGET(addr, key))

void ofi_rma_install(void *ops)
{
    struct fi_ops_rma *table = ops;
    OFI_INSTALL(table, read, rma_read);
    OFI_INSTALL(table, readv, rma_readv);
    OFI_INSTALL(table, readmsg, rma_readmsg);
    OFI_INSTALL(table, write, rma_write);
    OFI_INSTALL(table, writev, rma_writev);
    OFI_INSTALL(table, writemsg, rma_writemsg);
    OFI_INSTALL(table, inject, rma_inject);
    OFI_INSTALL(table, writedata, rma_writedata);
    OFI_INSTALL(table, injectdata, rma_injectdata);
}
