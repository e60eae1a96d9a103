/* Sends: tag, stream, active message. The old calls are the library's own thin covers of the
 * nbx calls; they are covered the same way here, so that one path records all. */
#include "ucx.h"

/* A send by its nbx call. `call_nbx` is what the library is asked once `param` is in place. */
#define UCX_SEND_BODY(name, operation, call_nbx)                                                   \
    struct ucx_op op = operation;                                                                  \
    op.call = UCX_CALL_##name;                                                                     \
    param = ucx_follow(&call, param);                                                              \
    ucs_status_ptr_t result = call.library->call_nbx;                                              \
    return ucx_sent_pointer(&call, &op, result)

#define UCX_SEND_NBX(name, operation, parameters, arguments)                                       \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER))                                        \
            return call.library->name arguments;                                                   \
        UCX_SEND_BODY(name, operation(ucx_datatype(param)), name arguments);                       \
    }

#define UCX_SEND_NB(name, operation, flags_, parameters, arguments, call_nbx)                      \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER))                                        \
            return call.library->name arguments;                                                   \
        const ucp_request_param_t given = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |            \
                                                           UCP_OP_ATTR_FIELD_CALLBACK |            \
                                                           UCP_OP_ATTR_FIELD_FLAGS,                \
                                           .flags = flags_,                                        \
                                           .cb.send = (ucp_send_nbx_callback_t)cb,                 \
                                           .datatype = datatype};                                  \
        const ucp_request_param_t *param = &given;                                                 \
        UCX_SEND_BODY(name, operation(datatype), call_nbx);                                        \
    }

static inline struct ucx_op send_op(uint8_t kind, uint64_t tag, uint8_t flags,
                                       const void *buffer, size_t count, ucp_datatype_t datatype)
{
    struct ucx_op op = {.op = ST_OP_SEND, .kind = kind, .tag = tag, .flags = flags};
    op.channel = kind == ST_KIND_STREAM ? 0 : ST_HAS_TAG;
    op.size = ucx_bytes(buffer, count, datatype, &op.flags);
    return op;
}

#define UCX_TAG_OP(datatype) send_op(ST_KIND_TAG, tag, 0, buffer, count, datatype)
#define UCX_SYNC_OP(datatype) send_op(ST_KIND_TAG, tag, ST_SYNC, buffer, count, datatype)
#define UCX_STREAM_OP(datatype) send_op(ST_KIND_STREAM, 0, 0, buffer, count, datatype)

UCX_SEND_NBX(ucp_tag_send_nbx, UCX_TAG_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
             const ucp_request_param_t *param),
            (ep, buffer, count, tag, param))

UCX_SEND_NBX(ucp_tag_send_sync_nbx, UCX_SYNC_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
             const ucp_request_param_t *param),
            (ep, buffer, count, tag, param))

UCX_SEND_NBX(ucp_stream_send_nbx, UCX_STREAM_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, const ucp_request_param_t *param),
            (ep, buffer, count, param))

UCX_SEND_NB(ucp_tag_send_nb, UCX_TAG_OP, 0,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag,
            ucp_send_callback_t cb),
           (ep, buffer, count, datatype, tag, cb),
           ucp_tag_send_nbx(ep, buffer, count, tag, param))

UCX_SEND_NB(ucp_tag_send_sync_nb, UCX_SYNC_OP, 0,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag,
            ucp_send_callback_t cb),
           (ep, buffer, count, datatype, tag, cb),
           ucp_tag_send_sync_nbx(ep, buffer, count, tag, param))

UCX_SEND_NB(ucp_stream_send_nb, UCX_STREAM_OP, flags,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_send_callback_t cb, unsigned flags),
           (ep, buffer, count, datatype, cb, flags),
           ucp_stream_send_nbx(ep, buffer, count, param))

/* The request lies in the application's memory; the result is a status. */
ST_API ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *buffer, size_t count,
                                     ucp_datatype_t datatype, ucp_tag_t tag, void *req)
{
    struct ucx_call call;
    if (!ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER))
        return call.library->ucp_tag_send_nbr(ep, buffer, count, datatype, tag, req);
    const ucp_request_param_t given = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                                                       UCP_OP_ATTR_FIELD_REQUEST |
                                                       UCP_OP_ATTR_FLAG_FAST_CMPL,
                                       .request = req,
                                       .datatype = datatype};
    struct ucx_op op = UCX_TAG_OP(datatype);
    op.call = UCX_CALL_ucp_tag_send_nbr;
    const ucp_request_param_t *param = ucx_follow(&call, &given);
    ucs_status_ptr_t result = call.library->ucp_tag_send_nbx(ep, buffer, count, tag, param);
    result = ucx_sent_pointer(&call, &op, result);
    return UCS_PTR_STATUS(result);
}

/* An active message counts its header: that is what the handler is given, too. */
static inline struct ucx_op am_op(unsigned id, size_t header, const void *buffer, size_t count,
                                     ucp_datatype_t datatype, unsigned flags)
{
    struct ucx_op op = send_op(ST_KIND_AM, id, 0, buffer, count, datatype);
    op.size += header;
    if (op.flags & ST_SIZE_UNKNOWN)
        op.size = 0;
    if (flags & UCP_AM_SEND_FLAG_REPLY)
        op.channel |= ST_REPLY;
    return op;
}

#define UCX_AM_NBX_OP(datatype)                                                                    \
    am_op(id, header_length, buffer, count, datatype,                                              \
          param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS ? param->flags : 0)
#define UCX_AM_NB_OP(datatype) am_op(id, 0, buffer, count, datatype, flags)

UCX_SEND_NBX(ucp_am_send_nbx, UCX_AM_NBX_OP,
            (ucp_ep_h ep, unsigned id, const void *header, size_t header_length,
             const void *buffer, size_t count, const ucp_request_param_t *param),
            (ep, id, header, header_length, buffer, count, param))

UCX_SEND_NB(ucp_am_send_nb, UCX_AM_NB_OP, flags,
           (ucp_ep_h ep, uint16_t id, const void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_send_callback_t cb, unsigned flags),
           (ep, id, buffer, count, datatype, cb, flags),
           ucp_am_send_nbx(ep, id, NULL, 0, buffer, count, param))
