/* UCT: the operations, one wrapper for each entry of the interface's table. */
#include "uct.h"

struct uct_call {
    const uct_iface_ops_t *ops;
    struct ucx_slot *iface, *ep;
    uint64_t t_tsc;
    uint8_t depth, outer; /* nesting of this call, and where it returns to */
};

static inline void call_begin(struct uct_call *call, uct_ep_h ep, const void *caller)
{
    call->ep = ucx_uct_ep_slot(ep);
    call->iface = call->ep ? call->ep->parent : ucx_slot_find(ep->iface);
    call->ops = &((struct ucx_uct_iface *)call->iface->data)->ops;
    call->outer = st_nesting;
    st_nesting = ucx_uct_nesting(caller); /* what this call encloses is deeper than itself */
    call->depth = st_enter();
    call->t_tsc = ucx_now();
}

struct uct_op {
    uint64_t size, tag, raddr, rkey;
    uint8_t op, kind;
    enum ucx_function call;
};

static void call_end(struct uct_call *call, const struct uct_op *op, bool accepted, bool completed)
{
    st_nesting = call->outer;
    if (!accepted)
        return;
    struct st_channel_key key = {.object = call->iface->id,
                                 .kind = op->kind,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_UCT,
                                 .flags = op->kind == ST_KIND_AM ? ST_HAS_TAG : 0,
                                 .peer = call->ep ? call->ep->id : ST_UNKNOWN_PEER,
                                 .tag = op->tag};
    bool full = ucx_mode == ST_MODE_FULL;
    uint32_t channel, ordinal, span = full ? st_span(call->t_tsc, st_now()) : 0;
    if (!ucx_channel(&key, &channel, &ordinal))
        return;
    st_op(call->t_tsc, op->size, channel, ordinal, op->op, ucx_calls[op->call], call->depth,
          completed ? ST_INLINE : 0, span);
    if (full && op->raddr)
        st_target(op->raddr, op->rkey, 0, channel, ordinal);
}

static uint64_t iov_bytes(const uct_iov_t *iov, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += (uint64_t)iov[i].length * iov[i].count;
    return bytes;
}

