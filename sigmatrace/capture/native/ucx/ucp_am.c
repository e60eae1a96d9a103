/* Arrivals of active messages: a trampoline before the application's handler.
 *
 * A message is recorded once, when its handler is called; a large one's data may follow
 * (ucp_am_recv_data_nbx), which mode full records as the completion of that arrival. */
#include "ucx.h"

#include <stdlib.h>

struct am_handler {
    struct ucx_slot *worker;
    ucp_am_recv_callback_t callback;
    ucp_am_callback_t old_callback;
    void *arg;
    unsigned id;
};

static void record_am(const struct am_handler *handler, uint64_t size, ucp_ep_h reply_ep,
                      const void *data_to_come, enum ucx_function call)
{
    struct ucx_slot *worker = handler->worker, *ep = NULL;
    uint64_t t_tsc = ucx_now();
    if (reply_ep)
        ep = ucx_ep_slot(reply_ep, worker, "reply", worker->library);
    struct st_channel_key key = {.object = worker->id,
                                 .kind = ST_KIND_AM,
                                 .dir = ST_IN,
                                 .layer = ST_LAYER_UCP,
                                 .flags = ST_HAS_TAG | (reply_ep ? ST_REPLY : 0),
                                 .peer = ep && !ep->met ? ep->peer : ST_UNKNOWN_PEER,
                                 .tag = handler->id,
                                 .shared = worker->shared};
    /* The library calls handlers under the worker's lock: caution, should that change. */
    ucx_slot_use(worker, UCX_USE_HANDLE);
    uint32_t channel, ordinal;
    if (!ucx_channel(&key, &channel, &ordinal))
        return;
    uint32_t order = worker->shared ? __atomic_fetch_add(&worker->arrived, 1, __ATOMIC_RELAXED)
                                    : worker->arrived++;
    uint8_t depth = ucx_enter();
    ucx_leave();
    uint8_t flags = ucx_slot_order(worker, UCX_USE_HANDLE);
    if (ep)
        flags |= ucx_slot_order(ep, UCX_USE_HANDLE);
    st_op(t_tsc, size, channel, ordinal, ST_OP_RECV, ucx_calls[call], depth, flags, order);
    if (data_to_come && ucx_mode == ST_MODE_FULL) {
        struct st_pending pending = {.channel = channel, .ordinal = ordinal, .flags = flags};
        st_pending_put(data_to_come, &pending);
    }
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data,
                          size_t length, const ucp_am_recv_param_t *param)
{
    const struct am_handler *handler = arg;
    bool reply = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP;
    bool to_come = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    record_am(handler, (uint64_t)header_length + length, reply ? param->reply_ep : NULL,
              to_come ? data : NULL, UCX_CALL_ucp_worker_set_am_recv_handler);
    return handler->callback(handler->arg, header, header_length, data, length, param);
}

static ucs_status_t on_old_am(void *arg, void *data, size_t length, ucp_ep_h reply_ep,
                              unsigned flags)
{
    const struct am_handler *handler = arg;
    record_am(handler, length, reply_ep, NULL, UCX_CALL_ucp_worker_set_am_handler);
    return handler->old_callback(handler->arg, data, length, reply_ep, flags);
}

/* Kept for good: a message may be on its way to a handler that is replaced. */
static struct am_handler *handler_new(ucp_worker_h worker, unsigned id, void *arg)
{
    struct ucx_slot *slot = ucx_slot_find(worker);
    struct am_handler *handler = slot ? calloc(1, sizeof(*handler)) : NULL;
    if (!handler) {
        st_lost("ucx: active message handler not wrapped", 1);
        return NULL;
    }
    handler->worker = slot;
    handler->id = id;
    handler->arg = arg;
    return handler;
}

ST_API ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                   const ucp_am_handler_param_t *param)
{
    enum {
        ID = UCP_AM_HANDLER_PARAM_FIELD_ID,
        FLAGS = UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        CB = UCP_AM_HANDLER_PARAM_FIELD_CB,
        ARG = UCP_AM_HANDLER_PARAM_FIELD_ARG
    };
    struct ucx_library *library = ucx_library(UCX_CALLER);
    uint64_t mask = param->field_mask;
    if (!ucx_ucp_on || !(mask & ID) || !(mask & CB) || !param->cb)
        return library->ucp_worker_set_am_recv_handler(worker, param);
    struct am_handler *handler = NULL;
    if (mask & ~(uint64_t)(ID | FLAGS | CB | ARG))
        st_lost("ucx: active message handler of a newer version", 1);
    else
        handler = handler_new(worker, param->id, mask & ARG ? param->arg : NULL);
    if (!handler)
        return library->ucp_worker_set_am_recv_handler(worker, param);
    handler->callback = param->cb;
    ucp_am_handler_param_t ours = *param;
    ours.field_mask |= ARG;
    ours.cb = on_am;
    ours.arg = handler;
    return handler->worker->library->ucp_worker_set_am_recv_handler(worker, &ours);
}

ST_API ucs_status_t ucp_worker_set_am_handler(ucp_worker_h worker, uint16_t id,
                                              ucp_am_callback_t cb, void *arg, uint32_t flags)
{
    struct ucx_library *library = ucx_library(UCX_CALLER);
    struct am_handler *handler = ucx_ucp_on && cb ? handler_new(worker, id, arg) : NULL;
    if (!handler)
        return library->ucp_worker_set_am_handler(worker, id, cb, arg, flags);
    handler->old_callback = cb;
    return handler->worker->library->ucp_worker_set_am_handler(worker, id, on_old_am, handler,
                                                               flags);
}

/* --- the data of a large message, mode full ------------------------------------------------------------- */

static void on_am_data(void *handle, ucs_status_t status, size_t length, void *user_data)
{
    struct ucx_request *request = user_data;
    ucp_am_recv_data_nbx_callback_t callback = request->muted ? NULL : request->callback.recv_am;
    void *data = request->user_data;
    request->size = length;
    ucx_request_done(request, status);
    if (callback)
        callback(handle, status, length, data);
}

ST_API ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param)
{
    struct ucx_call call;
    struct st_pending pending;
    if (ucx_mode != ST_MODE_FULL || !st_recording() ||
        !ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER))
        return ucx_library(UCX_CALLER)
            ->ucp_am_recv_data_nbx(worker, data_desc, buffer, count, param);
    if (st_pending_take(data_desc, &pending))
        call.request = ucx_request_new(param, call.slot->shared);
    if (call.request) {
        call.request->param.base.cb.recv_am = on_am_data;
        call.request->channel = pending.channel;
        call.request->ordinal = pending.ordinal;
        call.request->op = ST_OP_RECV;
        call.request->call = UCX_CALL_ucp_am_recv_data_nbx;
        call.request->depth = call.depth;
        call.request->flags = pending.flags;
        param = &call.request->param.base;
    }
    ucs_status_ptr_t result =
        call.library->ucp_am_recv_data_nbx(worker, data_desc, buffer, count, param);
    if (call.request && result == NULL)
        st_completion(st_now(), 0, pending.channel, pending.ordinal, UCS_OK, ST_OP_RECV,
                      ucx_calls[UCX_CALL_ucp_am_recv_data_nbx], call.depth,
                      pending.flags | ST_INLINE);
    ucx_end(&call);
    return ucx_request_posted(call.request, result);
}
