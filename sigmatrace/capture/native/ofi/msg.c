/* Untagged messages. */
#include "wrap.h"

#define RECEIVE(member, name, parameters, arguments, ...)                                         \
    OFI_IN(msg, member, name, parameters, arguments, .kind = ST_KIND_MSG, __VA_ARGS__)
#define SEND(member, name, parameters, arguments, ...)                                            \
    OFI_OUT(msg, member, name, parameters, arguments, .op = ST_OP_SEND, .kind = ST_KIND_MSG,      \
            __VA_ARGS__)

RECEIVE(recv, fi_recv,
        (struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer, void *context),
        (fid, buf, len, desc, peer, context),
        .size_bytes = len, .peer = peer, .context = context)

RECEIVE(recvv, fi_recvv,
        (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
         void *context),
        (fid, iov, desc, count, peer, context),
        .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .context = context)

RECEIVE(recvmsg, fi_recvmsg,
        (struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags),
        (fid, msg, flags),
        .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count), OFI_OF_MSG(flags))

SEND(send, fi_send,
     (struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t peer, void *context),
     (fid, buf, len, desc, peer, context),
     .size_bytes = len, .peer = peer, .context = context)

SEND(sendv, fi_sendv,
     (struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer,
      void *context),
     (fid, iov, desc, count, peer, context),
     .size_bytes = ofi_iov_bytes(iov, count), .peer = peer, .context = context)

SEND(sendmsg, fi_sendmsg,
     (struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags),
     (fid, msg, flags),
     .size_bytes = ofi_iov_bytes(msg->msg_iov, msg->iov_count), .data = msg->data,
     OFI_OF_MSG(flags))

SEND(inject, fi_inject,
     (struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer),
     (fid, buf, len, peer),
     .size_bytes = len, .peer = peer, .record_flags = ST_INLINE)

SEND(senddata, fi_senddata,
     (struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t peer,
      void *context),
     (fid, buf, len, desc, data, peer, context),
     .size_bytes = len, .peer = peer, .context = context,
     .channel_flags = ST_HAS_DATA, .data = data)

SEND(injectdata, fi_injectdata,
     (struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t peer),
     (fid, buf, len, data, peer),
     .size_bytes = len, .peer = peer, .record_flags = ST_INLINE,
     .channel_flags = ST_HAS_DATA, .data = data)

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
