/* Receives: tag and stream.
 *
 * A receive is recorded when it completes, with the tag and length of the message that came.
 * The library tells them to a callback only, so every receive is given one. Receives that
 * complete inside the call have none: before UCX 1.16 nothing tells what came then. So the
 * library is asked not to complete at once (it then calls the callback inside the call), and
 * the application is told what it would have been told: the status, no request, no callback. */
#include "ucx.h"

static uint32_t next_order(struct ucx_slot *slot)
{
    ucx_slot_use(slot, UCX_USE_POST);
    if (slot->shared)
        return __atomic_fetch_add(&slot->posted, 1, __ATOMIC_RELAXED);
    return slot->posted++;
}

/* Who posted decides, not who sees it complete: `order` restores the order of posting. */
static void record_arrival(const struct ucx_slot *slot, const struct st_channel_key *key,
                           enum ucx_function call, uint64_t size, uint8_t flags, uint32_t order)
{
    uint64_t t_tsc = ucx_now();
    uint32_t channel, ordinal;
    if (!ucx_channel(key, &channel, &ordinal))
        return;
    flags |= ucx_slot_order(slot, UCX_USE_POST);
    uint8_t depth = ucx_enter();
    ucx_leave();
    st_op(t_tsc, size, channel, ordinal, ST_OP_RECV, ucx_calls[call], depth, flags, order);
}

/* --- tag ---------------------------------------------------------------------------------------------- */

static void on_received(void *handle, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user_data)
{
    struct ucx_request *request = user_data;
    ucp_tag_recv_nbx_callback_t callback = request->muted ? NULL : request->callback.recv;
    void *data = request->user_data;
    bool inside = ucx_thread.posting == request;
    if (status != UCS_ERR_CANCELED) {
        struct st_channel_key key = request->key;
        key.tag = info->sender_tag;
        uint8_t flags = (inside ? ST_INLINE : 0) | (status == UCS_OK ? 0 : ST_FAILED);
        record_arrival(request->slot, &key, request->call, info->length, flags, request->order);
    }
    if (inside && request->hold) {
        request->held = true;
        callback = NULL;
    }
    request->status = status;
    request->info = *info;
    if (ucx_request_swap(request, UCX_REQUEST_DONE) == UCX_REQUEST_POSTED)
        ucx_request_free(request);
    if (callback)
        callback(handle, status, info, data);
}

static const ucp_request_param_t *receive_begin(struct ucx_call *call, enum ucx_function code,
                                                const ucp_request_param_t *param, uint32_t order)
{
    struct ucx_slot *worker = call->slot;
    struct ucx_request *request = ucx_request_new(param, worker->shared);
    call->request = request;
    call->outer = ucx_thread.posting;
    ucx_thread.posting = request;
    if (!request)
        return param;
    request->key = (struct st_channel_key){.object = worker->id,
                                           .kind = ST_KIND_TAG,
                                           .dir = ST_IN,
                                           .layer = ST_LAYER_UCP,
                                           .flags = ST_HAS_TAG,
                                           .peer = ST_UNKNOWN_PEER,
                                           .shared = worker->shared};
    request->slot = worker;
    request->call = code;
    request->order = order;
    request->hold = !(param->op_attr_mask & UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
    request->param.base.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    request->param.base.cb.recv = on_received;
    return &request->param.base;
}

static ucs_status_ptr_t receive_end(struct ucx_call *call, const ucp_request_param_t *param,
                                    ucs_status_ptr_t result)
{
    struct ucx_request *request = call->request;
    ucx_thread.posting = call->outer;
    ucx_end(call);
    if (!request)
        return result;
    if (!UCS_PTR_IS_PTR(result)) {
        ucx_request_free(request);
        return result;
    }
    __atomic_store_n(&request->request, result, __ATOMIC_RELAXED);
    if (ucx_request_swap(request, UCX_REQUEST_POSTED) != UCX_REQUEST_DONE) {
        ucx_thread.last = request;
        return result;
    }
    if (request->held) {
        uint32_t mask = param->op_attr_mask;
        if ((mask & UCP_OP_ATTR_FIELD_RECV_INFO) && request->status == UCS_OK)
            *param->recv_info.tag_info = request->info;
        if (!(mask & UCP_OP_ATTR_FIELD_REQUEST))
            call->library->ucp_request_free(result);
        result = UCS_STATUS_PTR(request->status);
    }
    ucx_request_free(request);
    return result;
}

/* `order` is evaluated once the call is known to be recorded; `param` is what the library is
 * given, `given` what the application gave. */
#define UCX_RECV_BODY(name, order, call_nbx)                                                       \
    const ucp_request_param_t *param = receive_begin(&call, UCX_CALL_##name, given, order);        \
    ucs_status_ptr_t result = receive_end(&call, given, call.library->call_nbx)

#define UCX_RECV_NBX(name, order, parameters, arguments, call_nbx)                                 \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER))                                \
            return call.library->name arguments;                                                   \
        UCX_RECV_BODY(name, order, call_nbx);                                                      \
        return result;                                                                             \
    }

/* Old call: the parameters are those that the library itself would use. */
#define UCX_RECV_NB(name, order, parameters, arguments, call_nbx)                                  \
    ST_API ucs_status_ptr_t name parameters                                                        \
    {                                                                                              \
        struct ucx_call call;                                                                      \
        if (!ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER))                                \
            return call.library->name arguments;                                                   \
        const ucp_request_param_t old = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |              \
                                                         UCP_OP_ATTR_FIELD_CALLBACK |              \
                                                         UCP_OP_ATTR_FLAG_NO_IMM_CMPL,             \
                                         .cb.recv = (ucp_tag_recv_nbx_callback_t)cb,               \
                                         .datatype = datatype},                                    \
                                  *given = &old;                                                   \
        UCX_RECV_BODY(name, order, call_nbx);                                                      \
        return result;                                                                             \
    }

