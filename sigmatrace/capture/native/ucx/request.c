/* Contexts of watched requests: a list per thread, a pool behind it. */
#include "ucx.h"

#include <pthread.h>
#include <string.h>

#define CACHE_MAX 512 /* a thread that only completes gives its surplus to those that post */

__thread struct ucx_thread ucx_thread;

static struct ucx_pool pool = {.size = sizeof(struct ucx_request)};
static pthread_key_t thread_end;

/* A signal handler that interrupts its own thread inside finds the list busy, leaves it alone
 * and goes to the pool. */
static inline bool list_enter(struct ucx_thread *thread)
{
    if (thread->busy)
        return false;
    thread->busy = true;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return true;
}

static inline void list_leave(struct ucx_thread *thread)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    thread->busy = false;
}

static void on_thread_end(void *unused)
{
    (void)unused;
    struct ucx_thread *thread = &ucx_thread;
    if (!list_enter(thread))
        return;
    struct ucx_request *chain = thread->free;
    *thread = (struct ucx_thread){.busy = true};
    list_leave(thread);
    if (chain)
        ucx_pool_give(&pool, chain);
}

__attribute__((constructor)) static void make_key(void)
{
    pthread_key_create(&thread_end, on_thread_end);
}

static void refill(struct ucx_thread *thread)
{
    if (!thread->registered) {
        thread->registered = true;
        pthread_setspecific(thread_end, thread);
    }
    thread->free = ucx_pool_take_all(&pool);
    for (struct ucx_request *r = thread->free; r; r = r->next)
        thread->free_count++;
}

static struct ucx_request *take(void)
{
    struct ucx_thread *thread = &ucx_thread;
    if (!list_enter(thread))
        return ucx_pool_take(&pool);
    if (!thread->free)
        refill(thread);
    struct ucx_request *request = thread->free;
    if (request) {
        thread->free = request->next;
        thread->free_count--;
    }
    list_leave(thread);
    return request;
}

/* Copies no more than the application's structure is known to have: the fields up to
 * user_data exist in every version, a later one only when its bit is set. */
static bool copy_param(struct ucx_param *to, const ucp_request_param_t *from)
{
    enum {
        REMOTE_DATATYPE = UCS_BIT(9),
        REMOTE = UCS_BIT(10),
        REMOTE_COUNT = UCS_BIT(11),
        UNKNOWN_FIELDS = 0xf000
    };
    uint32_t mask = from->op_attr_mask;
    if (mask & UNKNOWN_FIELDS)
        return false;
    memcpy(&to->base, from, offsetof(ucp_request_param_t, reply_buffer));
    if (!(mask & 0xffe0))
        return true;
    if (mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER)
        to->base.reply_buffer = from->reply_buffer;
    if (mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE)
        to->base.memory_type = from->memory_type;
    if (mask & UCP_OP_ATTR_FIELD_RECV_INFO)
        to->base.recv_info = from->recv_info;
    if (mask & UCP_OP_ATTR_FIELD_MEMH)
        to->base.memh = from->memh;
    const uint64_t *tail = ((const struct ucx_param *)from)->tail;
    if (mask & REMOTE_DATATYPE)
        to->tail[0] = tail[0];
    if (mask & REMOTE)
        to->tail[1] = tail[1];
    if (mask & REMOTE_COUNT)
        to->tail[2] = tail[2];
    return true;
}

struct ucx_request *ucx_request_new(const ucp_request_param_t *param, bool shared)
{
    struct ucx_request *request = take();
    if (!request) {
        st_lost("ucx: no memory to watch a request", 1);
        return NULL;
    }
    if (!copy_param(&request->param, param)) {
        st_lost("ucx: request parameters of a newer version", 1);
        ucx_request_free(request);
        return NULL;
    }
    request->callback.send = NULL;
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK)
        request->callback = param->cb;
    request->user_data =
        param->op_attr_mask & UCP_OP_ATTR_FIELD_USER_DATA ? param->user_data : NULL;
    request->param.base.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    request->param.base.user_data = request;
    request->request = NULL;
    request->state = UCX_REQUEST_NEW;
    request->op = 0;
    request->shared = shared;
    request->muted = request->hold = request->held = false;
    return request;
}

void ucx_request_free(struct ucx_request *request)
{
    struct ucx_thread *thread = &ucx_thread;
    struct ucx_request *surplus = NULL;
    __atomic_store_n(&request->request, NULL, __ATOMIC_RELAXED);
    request->next = NULL;
    if (!list_enter(thread)) {
        ucx_pool_give(&pool, request);
        return;
    }
    request->next = thread->free;
    thread->free = request;
    if (++thread->free_count > CACHE_MAX) {
        surplus = thread->free;
        thread->free = NULL;
        thread->free_count = 0;
    }
    list_leave(thread);
    if (surplus)
        ucx_pool_give(&pool, surplus);
}

int ucx_request_swap(struct ucx_request *request, enum ucx_request_state state)
{
    if (request->shared)
        return __atomic_exchange_n(&request->state, state, __ATOMIC_ACQ_REL);
    int before = request->state;
    request->state = state;
    return before;
}

struct ucx_request *ucx_request_find(const void *handle)
{
    struct ucx_request *last = ucx_thread.last;
    if (last && last->request == handle)
        return last;
    for (struct ucx_chunk *c = ucx_pool_chunks(&pool); c; c = c->next)
        for (uint32_t i = 0; i < c->count; i++) {
            struct ucx_request *request = ucx_pool_at(&pool, c, i);
            if (__atomic_load_n(&request->request, __ATOMIC_RELAXED) == handle)
                return request;
        }
    return NULL;
}

/* --- what the application does to a request ----------------------------------------------------- */

/* Freed before its completion: the library would drop the callback, and with it the sight of
 * the completion. Released instead, it keeps it; only the application's is silenced. */
ST_API void ucp_request_free(void *request)
{
    struct ucx_library *library = ucx_library(UCX_CALLER);
    struct ucx_request *watched;
    if (ucx_ucp_on && ucx_pool_chunks(&pool) && library->ucp_request_release &&
        !ucx_internal(UCX_CALLER) &&
        library->ucp_request_check_status(request) == UCS_INPROGRESS &&
        (watched = ucx_request_find(request))) {
        watched->muted = true;
        library->ucp_request_release(request);
        return;
    }
    library->ucp_request_free(request);
}

ST_API void ucp_request_cancel(ucp_worker_h worker, void *request)
{
    struct ucx_call call;
    if (ucx_mode != ST_MODE_FULL ||
        !ucx_begin(&call, worker, UCX_SLOT_WORKER, UCX_CALLER)) {
        ucx_library(UCX_CALLER)->ucp_request_cancel(worker, request);
        return;
    }
    struct ucx_op op = {
        .op = ST_OP_CANCEL, .kind = ST_KIND_MSG, .call = UCX_CALL_ucp_request_cancel};
    ucx_slot_use(call.slot, UCX_USE_SEND);
    call.library->ucp_request_cancel(worker, request);
    ucx_sent(&call, &op, true);
    ucx_end(&call);
}
