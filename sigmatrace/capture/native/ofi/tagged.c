/* Tagged messages. */
#include "wrap.h"

#define RECEIVE(member, name, parameters, arguments, ...)                                         \
    OFI_IN(tagged, member, name, parameters, arguments, .kind = ST_KIND_TAG, __VA_ARGS__)
#define SEND(member, name, parameters, arguments, ...)                                            \
    OFI_OUT(tagged, member, name, parameters, arguments, .op = ST_OP_SEND, .kind = ST_KIND_TAG,   \
            __VA_ARGS__)

RECEIVE(recv, fi_trecv,
        (struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t tag,
         uint64_t ignore, void *context),
        (fid, buf, len, desc, peer, tag, ignore, context),
        .size_bytes = len, .peer = peer, .tag = tag, .ignore = ignore, .context = context)

RECEIVE(recvv, fi_trecvv,
        (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
         uint64_t tag, uint64_t ignore, void *context),
        (fid, iov, desc, count, peer, tag, ignore, context),
        .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .tag = tag, .ignore = ignore,
        .context = context)

RECEIVE(recvmsg, fi_trecvmsg,
        (struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags),
        (fid, msg, flags),
        .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count), .tag = msg->tag,
        .ignore = msg->ignore, OFI_OF_MSG(flags))

SEND(send, fi_tsend,
     (struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t tag,
      void *context),
     (fid, buf, len, desc, peer, tag, context),
     .size_bytes = len, .peer = peer, .context = context,
     .channel_flags = ST_HAS_TAG, .tag = tag)

SEND(sendv, fi_tsendv,
     (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
      uint64_t tag, void *context),
     (fid, iov, desc, count, peer, tag, context),
     .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .context = context,
     .channel_flags = ST_HAS_TAG, .tag = tag)

SEND(sendmsg, fi_tsendmsg,
     (struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags),
     (fid, msg, flags),
     .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count), .data = msg->data,
     .channel_flags = ST_HAS_TAG, .tag = msg->tag, OFI_OF_MSG(flags))

SEND(inject, fi_tinject,
     (struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer, uint64_t tag),
     (fid, buf, len, peer, tag),
     .size_bytes = len, .peer = peer, .record_flags = ST_INLINE,
     .channel_flags = ST_HAS_TAG, .tag = tag)

SEND(senddata, fi_tsenddata,
     (struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t peer,
      uint64_t tag, void *context),
     (fid, buf, len, desc, data, peer, tag, context),
     .size_bytes = len, .peer = peer, .context = context,
     .channel_flags = ST_HAS_TAG | ST_HAS_DATA, .tag = tag, .data = data)

SEND(injectdata, fi_tinjectdata,
     (struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t peer,
      uint64_t tag),
     (fid, buf, len, data, peer, tag),
     .size_bytes = len, .peer = peer, .record_flags = ST_INLINE,
     .channel_flags = ST_HAS_TAG | ST_HAS_DATA, .tag = tag, .data = data)

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