/* A probed message was matched when the probe removed it. */
static uint32_t message_order(struct ucx_slot *worker, ucp_tag_message_h message)
{
    struct st_pending pending;
    return st_pending_take(message, &pending) ? pending.order : next_order(worker);
}

UCX_RECV_NBX(ucp_tag_recv_nbx, next_order(call.slot),
            (ucp_worker_h worker, void *buffer, size_t count, ucp_tag_t tag, ucp_tag_t tag_mask,
             const ucp_request_param_t *given),
            (worker, buffer, count, tag, tag_mask, given),
            ucp_tag_recv_nbx(worker, buffer, count, tag, tag_mask, param))

UCX_RECV_NBX(ucp_tag_msg_recv_nbx, message_order(call.slot, message),
            (ucp_worker_h worker, void *buffer, size_t count, ucp_tag_message_h message,
             const ucp_request_param_t *given),
            (worker, buffer, count, message, given),
            ucp_tag_msg_recv_nbx(worker, buffer, count, message, param))

UCX_RECV_NB(ucp_tag_recv_nb, next_order(call.slot),
           (ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_tag_t tag, ucp_tag_t tag_mask, ucp_tag_recv_callback_t cb),
           (worker, buffer, count, datatype, tag, tag_mask, cb),
           ucp_tag_recv_nbx(worker, buffer, count, tag, tag_mask, param))

UCX_RECV_NB(ucp_tag_msg_recv_nb, message_order(call.slot, message),
           (ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype,
            ucp_tag_message_h message, ucp_tag_recv_callback_t cb),
           (worker, buffer, count, datatype, message, cb),
           ucp_tag_msg_recv_nbx(worker, buffer, count, message, param))

/* The application polls the request, which lies in its own memory; a callback does no harm. */
ST_API ucs_status_t ucp_tag_recv_nbr(ucp_worker_h worker, void *buffer, size_t count,
                                     ucp_datatype_t datatype, ucp_tag_t tag, ucp_tag_t tag_mask,
                                     void *req)
{
    struct ucx_call call;
    if (!ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER))
        return call.library->ucp_tag_recv_nbr(worker, buffer, count, datatype, tag, tag_mask, req);
    const ucp_request_param_t old = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                                                     UCP_OP_ATTR_FIELD_REQUEST |
                                                     UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                     .request = req,
                                     .datatype = datatype},
                              *given = &old;
    UCX_RECV_BODY(ucp_tag_recv_nbr, next_order(call.slot),
                 ucp_tag_recv_nbx(worker, buffer, count, tag, tag_mask, param));
    return UCS_PTR_IS_ERR(result) ? UCS_PTR_STATUS(result) : UCS_OK;
}

ST_API ucp_tag_message_h ucp_tag_probe_nb(ucp_worker_h worker, ucp_tag_t tag, ucp_tag_t tag_mask,
                                          int removed, ucp_tag_recv_info_t *info)
{
    struct ucx_call call;
    if (!st_recording() || !ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER))
        return ucx_library(UCX_CALLER)->ucp_tag_probe_nb(worker, tag, tag_mask, removed, info);
    ucx_slot_use(call.slot, UCX_USE_SEND);
    if (removed)
        ucx_slot_use(call.slot, UCX_USE_POST);
    ucp_tag_message_h message =
        call.library->ucp_tag_probe_nb(worker, tag, tag_mask, removed, info);
    if (message && removed) {
        struct st_pending pending = {.order = next_order(call.slot)};
        st_pending_put(message, &pending);
    }
    if (message && ucx_mode == ST_MODE_FULL) {
        struct ucx_op op = {.op = ST_OP_PROBE,
                               .kind = ST_KIND_MSG,
                               .size = info->length,
                               .call = UCX_CALL_ucp_tag_probe_nb};
        ucx_sent(&call, &op, true);
    }
    ucx_end(&call);
    return message;
}

