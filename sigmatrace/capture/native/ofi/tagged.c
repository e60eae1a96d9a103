/* Tagged messages. */
#include "ofi.h"

static ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer,
                           uint64_t tag, uint64_t ignore, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_trecv, .kind = ST_KIND_TAG, .peer = peer, .tag = tag,
                        .ignore = ignore, .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recv(fid, buf, len, desc, peer, tag, ignore, context);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, uint64_t ignore,
                            void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_trecvv, .kind = ST_KIND_TAG, .peer = peer,
                        .tag = tag, .ignore = ignore, .size_bytes = ofi_iov_bytes(iov, count),
                        .context = context};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recvv(fid, iov, desc, count, peer, tag, ignore, context);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_in in = {.name = OFI_CALL_fi_trecvmsg, .kind = ST_KIND_TAG, .peer = msg->addr,
                        .tag = msg->tag, .ignore = msg->ignore,
                        .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                        .context = msg->context, .flags = flags, .has_flags = true};
    struct ofi_call call;
    ofi_in_begin(&call, table, &in);
    ssize_t result = inner->recvmsg(fid, msg, flags);
    ofi_in_end(&call, &in, result);
    return result;
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                           fi_addr_t peer, uint64_t tag, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tsend, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG, .peer = peer, .tag = tag,
                          .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->send(fid, buf, len, desc, peer, tag, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tsendv, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG, .peer = peer, .tag = tag,
                          .size_bytes = ofi_iov_bytes(iov, count), .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->sendv(fid, iov, desc, count, peer, tag, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tsendmsg, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG, .peer = msg->addr, .tag = msg->tag,
                          .data = msg->data,
                          .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count),
                          .context = msg->context, .flags = flags, .has_flags = true};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->sendmsg(fid, msg, flags);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer,
                             uint64_t tag)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tinject, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG, .peer = peer, .tag = tag,
                          .size_bytes = len, .record_flags = ST_INLINE};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->inject(fid, buf, len, peer, tag);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                               uint64_t data, fi_addr_t peer, uint64_t tag, void *context)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tsenddata, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG | ST_HAS_DATA, .peer = peer, .tag = tag,
                          .data = data, .size_bytes = len, .context = context};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->senddata(fid, buf, len, desc, data, peer, tag, context);
    ofi_out_end(&call, &out, result);
    return result;
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
                                 fi_addr_t peer, uint64_t tag)
{
    const struct ofi_table *table = ofi_table_of(fid->tagged);
    const struct fi_ops_tagged *inner = table->original;
    struct ofi_out out = {.name = OFI_CALL_fi_tinjectdata, .op = ST_OP_SEND, .kind = ST_KIND_TAG,
                          .channel_flags = ST_HAS_TAG | ST_HAS_DATA, .peer = peer, .tag = tag,
                          .data = data, .size_bytes = len, .record_flags = ST_INLINE};
    struct ofi_call call;
    ofi_out_begin(&call, table, &out);
    ssize_t result = inner->injectdata(fid, buf, len, data, peer, tag);
    ofi_out_end(&call, &out, result);
    return result;
}

void ofi_tagged_install(void *ops)
{
    struct fi_ops_tagged *table = ops;
    OFI_INSTALL(table, recv, tagged_recv);
    OFI_INSTALL(table, recvv, tagged_recvv);
    OFI_INSTALL(table, recvmsg, tagged_recvmsg);
    OFI_INSTALL(table, send, tagged_send);
    OFI_INSTALL(table, sendv, tagged_sendv);
    OFI_INSTALL(table, sendmsg, tagged_sendmsg);
    OFI_INSTALL(table, inject, tagged_inject);
    OFI_INSTALL(table, senddata, tagged_senddata);
    OFI_INSTALL(table, injectdata, tagged_injectdata);
}
