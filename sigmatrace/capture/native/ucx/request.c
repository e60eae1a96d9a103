/* Contexts of watched requests: a cache per thread, malloc behind it. */
#include "ucx.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 64
#define CACHE_MAX 512 /* a thread that only completes gives its surplus to those that post */

__thread struct st_ucx_thread st_ucx_thread;

struct chunk {
    struct chunk *next;
    struct st_request requests[CHUNK];
};
static struct chunk *chunks;           /* all, never given back: a request can outlive its thread */
static struct st_request *surplus;     /* a chain that any thread takes as a whole */
static pthread_key_t thread_end;

static void give_surplus(struct st_request *first)
{
    struct st_request *last = first;
    while (last->next)
        last = last->next;
    struct st_request *head = __atomic_load_n(&surplus, __ATOMIC_RELAXED);
    do
        last->next = head;
    while (!__atomic_compare_exchange_n(&surplus, &head, first, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
}

static void on_thread_end(void *unused)
{
    (void)unused;
    if (st_ucx_thread.free)
        give_surplus(st_ucx_thread.free);
    st_ucx_thread = (struct st_ucx_thread){0};
}

__attribute__((constructor)) static void make_key(void)
{
    pthread_key_create(&thread_end, on_thread_end);
}

static void refill(void)
{
    struct st_ucx_thread *thread = &st_ucx_thread;
    if (!thread->registered) {
        thread->registered = true;
        pthread_setspecific(thread_end, thread);
    }
    thread->free = __atomic_exchange_n(&surplus, NULL, __ATOMIC_ACQUIRE);
    for (struct st_request *r = thread->free; r; r = r->next)
        thread->free_count++;
    if (thread->free)
        return;
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    if (!chunk)
        return;
    chunk->next = __atomic_load_n(&chunks, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&chunks, &chunk->next, chunk, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    for (int i = 0; i < CHUNK; i++) {
        chunk->requests[i].next = thread->free;
        thread->free = &chunk->requests[i];
    }
    thread->free_count += CHUNK;
}

/* Copies no more than the application's structure is known to have: the fields up to
 * user_data exist in every version, a later one only when its bit is set. */
static bool copy_param(struct st_ucp_param *to, const ucp_request_param_t *from)
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
    const uint64_t *tail = ((const struct st_ucp_param *)from)->tail;
    if (mask & REMOTE_DATATYPE)
        to->tail[0] = tail[0];
    if (mask & REMOTE)
        to->tail[1] = tail[1];
    if (mask & REMOTE_COUNT)
        to->tail[2] = tail[2];
    return true;
}

struct st_request *st_request_new(const ucp_request_param_t *param, bool shared)
{
    struct st_ucx_thread *thread = &st_ucx_thread;
    if (!thread->free)
        refill();
    struct st_request *request = thread->free;
    if (!request) {
        st_lost("ucx: no memory to watch a request", 1);
        return NULL;
    }
    if (!copy_param(&request->param, param)) {
        st_lost("ucx: request parameters of a newer version", 1);
        return NULL;
    }
    thread->free = request->next;
    thread->free_count--;
    request->callback.send = NULL;
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK)
        request->callback = param->cb;
    request->user_data =
        param->op_attr_mask & UCP_OP_ATTR_FIELD_USER_DATA ? param->user_data : NULL;
    request->param.base.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    request->param.base.user_data = request;
    request->request = NULL;
    request->state = ST_REQUEST_NEW;
    request->op = 0;
    request->shared = shared;
    request->muted = request->hold = request->held = false;
    return request;
}

void st_request_free(struct st_request *request)
{
    struct st_ucx_thread *thread = &st_ucx_thread;
    __atomic_store_n(&request->request, NULL, __ATOMIC_RELAXED);
    request->next = thread->free;
    thread->free = request;
    if (++thread->free_count > CACHE_MAX) {
        give_surplus(thread->free);
        thread->free = NULL;
        thread->free_count = 0;
    }
}

int st_request_swap(struct st_request *request, enum st_request_state state)
{
    if (request->shared)
        return __atomic_exchange_n(&request->state, state, __ATOMIC_ACQ_REL);
    int before = request->state;
    request->state = state;
    return before;
}

struct st_request *st_request_find(const void *handle)
{
    struct st_request *last = st_ucx_thread.last;
    if (last && last->request == handle)
        return last;
    for (struct chunk *c = __atomic_load_n(&chunks, __ATOMIC_ACQUIRE); c; c = c->next)
        for (int i = 0; i < CHUNK; i++)
            if (__atomic_load_n(&c->requests[i].request, __ATOMIC_RELAXED) == handle)
                return &c->requests[i];
    return NULL;
}

/* --- what the application does to a request ----------------------------------------------------- */

/* Freed before its completion: the library would drop the callback, and with it the sight of
 * the completion. Released instead, it keeps it; only the application's is silenced. */
ST_API void ucp_request_free(void *request)
{
    struct st_ucx_library *library = st_ucx_library(ST_CALLER);
    struct st_request *watched;
    if (st_ucp_on && __atomic_load_n(&chunks, __ATOMIC_RELAXED) && library->ucp_request_release &&
        !st_ucx_internal(ST_CALLER) &&
        library->ucp_request_check_status(request) == UCS_INPROGRESS &&
        (watched = st_request_find(request))) {
        watched->muted = true;
        library->ucp_request_release(request);
        return;
    }
    library->ucp_request_free(request);
}

ST_API void ucp_request_cancel(ucp_worker_h worker, void *request)
{
    struct st_ucp_call call;
    if (st_ucx_mode != ST_MODE_FULL ||
        !st_ucp_begin(&call, worker, ST_SLOT_WORKER, ST_CALLER)) {
        st_ucx_library(ST_CALLER)->ucp_request_cancel(worker, request);
        return;
    }
    struct st_ucp_op op = {
        .op = ST_OP_CANCEL, .kind = ST_KIND_MSG, .call = ST_CALL_ucp_request_cancel};
    st_slot_use(call.slot, ST_USE_SEND);
    call.library->ucp_request_cancel(worker, request);
    st_ucp_sent(&call, &op, true);
    st_ucp_end(&call);
}
