/* Sends: tag, stream, active message. The old calls are the library's own thin covers of the
 * nbx calls; they are covered the same way here, so that one path records all. */
#include "ucx.h"

/* A send by its nbx call. `call_nbx` is what the library is asked once `param` is in place. */
#define ST_SEND_BODY(name, operation, call_nbx)                                                    \
    struct st_ucp_op op = operation;                                                               \
    op.call = ST_CALL_##name;                                                                      \
    param = st_ucp_follow(&call, param);                                                           \
    ucs_status_ptr_t result = call.library->call_nbx;                                              \
    return st_ucp_sent_pointer(&call, &op, result)

#define ST_SEND_NBX(name, operation, parameters, arguments)                                        \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct st_ucp_call call;                                                                   \
        if (!st_ucp_begin(&call, ep, ST_SLOT_EP, ST_CALLER))                                       \
            return call.library->name arguments;                                                   \
        ST_SEND_BODY(name, operation(st_ucp_datatype(param)), name arguments);                     \
    }

#define ST_SEND_NB(name, operation, flags_, parameters, arguments, call_nbx)                        \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct st_ucp_call call;                                                                   \
        if (!st_ucp_begin(&call, ep, ST_SLOT_EP, ST_CALLER))                                       \
            return call.library->name arguments;                                                   \
        const ucp_request_param_t given = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |            \
                                                           UCP_OP_ATTR_FIELD_CALLBACK |            \
                                                           UCP_OP_ATTR_FIELD_FLAGS,                \
                                           .flags = flags_,                                        \
                                           .cb.send = (ucp_send_nbx_callback_t)cb,                 \
                                           .datatype = datatype};                                  \
        const ucp_request_param_t *param = &given;                                                 \
        ST_SEND_BODY(name, operation(datatype), call_nbx);                                         \
    }

static inline struct st_ucp_op send_op(uint8_t kind, uint64_t tag, uint8_t flags,
                                       const void *buffer, size_t count, ucp_datatype_t datatype)
{
    struct st_ucp_op op = {.op = ST_OP_SEND, .kind = kind, .tag = tag, .flags = flags};
    op.channel = kind == ST_KIND_STREAM ? 0 : ST_HAS_TAG;
    op.size = st_ucp_bytes(buffer, count, datatype, &op.flags);
    return op;
}

#define ST_TAG_OP(datatype) send_op(ST_KIND_TAG, tag, 0, buffer, count, datatype)
#define ST_SYNC_OP(datatype) send_op(ST_KIND_TAG, tag, ST_SYNC, buffer, count, datatype)
#define ST_STREAM_OP(datatype) send_op(ST_KIND_STREAM, 0, 0, buffer, count, datatype)

ST_SEND_NBX(ucp_tag_send_nbx, ST_TAG_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
             const ucp_request_param_t *param),
            (ep, buffer, count, tag, param))

ST_SEND_NBX(ucp_tag_send_sync_nbx, ST_SYNC_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
             const ucp_request_param_t *param),
            (ep, buffer, count, tag, param))

ST_SEND_NBX(ucp_stream_send_nbx, ST_STREAM_OP,
            (ucp_ep_h ep, const void *buffer, size_t count, const ucp_request_param_t *param),
            (ep, buffer, count, param))

ST_SEND_NB(ucp_tag_send_nb, ST_TAG_OP, 0,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag,
            ucp_send_callback_t cb),
           (ep, buffer, count, datatype, tag, cb),
           ucp_tag_send_nbx(ep, buffer, count, tag, param))

ST_SEND_NB(ucp_tag_send_sync_nb, ST_SYNC_OP, 0,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag,
            ucp_send_callback_t cb),
           (ep, buffer, count, datatype, tag, cb),
           ucp_tag_send_sync_nbx(ep, buffer, count, tag, param))

ST_SEND_NB(ucp_stream_send_nb, ST_STREAM_OP, flags,
           (ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_send_callback_t cb, unsigned flags),
           (ep, buffer, count, datatype, cb, flags),
           ucp_stream_send_nbx(ep, buffer, count, param))

/* The request lies in the application's memory; the result is a status. */
ST_API ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *buffer, size_t count,
                                     ucp_datatype_t datatype, ucp_tag_t tag, void *req)
{
    struct st_ucp_call call;
    if (!st_ucp_begin(&call, ep, ST_SLOT_EP, ST_CALLER))
        return call.library->ucp_tag_send_nbr(ep, buffer, count, datatype, tag, req);
    const ucp_request_param_t given = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                                                       UCP_OP_ATTR_FIELD_REQUEST |
                                                       UCP_OP_ATTR_FLAG_FAST_CMPL,
                                       .request = req,
                                       .datatype = datatype};
    struct st_ucp_op op = ST_TAG_OP(datatype);
    op.call = ST_CALL_ucp_tag_send_nbr;
    const ucp_request_param_t *param = st_ucp_follow(&call, &given);
    ucs_status_ptr_t result = call.library->ucp_tag_send_nbx(ep, buffer, count, tag, param);
    result = st_ucp_sent_pointer(&call, &op, result);
    return UCS_PTR_STATUS(result);
}

/* An active message counts its header: that is what the handler is given, too. */
static inline struct st_ucp_op am_op(unsigned id, size_t header, const void *buffer, size_t count,
                                     ucp_datatype_t datatype, unsigned flags)
{
    struct st_ucp_op op = send_op(ST_KIND_AM, id, 0, buffer, count, datatype);
    op.size += header;
    if (op.flags & ST_SIZE_UNKNOWN)
        op.size = 0;
    if (flags & UCP_AM_SEND_FLAG_REPLY)
        op.channel |= ST_REPLY;
    return op;
}

#define ST_AM_NBX_OP(datatype)                                                                     \
    am_op(id, header_length, buffer, count, datatype,                                              \
          param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS ? param->flags : 0)
#define ST_AM_NB_OP(datatype) am_op(id, 0, buffer, count, datatype, flags)

ST_SEND_NBX(ucp_am_send_nbx, ST_AM_NBX_OP,
            (ucp_ep_h ep, unsigned id, const void *header, size_t header_length,
             const void *buffer, size_t count, const ucp_request_param_t *param),
            (ep, id, header, header_length, buffer, count, param))

ST_SEND_NB(ucp_am_send_nb, ST_AM_NB_OP, flags,
           (ucp_ep_h ep, uint16_t id, const void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_send_callback_t cb, unsigned flags),
           (ep, id, buffer, count, datatype, cb, flags),
           ucp_am_send_nbx(ep, id, NULL, 0, buffer, count, param))
