/* One-sided operations: put, get, atomics, flush. */
#include "ucx.h"

static inline struct st_ucp_op rma_op(uint8_t code, uint64_t size, uint64_t raddr,
                                      const void *rkey, enum st_ucx_call call)
{
    return (struct st_ucp_op){.op = code,
                              .kind = ST_KIND_RMA,
                              .size = size,
                              .raddr = raddr,
                              .rkey = rkey,
                              .call = call};
}

#define ST_UNPAREN(...) __VA_ARGS__

/* By nbx call: `param` is the application's. */
#define ST_RMA_NBX(name, handle, type, make_op, parameters, arguments)                             \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct st_ucp_call call;                                                                   \
        if (!st_ucp_begin(&call, handle, type, ST_CALLER))                                         \
            return call.library->name arguments;                                                   \
        struct st_ucp_op op = make_op(ST_CALL_##name);                                             \
        param = st_ucp_follow(&call, param);                                                       \
        return st_ucp_sent_pointer(&call, &op, call.library->name arguments);                      \
    }

/* By old call, which becomes the nbx call with the parameters that the library itself would
 * use. */
#define ST_RMA_NB(name, handle, type, make_op, parameters, arguments, call_nbx, fields)            \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct st_ucp_call call;                                                                   \
        if (!st_ucp_begin(&call, handle, type, ST_CALLER))                                         \
            return call.library->name arguments;                                                   \
        const ucp_request_param_t given = {.cb.send = (ucp_send_nbx_callback_t)cb,                 \
                                           ST_UNPAREN fields};                                     \
        struct st_ucp_op op = make_op(ST_CALL_##name);                                             \
        const ucp_request_param_t *param = st_ucp_follow(&call, &given);                           \
        return st_ucp_sent_pointer(&call, &op, call.library->call_nbx);                            \
    }

