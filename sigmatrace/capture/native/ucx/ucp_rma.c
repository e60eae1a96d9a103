/* One-sided operations: put, get, atomics, flush. */
#include "ucx.h"

static inline struct ucx_op rma_op(uint8_t code, uint64_t size, uint64_t raddr,
                                      const void *rkey, enum ucx_function call)
{
    return (struct ucx_op){.op = code,
                              .kind = ST_KIND_RMA,
                              .size = size,
                              .raddr = raddr,
                              .rkey = rkey,
                              .call = call};
}

#define UCX_UNPAREN(...) __VA_ARGS__

/* By nbx call: `param` is the application's. */
#define UCX_RMA_NBX(name, handle, type, make_op, parameters, arguments)                            \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, handle, type, UCX_CALLER))                                           \
            return call.library->name arguments;                                                   \
        struct ucx_op op = make_op(UCX_CALL_##name);                                               \
        param = ucx_follow(&call, param);                                                          \
        return ucx_sent_pointer(&call, &op, call.library->name arguments);                         \
    }

/* By old call, which becomes the nbx call with the parameters that the library itself would
 * use. */
#define UCX_RMA_NB(name, handle, type, make_op, parameters, arguments, call_nbx, fields)           \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, handle, type, UCX_CALLER))                                           \
            return call.library->name arguments;                                                   \
        const ucp_request_param_t given = {.cb.send = (ucp_send_nbx_callback_t)cb,                 \
                                           UCX_UNPAREN fields};                                    \
        struct ucx_op op = make_op(UCX_CALL_##name);                                               \
        const ucp_request_param_t *param = ucx_follow(&call, &given);                              \
        return ucx_sent_pointer(&call, &op, call.library->call_nbx);                               \
    }

/* Blocking, or implicitly completed by a flush: the result is a status. */
#define UCX_RMA_STATUS(name, handle, type, make_op, parameters, arguments)                         \
    ST_API ucs_status_t name parameters                                                            \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, handle, type, UCX_CALLER))                                           \
            return call.library->name arguments;                                                   \
        struct ucx_op op = make_op(UCX_CALL_##name);                                               \
        ucx_slot_use(call.slot, UCX_USE_SEND);                                                     \
        return ucx_sent_status(&call, &op, call.library->name arguments);                          \
    }

/* --- put and get -------------------------------------------------------------------------------------- */

static inline struct ucx_op typed_op(uint8_t code, const void *buffer, size_t count,
                                        const ucp_request_param_t *param, uint64_t raddr,
                                        const void *rkey, enum ucx_function call)
{
    struct ucx_op op = rma_op(code, 0, raddr, rkey, call);
    op.size = ucx_bytes(buffer, count, ucx_datatype(param), &op.flags);
    return op;
}
#define UCX_PUT_NBX(call) typed_op(ST_OP_PUT, buffer, count, param, raddr, rkey, call)
#define UCX_GET_NBX(call) typed_op(ST_OP_GET, buffer, count, param, raddr, rkey, call)
#define UCX_PUT(call) rma_op(ST_OP_PUT, length, raddr, rkey, call)
#define UCX_GET(call) rma_op(ST_OP_GET, length, raddr, rkey, call)

UCX_RMA_NBX(ucp_put_nbx, ep, UCX_SLOT_EP, UCX_PUT_NBX,
           (ucp_ep_h ep, const void *buffer, size_t count, uint64_t raddr, ucp_rkey_h rkey,
            const ucp_request_param_t *param),
           (ep, buffer, count, raddr, rkey, param))

UCX_RMA_NBX(ucp_get_nbx, ep, UCX_SLOT_EP, UCX_GET_NBX,
           (ucp_ep_h ep, void *buffer, size_t count, uint64_t raddr, ucp_rkey_h rkey,
            const ucp_request_param_t *param),
           (ep, buffer, count, raddr, rkey, param))

UCX_RMA_NB(ucp_put_nb, ep, UCX_SLOT_EP, UCX_PUT,
          (ucp_ep_h ep, const void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey,
           ucp_send_callback_t cb),
          (ep, buffer, length, raddr, rkey, cb),
          ucp_put_nbx(ep, buffer, length, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))

UCX_RMA_NB(ucp_get_nb, ep, UCX_SLOT_EP, UCX_GET,
          (ucp_ep_h ep, void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey,
           ucp_send_callback_t cb),
          (ep, buffer, length, raddr, rkey, cb),
          ucp_get_nbx(ep, buffer, length, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))

#define UCX_PUT_PARAMETERS                                                                         \
    (ucp_ep_h ep, const void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey)
#define UCX_GET_PARAMETERS                                                                         \
    (ucp_ep_h ep, void *buffer, size_t length, uint64_t raddr, ucp_rkey_h rkey)
#define UCX_RMA_ARGUMENTS (ep, buffer, length, raddr, rkey)

UCX_RMA_STATUS(ucp_put_nbi, ep, UCX_SLOT_EP, UCX_PUT, UCX_PUT_PARAMETERS, UCX_RMA_ARGUMENTS)
UCX_RMA_STATUS(ucp_put, ep, UCX_SLOT_EP, UCX_PUT, UCX_PUT_PARAMETERS, UCX_RMA_ARGUMENTS)
UCX_RMA_STATUS(ucp_get_nbi, ep, UCX_SLOT_EP, UCX_GET, UCX_GET_PARAMETERS, UCX_RMA_ARGUMENTS)
UCX_RMA_STATUS(ucp_get, ep, UCX_SLOT_EP, UCX_GET, UCX_GET_PARAMETERS, UCX_RMA_ARGUMENTS)

/* --- atomics ------------------------------------------------------------------------------------------- */