/* --- stream ------------------------------------------------------------------------------------------- */

static struct st_channel_key stream_key(const struct ucx_slot *ep)
{
    return (struct st_channel_key){.object = ep->parent ? ep->parent->id : 0,
                                   .kind = ST_KIND_STREAM,
                                   .dir = ST_IN,
                                   .layer = ST_LAYER_UCP,
                                   .peer = ep->peer,
                                   .shared = ep->shared};
}

static void on_stream(void *handle, ucs_status_t status, size_t length, void *user_data)
{
    struct ucx_request *request = user_data;
    ucp_stream_recv_nbx_callback_t callback = request->muted ? NULL : request->callback.recv_stream;
    void *data = request->user_data;
    uint8_t flags = (ucx_thread.posting == request ? ST_INLINE : 0) |
                    (status == UCS_OK ? 0 : ST_FAILED);
    if (status == UCS_OK || length)
        record_arrival(request->slot, &request->key, request->call, length, flags, request->order);
    if (ucx_request_swap(request, UCX_REQUEST_DONE) == UCX_REQUEST_POSTED)
        ucx_request_free(request);
    if (callback)
        callback(handle, status, length, data);
}

static ucs_status_ptr_t stream_receive(struct ucx_call *call, enum ucx_function code, ucp_ep_h ep,
                                       void *buffer, size_t count, size_t *length,
                                       const ucp_request_param_t *param)
{
    struct st_channel_key key = stream_key(call->slot);
    uint32_t order = next_order(call->slot);
    struct ucx_request *request = ucx_request_new(param, call->slot->shared);
    call->request = request;
    call->outer = ucx_thread.posting;
    ucx_thread.posting = request;
    if (request) {
        request->key = key;
        request->slot = call->slot;
        request->call = code;
        request->order = order;
        request->param.base.cb.recv_stream = on_stream;
        param = &request->param.base;
    }
    ucs_status_ptr_t result =
        call->library->ucp_stream_recv_nbx(ep, buffer, count, length, param);
    if (result == NULL)
        record_arrival(call->slot, &key, code, *length, ST_INLINE, order);
    return receive_end(call, param, result);
}

ST_API ucs_status_ptr_t ucp_stream_recv_nbx(ucp_ep_h ep, void *buffer, size_t count,
                                            size_t *length, const ucp_request_param_t *param)
{
    struct ucx_call call;
    if (!ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER))
        return call.library->ucp_stream_recv_nbx(ep, buffer, count, length, param);
    return stream_receive(&call, UCX_CALL_ucp_stream_recv_nbx, ep, buffer, count, length, param);
}

ST_API ucs_status_ptr_t ucp_stream_recv_nb(ucp_ep_h ep, void *buffer, size_t count,
                                           ucp_datatype_t datatype, ucp_stream_recv_callback_t cb,
                                           size_t *length, unsigned flags)
{
    struct ucx_call call;
    if (!ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER))
        return call.library->ucp_stream_recv_nb(ep, buffer, count, datatype, cb, length, flags);
    const ucp_request_param_t given = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                                                       UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_FLAGS,
                                       .cb.recv_stream = (ucp_stream_recv_nbx_callback_t)cb,
                                       .flags = flags,
                                       .datatype = datatype};
    return stream_receive(&call, UCX_CALL_ucp_stream_recv_nb, ep, buffer, count, length, &given);
}

ST_API ucs_status_ptr_t ucp_stream_recv_data_nb(ucp_ep_h ep, size_t *length)
{
    struct ucx_call call;
    if (!st_recording() || !ucx_begin(&call, ep, UCX_SLOT_EP, UCX_CALLER)) {
        ucs_status_ptr_t passed = ucx_library(UCX_CALLER)->ucp_stream_recv_data_nb(ep, length);
        if (ucx_ucp_on && UCS_PTR_IS_PTR(passed) && !st_recording())
            st_refused();
        return passed;
    }
    ucx_slot_use(call.slot, UCX_USE_POST);
    ucs_status_ptr_t result = call.library->ucp_stream_recv_data_nb(ep, length);
    if (UCS_PTR_IS_PTR(result)) {
        struct st_channel_key key = stream_key(call.slot);
        record_arrival(call.slot, &key, UCX_CALL_ucp_stream_recv_data_nb, *length, ST_INLINE,
                       next_order(call.slot));
    }
    ucx_end(&call);
    return result;
}
