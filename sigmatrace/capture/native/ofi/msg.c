/* Untagged messages. */
#include "ofi.h"

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer,
                        void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_recv, .kind = ST_KIND_MSG, .peer = peer,
                        .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recv(fid, buf, len, desc, peer, context);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                         fi_addr_t peer, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_recvv, .kind = ST_KIND_MSG, .peer = peer,
                        .size_bytes = ofi_iov_bytes(iov, count), .context = context};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recvv(fid, iov, desc, count, peer, context);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_recvmsg, .kind = ST_KIND_MSG, .peer = msg->addr,
                        .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                        .context = msg->context, .flags = flags, .has_flags = true};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recvmsg(fid, msg, flags);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                        fi_addr_t peer, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_send, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = peer, .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->send(fid, buf, len, desc, peer, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                         fi_addr_t peer, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_sendv, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = peer, .size_bytes = ofi_iov_bytes(iov, count),
                          .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->sendv(fid, iov, desc, count, peer, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_sendmsg, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = msg->addr, .data = msg->data,
                          .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                          .context = msg->context, .flags = flags, .has_flags = true};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->sendmsg(fid, msg, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_inject, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = peer, .size_bytes = len, .record_flags = ST_INLINE};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->inject(fid, buf, len, peer);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                            uint64_t data, fi_addr_t peer, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_senddata, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = peer, .data = data, .channel_flags = ST_HAS_DATA,
                          .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->senddata(fid, buf, len, desc, data, peer, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
                              fi_addr_t peer)
{
    const struct ofi_table *table = ofi_table_of(fid->msg);
    const struct fi_ops_msg *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_injectdata, .op = ST_OP_SEND, .kind = ST_KIND_MSG,
                          .peer = peer, .data = data, .channel_flags = ST_HAS_DATA,
                          .size_bytes = len, .record_flags = ST_INLINE};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->injectdata(fid, buf, len, data, peer);
    ofi_out_end(&call, &out, result);
    return result;
}

void ofi_msg_install(void *ops)
{
    struct fi_ops_msg *table = ops;
    OFI_INSTALL(table, recv, msg_recv);
    OFI_INSTALL(table, recvv, msg_recvv);
    OFI_INSTALL(table, recvmsg, msg_recvmsg);
    OFI_INSTALL(table, send, msg_send);
    OFI_INSTALL(table, sendv, msg_sendv);
    OFI_INSTALL(table, sendmsg, msg_sendmsg);
    OFI_INSTALL(table, inject, msg_inject);
    OFI_INSTALL(table, senddata, msg_senddata);
    OFI_INSTALL(table, injectdata, msg_injectdata);
}