#define UCX_ATOMIC_NBX(call)                                                                       \
    typed_op(param->op_attr_mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER ? ST_OP_ATOMIC_FETCH             \
                                                                 : ST_OP_ATOMIC,                   \
             buffer, count, param, raddr, rkey, call)
#define UCX_POST(call) rma_op(ST_OP_ATOMIC, op_size, raddr, rkey, call)
#define UCX_FETCH(call) rma_op(ST_OP_ATOMIC_FETCH, op_size, raddr, rkey, call)

UCX_RMA_NBX(ucp_atomic_op_nbx, ep, UCX_SLOT_EP, UCX_ATOMIC_NBX,
           (ucp_ep_h ep, ucp_atomic_op_t opcode, const void *buffer, size_t count, uint64_t raddr,
            ucp_rkey_h rkey, const ucp_request_param_t *param),
           (ep, opcode, buffer, count, raddr, rkey, param))

UCX_RMA_STATUS(ucp_atomic_post, ep, UCX_SLOT_EP, UCX_POST,
              (ucp_ep_h ep, ucp_atomic_post_op_t opcode, uint64_t value, size_t op_size,
               uint64_t raddr, ucp_rkey_h rkey),
              (ep, opcode, value, op_size, raddr, rkey))

/* The old operation codes of fetching atomics equal the new ones. */
UCX_RMA_NB(ucp_atomic_fetch_nb, ep, UCX_SLOT_EP, UCX_FETCH,
          (ucp_ep_h ep, ucp_atomic_fetch_op_t opcode, uint64_t value, void *result,
           size_t op_size, uint64_t raddr, ucp_rkey_h rkey, ucp_send_callback_t cb),
          (ep, opcode, value, result, op_size, raddr, rkey, cb),
          ucp_atomic_op_nbx(ep, (ucp_atomic_op_t)opcode, &value, 1, raddr, rkey, param),
          (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_DATATYPE |
                           UCP_OP_ATTR_FIELD_REPLY_BUFFER,
           .datatype = ucp_dt_make_contig(op_size), .reply_buffer = result))

#define UCX_POST32(call) rma_op(ST_OP_ATOMIC, 4, raddr, rkey, call)
#define UCX_POST64(call) rma_op(ST_OP_ATOMIC, 8, raddr, rkey, call)
#define UCX_FETCH32(call) rma_op(ST_OP_ATOMIC_FETCH, 4, raddr, rkey, call)
#define UCX_FETCH64(call) rma_op(ST_OP_ATOMIC_FETCH, 8, raddr, rkey, call)

#define UCX_ATOMICS(bits)                                                                          \
    UCX_RMA_STATUS(ucp_atomic_add##bits, ep, UCX_SLOT_EP, UCX_POST##bits,                          \
                  (ucp_ep_h ep, uint##bits##_t add, uint64_t raddr, ucp_rkey_h rkey),              \
                  (ep, add, raddr, rkey))                                                          \
    UCX_RMA_STATUS(ucp_atomic_fadd##bits, ep, UCX_SLOT_EP, UCX_FETCH##bits,                        \
                  (ucp_ep_h ep, uint##bits##_t add, uint64_t raddr, ucp_rkey_h rkey,               \
                   uint##bits##_t *result),                                                        \
                  (ep, add, raddr, rkey, result))                                                  \
    UCX_RMA_STATUS(ucp_atomic_swap##bits, ep, UCX_SLOT_EP, UCX_FETCH##bits,                        \
                  (ucp_ep_h ep, uint##bits##_t swap, uint64_t raddr, ucp_rkey_h rkey,              \
                   uint##bits##_t *result),                                                        \
                  (ep, swap, raddr, rkey, result))                                                 \
    UCX_RMA_STATUS(ucp_atomic_cswap##bits, ep, UCX_SLOT_EP, UCX_FETCH##bits,                       \
                  (ucp_ep_h ep, uint##bits##_t compare, uint##bits##_t swap, uint64_t raddr,       \
                   ucp_rkey_h rkey, uint##bits##_t *result),                                       \
                  (ep, compare, swap, raddr, rkey, result))

UCX_ATOMICS(32)
UCX_ATOMICS(64)

/* --- flush ----------------------------------------------------------------------------------------------- */

#define UCX_FLUSH(call) rma_op(ST_OP_FLUSH, 0, 0, NULL, call)

UCX_RMA_NBX(ucp_ep_flush_nbx, ep, UCX_SLOT_EP, UCX_FLUSH,
           (ucp_ep_h ep, const ucp_request_param_t *param), (ep, param))
UCX_RMA_NBX(ucp_worker_flush_nbx, worker, UCX_SLOT_WORKER, UCX_FLUSH,
           (ucp_worker_h worker, const ucp_request_param_t *param), (worker, param))
UCX_RMA_NB(ucp_ep_flush_nb, ep, UCX_SLOT_EP, UCX_FLUSH,
          (ucp_ep_h ep, unsigned flags, ucp_send_callback_t cb), (ep, flags, cb),
          ucp_ep_flush_nbx(ep, param), (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))
UCX_RMA_NB(ucp_worker_flush_nb, worker, UCX_SLOT_WORKER, UCX_FLUSH,
          (ucp_worker_h worker, unsigned flags, ucp_send_callback_t cb), (worker, flags, cb),
          ucp_worker_flush_nbx(worker, param), (.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK))
UCX_RMA_STATUS(ucp_ep_flush, ep, UCX_SLOT_EP, UCX_FLUSH, (ucp_ep_h ep), (ep))
UCX_RMA_STATUS(ucp_worker_flush, worker, UCX_SLOT_WORKER, UCX_FLUSH, (ucp_worker_h worker),
               (worker))
