/* What all outgoing operations have in common. */
#include "ucx.h"

bool ucx_begin(struct ucx_call *call, const void *handle, enum ucx_slot_type type,
                  const void *caller)
{
    call->request = NULL;
    if (!ucx_ucp_on || !st_recording()) {
        call->library = ucx_library(caller);
        if (ucx_ucp_on && !ucx_internal(caller))
            st_refused();
        return false;
    }
    /* UCP reaches new calls from old ones through the PLT: the outer call is the message. A
     * callback that runs inside a call is the application's, and is told by its address. */
    call->slot = ucx_slot_find(handle);
    call->library = call->slot ? call->slot->library : ucx_library(caller);
    if (ucx_thread.inside && ucx_internal(caller))
        return false;
    if (!call->slot && type == UCX_SLOT_EP)
        call->slot = ucx_ep_slot((ucp_ep_h)handle, NULL, NULL, call->library);
    if (!call->slot) {
        st_lost("ucx: operation on an unknown handle", 1);
        return false;
    }
    if (call->slot->query)
        ucx_ep_addresses((ucp_ep_h)handle, call->slot);
    call->depth = ucx_enter();
    call->t_tsc = ucx_now();
    return true;
}

void ucx_end(struct ucx_call *call)
{
    (void)call;
    ucx_leave();
}

bool ucx_channel(const struct st_channel_key *key, uint32_t *channel, uint32_t *ordinal)
{
    struct st_channel_key bare;
    if (ucx_mode == ST_MODE_AGGREGATE) {
        bare = *key;
        bare.tag = 0;
        bare.flags = 0;
        key = &bare;
    }
    struct st_channel *found = st_channel_get(key);
    if (!found)
        return false;
    *channel = found->id;
    *ordinal = st_ordinal_next(found, key->shared);
    return true;
}

uint64_t ucx_bytes(const void *buffer, size_t count, ucp_datatype_t datatype, uint8_t *flags)
{
    uint64_t bytes = 0;
    ucp_datatype_t class = datatype & UCP_DATATYPE_CLASS_MASK;
    if (class == UCP_DATATYPE_CONTIG)
        return (uint64_t)count * (datatype >> UCP_DATATYPE_SHIFT);
    if (class == UCP_DATATYPE_IOV) {
        const ucp_dt_iov_t *iov = buffer;
        for (size_t i = 0; i < count; i++)
            bytes += iov[i].length;
        return bytes;
    }
    *flags |= ST_SIZE_UNKNOWN;
    return 0;
}

void ucx_sent(struct ucx_call *call, const struct ucx_op *op, bool completed)
{
    struct ucx_slot *slot = call->slot, *worker = slot;
    if (slot->type == UCX_SLOT_EP)
        worker = slot->parent;
    struct st_channel_key key = {
        .object = worker ? worker->id : 0,
        .kind = op->kind,
        .dir = ST_OUT,
        .layer = ST_LAYER_UCP,
        .flags = op->channel,
        .peer = slot->type == UCX_SLOT_EP ? slot->peer : ST_UNKNOWN_PEER,
        .tag = op->tag,
        .shared = slot->shared,
    };
    uint32_t channel, ordinal, span = 0;
    if (ucx_mode == ST_MODE_FULL)
        span = st_span(call->t_tsc, st_now());
    if (!ucx_channel(&key, &channel, &ordinal))
        return;
    uint8_t flags = op->flags;
    if (completed)
        flags |= ST_INLINE;
    flags |= ucx_slot_order(slot, UCX_USE_SEND);
    st_op(call->t_tsc, op->size, channel, ordinal, op->op, ucx_calls[op->call], call->depth,
          flags, span);
    if (ucx_mode == ST_MODE_FULL && op->raddr) {
        struct ucx_slot *rkey = ucx_slot_find(op->rkey);
        st_target(op->raddr, rkey ? rkey->id : 0, 0, channel, ordinal);
    }
    if (call->request) {
        call->request->channel = channel;
        call->request->ordinal = ordinal;
        call->request->size = op->size;
        call->request->op = op->op;
        call->request->call = op->call;
        call->request->depth = call->depth;
        call->request->flags = flags & ~ST_INLINE;
    }
}

/* --- completions of sends, mode full ---------------------------------------------------------------- */

static void completion_record(const struct ucx_request *r)
{
    if (!r->op) /* recording stopped before the operation was recorded */
        return;
    uint8_t flags = r->flags | (r->status == UCS_OK ? 0 : ST_FAILED);
    st_completion(r->t_tsc, r->size, r->channel, r->ordinal, r->status, r->op,
                  ucx_calls[r->call], r->depth, flags);
}

void ucx_request_done(struct ucx_request *request, ucs_status_t status)
{
    request->t_tsc = st_now();
    request->status = status;
    if (ucx_request_swap(request, UCX_REQUEST_DONE) == UCX_REQUEST_POSTED) {
        completion_record(request);
        ucx_request_free(request);
    }
}

ucs_status_ptr_t ucx_request_posted(struct ucx_request *request, ucs_status_ptr_t result)
{
    if (!request)
        return result;
    if (!UCS_PTR_IS_PTR(result)) {
        ucx_request_free(request);
        return result;
    }
    __atomic_store_n(&request->request, result, __ATOMIC_RELAXED);
    if (ucx_request_swap(request, UCX_REQUEST_POSTED) == UCX_REQUEST_DONE) {
        completion_record(request);
        ucx_request_free(request);
    } else {
        ucx_thread.last = request;
    }
    return result;
}

static void on_sent(void *handle, ucs_status_t status, void *user_data)
{
    struct ucx_request *request = user_data;
    ucp_send_nbx_callback_t callback = request->muted ? NULL : request->callback.send;
    void *data = request->user_data;
    ucx_request_done(request, status);
    if (callback)
        callback(handle, status, data);
}

const ucp_request_param_t *ucx_follow(struct ucx_call *call,
                                         const ucp_request_param_t *param)
{
    ucx_slot_use(call->slot, UCX_USE_SEND);
    if (ucx_mode != ST_MODE_FULL)
        return param;
    call->request = ucx_request_new(param, call->slot->shared);
    if (!call->request)
        return param;
    call->request->param.base.cb.send = on_sent;
    return &call->request->param.base;
}

ucs_status_ptr_t ucx_sent_pointer(struct ucx_call *call, const struct ucx_op *op,
                                     ucs_status_ptr_t result)
{
    if (!UCS_PTR_IS_ERR(result))
        ucx_sent(call, op, result == NULL);
    ucx_end(call);
    return ucx_request_posted(call->request, result);
}

ucs_status_t ucx_sent_status(struct ucx_call *call, const struct ucx_op *op,
                                ucs_status_t status)
{
    if (!UCS_STATUS_IS_ERR(status))
        ucx_sent(call, op, status == UCS_OK);
    ucx_end(call);
    return status;
}