/* The result is a status; an operation refused for want of resources did not take place. */
#define UCX_UCT_OP(name, parameters, arguments, ...)                                               \
    static ucs_status_t wrap_##name parameters                                                     \
    {                                                                                              \
        struct uct_call call;                                                                      \
        call_begin(&call, ep, UCX_CALLER);                                                         \
        ucs_status_t status = call.ops->name arguments;                                            \
        struct uct_op op = {.call = UCX_CALL_uct_##name, __VA_ARGS__};                             \
        call_end(&call, &op, !UCS_STATUS_IS_ERR(status), status == UCS_OK);                        \
        return status;                                                                             \
    }

/* The result is the packed length. */
#define UCX_UCT_BCOPY(name, parameters, arguments, ...)                                            \
    static ssize_t wrap_##name parameters                                                          \
    {                                                                                              \
        struct uct_call call;                                                                      \
        call_begin(&call, ep, UCX_CALLER);                                                         \
        ssize_t length = call.ops->name arguments;                                                 \
        struct uct_op op = {.call = UCX_CALL_uct_##name, .size = (uint64_t)length, __VA_ARGS__};   \
        call_end(&call, &op, length >= 0, true);                                                   \
        return length;                                                                             \
    }

#define UCX_SEND_AM .op = ST_OP_SEND, .kind = ST_KIND_AM, .tag = id
#define UCX_AT(code) .op = code, .kind = ST_KIND_RMA, .raddr = raddr, .rkey = rkey

/* A short message carries its 8-byte header to the handler. */
UCX_UCT_OP(ep_am_short,
          (uct_ep_h ep, uint8_t id, uint64_t header, const void *payload, unsigned length),
          (ep, id, header, payload, length), UCX_SEND_AM, .size = sizeof(header) + length)
UCX_UCT_OP(ep_am_short_iov, (uct_ep_h ep, uint8_t id, const uct_iov_t *iov, size_t count),
          (ep, id, iov, count), UCX_SEND_AM, .size = iov_bytes(iov, count))
UCX_UCT_BCOPY(ep_am_bcopy,
             (uct_ep_h ep, uint8_t id, uct_pack_callback_t pack, void *arg, unsigned flags),
             (ep, id, pack, arg, flags), UCX_SEND_AM)
UCX_UCT_OP(ep_am_zcopy,
          (uct_ep_h ep, uint8_t id, const void *header, unsigned header_length,
           const uct_iov_t *iov, size_t count, unsigned flags, uct_completion_t *comp),
          (ep, id, header, header_length, iov, count, flags, comp), UCX_SEND_AM,
          .size = header_length + iov_bytes(iov, count))

UCX_UCT_OP(ep_put_short,
          (uct_ep_h ep, const void *buffer, unsigned length, uint64_t raddr, uct_rkey_t rkey),
          (ep, buffer, length, raddr, rkey), UCX_AT(ST_OP_PUT), .size = length)
UCX_UCT_BCOPY(ep_put_bcopy,
             (uct_ep_h ep, uct_pack_callback_t pack, void *arg, uint64_t raddr, uct_rkey_t rkey),
             (ep, pack, arg, raddr, rkey), UCX_AT(ST_OP_PUT))
UCX_UCT_OP(ep_put_zcopy,
          (uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t raddr, uct_rkey_t rkey,
           uct_completion_t *comp),
          (ep, iov, count, raddr, rkey, comp), UCX_AT(ST_OP_PUT), .size = iov_bytes(iov, count))
UCX_UCT_OP(ep_get_short,
          (uct_ep_h ep, void *buffer, unsigned length, uint64_t raddr, uct_rkey_t rkey),
          (ep, buffer, length, raddr, rkey), UCX_AT(ST_OP_GET), .size = length)
UCX_UCT_OP(ep_get_bcopy,
          (uct_ep_h ep, uct_unpack_callback_t unpack, void *arg, size_t length, uint64_t raddr,
           uct_rkey_t rkey, uct_completion_t *comp),
          (ep, unpack, arg, length, raddr, rkey, comp), UCX_AT(ST_OP_GET), .size = length)
UCX_UCT_OP(ep_get_zcopy,
          (uct_ep_h ep, const uct_iov_t *iov, size_t count, uint64_t raddr, uct_rkey_t rkey,
           uct_completion_t *comp),
          (ep, iov, count, raddr, rkey, comp), UCX_AT(ST_OP_GET), .size = iov_bytes(iov, count))

#define UCX_UCT_ATOMICS(bits)                                                                      \
    UCX_UCT_OP(ep_atomic_cswap##bits,                                                              \
              (uct_ep_h ep, uint##bits##_t compare, uint##bits##_t swap, uint64_t raddr,           \
               uct_rkey_t rkey, uint##bits##_t *result, uct_completion_t *comp),                   \
              (ep, compare, swap, raddr, rkey, result, comp), UCX_AT(ST_OP_ATOMIC_FETCH),          \
              .size = bits / 8)                                                                    \
    UCX_UCT_OP(ep_atomic##bits##_post,                                                             \
              (uct_ep_h ep, unsigned opcode, uint##bits##_t value, uint64_t raddr,                 \
               uct_rkey_t rkey),                                                                   \
              (ep, opcode, value, raddr, rkey), UCX_AT(ST_OP_ATOMIC), .size = bits / 8)            \
    UCX_UCT_OP(ep_atomic##bits##_fetch,                                                            \
              (uct_ep_h ep, unsigned opcode, uint##bits##_t value, uint##bits##_t *result,         \
               uint64_t raddr, uct_rkey_t rkey, uct_completion_t *comp),                           \
              (ep, opcode, value, result, raddr, rkey, comp), UCX_AT(ST_OP_ATOMIC_FETCH),          \
              .size = bits / 8)

UCX_UCT_ATOMICS(32)
UCX_UCT_ATOMICS(64)

UCX_UCT_OP(ep_flush, (uct_ep_h ep, unsigned flags, uct_completion_t *comp), (ep, flags, comp),
          .op = ST_OP_FLUSH, .kind = ST_KIND_RMA)

void ucx_uct_wrap(uct_iface_ops_t *ops)
{
#define UCX_WRAP(name)                                                                             \
    if (ops->name)                                                                                 \
        ops->name = wrap_##name;
    UCX_UCT_WRAPPED(UCX_WRAP)
#undef UCX_WRAP
}