/* Blocking, or implicitly completed by a flush: the result is a status. */
#define ST_RMA_STATUS(name, handle, type, make_op, parameters, arguments)                          \
    ST_API ucs_status_t name parameters                                                            \
    {                                                                                              \
        struct st_ucp_call call;                                                                   \
        if (!st_ucp_begin(&call, handle, type, ST_CALLER))                                         \
            return call.library->name arguments;                                                   \
        struct st_ucp_op op = make_op(ST_CALL_##name);                                             \
        st_slot_use(call.slot, ST_USE_SEND);                                                       \
        return st_ucp_sent_status(&call, &op, call.library->name arguments);                       \
    }

/* --- put and get -------------------------------------------------------------------------------------- */

static inline struct st_ucp_op typed_op(uint8_t code, const void *buffer, size_t count,
                                        const ucp_request_param_t *param, uint64_t raddr,
                                        const void *rkey, enum st_ucx_call call)
{
    struct st_ucp_op op = rma_op(code, 0, raddr, rkey, call);
    op.size = st_ucp_bytes(buffer, count, st_ucp_datatype(param), &op.flags);
    return op;
}
#define ST_PUT_NBX(call) typed_op(ST_OP_PUT, buffer, count, param, raddr, rkey, call)
#define ST_GET_NBX(call) typed_op(ST_OP_GET, buffer, count, param, raddr, rkey, call)
#define ST_PUT(call) rma_op(ST_OP_PUT, length, raddr, rkey, call)
#define ST_GET(call) rma_op(ST_OP_GET, length, raddr, rkey, call)

ST_RMA_NBX(ucp_put_nbx, ep, ST_SLOT_EP, ST_PUT_NBX,
           (ucp_ep_h ep, const void *buffer, size_t count, uint64_t raddr, ucp_rkey_h rkey,
            const ucp_request_param_t *param),
           (ep, buffer, count, raddr, rkey, param))

ST_RMA_NBX(ucp_get_nbx, ep, ST_SLOT_EP, ST_GET_NBX,
           (ucp_ep_h ep, void *buffer, size_t count, uint64_t raddr, ucp_rkey_h rkey,
            const ucp_request_param_t *param),
           (ep, buffer, count, raddr, rkey, param))

ST_RMA_NB(ucp_put_nb, ep, ST_SLOT_EP, ST_PUT,
          (ucp_ep_h ep, const void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey,
           ucp_send_callback_t cb),
          (ep, buffer, length, raddr, rkey, cb),
          ucp_put_nbx(ep, buffer, length, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))

ST_RMA_NB(ucp_get_nb, ep, ST_SLOT_EP, ST_GET,
          (ucp_ep_h ep, void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey,
           ucp_send_callback_t cb),
          (ep, buffer, length, raddr, rkey, cb),
          ucp_get_nbx(ep, buffer, length, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))

#define ST_PUT_PARAMETERS                                                                          \
    (ucp_ep_h ep, const void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey)
#define ST_GET_PARAMETERS                                                                          \
    (ucp_ep_h ep, void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey)
#define ST_RMA_ARGUMENTS (ep, buffer, length, raddr, rkey)

ST_RMA_STATUS(ucp_put_nbi, ep, ST_SLOT_EP, ST_PUT, ST_PUT_PARAMETERS, ST_RMA_ARGUMENTS)
ST_RMA_STATUS(ucp_put, ep, ST_SLOT_EP, ST_PUT, ST_PUT_PARAMETERS, ST_RMA_ARGUMENTS)
ST_RMA_STATUS(ucp_get_nbi, ep, ST_SLOT_EP, ST_GET, ST_GET_PARAMETERS, ST_RMA_ARGUMENTS)
ST_RMA_STATUS(ucp_get, ep, ST_SLOT_EP, ST_GET, ST_GET_PARAMETERS, ST_RMA_ARGUMENTS)

/* --- atomics ------------------------------------------------------------------------------------------- */

#define ST_ATOMIC_NBX(call)                                                                        \
    typed_op(param->op_attr_mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER ? ST_OP_ATOMIC_FETCH             \
                                                                 : ST_OP_ATOMIC,                   \
             buffer, count, param, raddr, rkey, call)
#define ST_POST(call) rma_op(ST_OP_ATOMIC, op_size, raddr, rkey, call)
#define ST_FETCH(call) rma_op(ST_OP_ATOMIC_FETCH, op_size, raddr, rkey, call)

ST_RMA_NBX(ucp_atomic_op_nbx, ep, ST_SLOT_EP, ST_ATOMIC_NBX,
           (ucp_ep_h ep, ucp_atomic_op_t opcode, const void *buffer, size_t count, uint64_t raddr,
            ucp_rkey_h rkey, const ucp_request_param_t *param),
           (ep, opcode, buffer, count, raddr, rkey, param))

ST_RMA_STATUS(ucp_atomic_post, ep, ST_SLOT_EP, ST_POST,
              (ucp_ep_h ep, ucp_atomic_post_op_t opcode, uint64_t value, size_t op_size,
               uint64_t raddr, ucp_rkey_h rkey),
              (ep, opcode, value, op_size, raddr, rkey))

/* The old operation codes of fetching atomics equal the new ones. */
ST_RMA_NB(ucp_atomic_fetch_nb, ep, ST_SLOT_EP, ST_FETCH,
          (ucp_ep_h ep, ucp_atomic_fetch_op_t opcode, uint64_t value, void *result,
           size_t op_size, uint64_t raddr, ucp_rkey_h rkey, ucp_send_callback_t cb),
          (ep, opcode, value, result, op_size, raddr, rkey, cb),
          ucp_atomic_op_nbx(ep, (ucp_atomic_op_t)opcode, &value, 1, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_DATATYPE |
                           UCP_OP_ATTR_FIELD_REPLY_BUFFER,
           .datatype = ucp_dt_make_contig(op_size), .reply_buffer = result))

#define ST_POST32(call) rma_op(ST_OP_ATOMIC, 4, raddr, rkey, call)
#define ST_POST64(call) rma_op(ST_OP_ATOMIC, 8, raddr, rkey, call)
#define ST_FETCH32(call) rma_op(ST_OP_ATOMIC_FETCH, 4, raddr, rkey, call)
#define ST_FETCH64(call) rma_op(ST_OP_ATOMIC_FETCH, 8, raddr, rkey, call)

#define ST_ATOMICS(bits)                                                                           \
    ST_RMA_STATUS(ucp_atomic_add##bits, ep, ST_SLOT_EP, ST_POST##bits,                             \
                  (ucp_ep_h ep, uint##bits##_t add, uint64_t raddr, ucp_rkey_h rkey),              \
                  (ep, add, raddr, rkey))                                                          \
    ST_RMA_STATUS(ucp_atomic_fadd##bits, ep, ST_SLOT_EP, ST_FETCH##bits,                           \
                  (ucp_ep_h ep, uint##bits##_t add, uint64_t raddr, ucp_rkey_h rkey,               \
                   uint##bits##_t *result),                                                        \
                  (ep, add, raddr, rkey, result))                                                  \
    ST_RMA_STATUS(ucp_atomic_swap##bits, ep, ST_SLOT_EP, ST_FETCH##bits,                           \
                  (ucp_ep_h ep, uint##bits##_t swap, uint64_t raddr, ucp_rkey_h rkey,              \
                   uint##bits##_t *result),                                                        \
                  (ep, swap, raddr, rkey, result))                                                 \
    ST_RMA_STATUS(ucp_atomic_cswap##bits, ep, ST_SLOT_EP, ST_FETCH##bits,                          \
                  (ucp_ep_h ep, uint##bits##_t compare, uint##bits##_t swap, uint64_t raddr,       \
                   ucp_rkey_h rkey, uint##bits##_t *result),                                       \
                  (ep, compare, swap, raddr, rkey, result))

ST_ATOMICS(32)
ST_ATOMICS(64)

/* --- flush ----------------------------------------------------------------------------------------------- */

#define ST_FLUSH(call) rma_op(ST_OP_FLUSH, 0, 0, NULL, call)

ST_RMA_NBX(ucp_ep_flush_nbx, ep, ST_SLOT_EP, ST_FLUSH,
           (ucp_ep_h ep, const ucp_request_param_t *param), (ep, param))
ST_RMA_NBX(ucp_worker_flush_nbx, worker, ST_SLOT_WORKER, ST_FLUSH,
           (ucp_worker_h worker, const ucp_request_param_t *param), (worker, param))
ST_RMA_NB(ucp_ep_flush_nb, ep, ST_SLOT_EP, ST_FLUSH,
          (ucp_ep_h ep, unsigned flags, ucp_send_callback_t cb), (ep, flags, cb),
          ucp_ep_flush_nbx(ep, param), (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))
ST_RMA_NB(ucp_worker_flush_nb, worker, ST_SLOT_WORKER, ST_FLUSH,
          (ucp_worker_h worker, unsigned flags, ucp_send_callback_t cb), (worker, flags, cb),
          ucp_worker_flush_nbx(worker, param), (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))
ST_RMA_STATUS(ucp_ep_flush, ep, ST_SLOT_EP, ST_FLUSH, (ucp_ep_h ep), (ep))
ST_RMA_STATUS(ucp_worker_flush, worker, ST_SLOT_WORKER, ST_FLUSH, (ucp_worker_h worker), (worker))
