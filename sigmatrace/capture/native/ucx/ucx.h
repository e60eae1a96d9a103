/* The UCX layer: what its files share.
 *
 * A wrapper finds the handle it was called with (worker, endpoint, interface) in a
 * table of slots; the slot knows the object id, the copy of UCX that the handle belongs to
 * and the counters. Nothing here takes a lock. */
#ifndef UCX_UCX_H
#define UCX_UCX_H

#include "st_handle.h"

#include <ucp/api/ucp.h>
#include <ucp/api/ucp_compat.h>

#define UCX_CALLER __builtin_return_address(0)

/* --- configuration, set once by the constructor ------------------------------------------ */

extern bool ucx_ucp_on, ucx_uct_on;
extern enum st_mode ucx_mode;

/* --- the real functions ---------------------------------------------------------------------- */

/* UCP functions that are wrapped, and others that wrappers call. */
#define UCX_UCP_WRAPPED(X)                                                                         \
    X(ucp_init_version) X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_ep_create)                \
    X(ucp_ep_close_nbx) X(ucp_ep_close_nb)                                                         \
    X(ucp_disconnect_nb) X(ucp_ep_destroy) X(ucp_ep_rkey_unpack) X(ucp_rkey_destroy)               \
    X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_request_free) X(ucp_request_cancel)                      \
    X(ucp_tag_send_nbx) X(ucp_tag_send_nb) X(ucp_tag_send_nbr) X(ucp_tag_send_sync_nbx)            \
    X(ucp_tag_send_sync_nb) X(ucp_stream_send_nbx) X(ucp_stream_send_nb) X(ucp_am_send_nbx)        \
    X(ucp_am_send_nb) X(ucp_tag_recv_nbx) X(ucp_tag_recv_nb) X(ucp_tag_recv_nbr)                   \
    X(ucp_tag_msg_recv_nbx) X(ucp_tag_msg_recv_nb) X(ucp_tag_probe_nb) X(ucp_stream_recv_nbx)      \
    X(ucp_stream_recv_nb) X(ucp_stream_recv_data_nb) X(ucp_worker_set_am_handler)                  \
    X(ucp_worker_set_am_recv_handler) X(ucp_am_recv_data_nbx) X(ucp_put_nbx) X(ucp_put_nb)         \
    X(ucp_put_nbi) X(ucp_put) X(ucp_get_nbx) X(ucp_get_nb) X(ucp_get_nbi) X(ucp_get)               \
    X(ucp_atomic_op_nbx) X(ucp_atomic_post) X(ucp_atomic_fetch_nb) X(ucp_atomic_add32)             \
    X(ucp_atomic_add64) X(ucp_atomic_fadd32) X(ucp_atomic_fadd64) X(ucp_atomic_swap32)             \
    X(ucp_atomic_swap64) X(ucp_atomic_cswap32) X(ucp_atomic_cswap64) X(ucp_ep_flush_nbx)           \
    X(ucp_ep_flush_nb) X(ucp_ep_flush) X(ucp_worker_flush_nbx) X(ucp_worker_flush_nb)              \
    X(ucp_worker_flush)
#define UCX_UCP_CALLED(X)                                                                          \
    X(ucp_get_version_string) X(ucp_worker_release_address) X(ucp_worker_address_query)            \
    X(ucp_worker_get_address) X(ucp_worker_query)                                                  \
    X(ucp_ep_query) X(ucp_mem_query) X(ucp_request_check_status) X(ucp_request_release)

/* Members of uct_iface_ops_t that are wrapped. */
#define UCX_UCT_WRAPPED(X)                                                                         \
    X(ep_put_short) X(ep_put_bcopy) X(ep_put_zcopy) X(ep_get_short) X(ep_get_bcopy)                \
    X(ep_get_zcopy) X(ep_am_short) X(ep_am_short_iov) X(ep_am_bcopy) X(ep_am_zcopy)                \
    X(ep_atomic_cswap64) X(ep_atomic_cswap32) X(ep_atomic32_post) X(ep_atomic64_post)              \
    X(ep_atomic32_fetch) X(ep_atomic64_fetch) X(ep_flush)

enum ucx_function {
#define UCX_ENUM(name) UCX_CALL_##name,
    UCX_UCP_WRAPPED(UCX_ENUM)
#undef UCX_ENUM
#define UCX_ENUM(name) UCX_CALL_uct_##name,
    UCX_UCT_WRAPPED(UCX_ENUM)
#undef UCX_ENUM
    UCX_CALL_uct_am_handler,
    UCX_CALLS
};
/* Numbers for the `call` field, by enum ucx_function. */
extern uint8_t ucx_calls[UCX_CALLS];

/* One copy of libucp in the process. */
struct ucx_library {
#define UCX_FIELD(name) __typeof__(&name) name;
    UCX_UCP_WRAPPED(UCX_FIELD)
    UCX_UCP_CALLED(UCX_FIELD)
#undef UCX_FIELD
    uintptr_t text_begin, text_end;
    const char *path;
    struct ucx_library *next;
};

/* `name` as the caller at this return address would have reached it without the shim. */
void *ucx_symbol(const char *name, const void *caller);
/* The copy of UCX that this caller uses; found once for the first copy, and by the caller's
 * scope when there are several. */
struct ucx_library *ucx_library_resolve(const void *caller);
extern struct ucx_library *ucx_libraries;
static inline struct ucx_library *ucx_library(const void *caller)
{
    struct ucx_library *first = __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE);
    if (__builtin_expect(first && !first->next, true))
        return first;
    return ucx_library_resolve(caller);
}
/* The shim's own code, from the linker. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));
/* Does this return address lie in libucp itself? Or in the shim: where UCP jumps from one call
 * to another, the return address is still that of the wrapper around the first. */
static inline bool ucx_internal(const void *caller)
{
    uintptr_t a = (uintptr_t)caller;
    if (a >= (uintptr_t)__ehdr_start && a < (uintptr_t)etext)
        return true;
    for (struct ucx_library *l = __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE); l;
         l = l->next)
        if (a >= l->text_begin && a < l->text_end)
            return true;
    return false;
}

/* --- memory ------------------------------------------------------------------------------------ */

/* Elements of one size. Each begins with the pointer to the next of its chain while it is free. */
struct ucx_pool {
    size_t size; /* of an element */
    struct ucx_chunk *chunks;
    void *spare; /* a chain */
};
struct ucx_chunk {
    struct ucx_chunk *next;
    uint32_t count;
    uint8_t elements[] __attribute__((aligned(16)));
};

/* An element, or a chain of at least one; NULL when there is no memory. */
void *ucx_pool_take(struct ucx_pool *pool);
void *ucx_pool_take_all(struct ucx_pool *pool);
void ucx_pool_give(struct ucx_pool *pool, void *chain);
/* All elements there are, in use or not. */
static inline struct ucx_chunk *ucx_pool_chunks(struct ucx_pool *pool)
{
    return __atomic_load_n(&pool->chunks, __ATOMIC_ACQUIRE);
}
static inline void *ucx_pool_at(const struct ucx_pool *pool, struct ucx_chunk *chunk, uint32_t i)
{
    return chunk->elements + i * pool->size;
}

/* --- handles ----------------------------------------------------------------------------------- */

enum ucx_slot_type {
    UCX_SLOT_WORKER = 1,
    UCX_SLOT_EP,
    UCX_SLOT_ROUTE, /* from a worker to a remote one: ucp_ep.c */
    UCX_SLOT_RKEY,
    UCX_SLOT_MEMORY,
    UCX_SLOT_IFACE,
    UCX_SLOT_UCT_EP
};

/* Streams of operations on a handle, each with its own order. */
enum ucx_slot_use {
    UCX_USE_SEND,   /* outgoing operations */
    UCX_USE_POST,   /* receives, as they are posted */
    UCX_USE_HANDLE, /* active messages, as their handlers are called */
    UCX_USES
};

struct ucx_slot {
    struct ucx_slot *next; /* while free */
    const void *handle;
    uint8_t type;
    bool shared;            /* several threads may use it at once */
    bool met;               /* endpoint: not made by the program, so nobody says where it leads */
    bool several;           /* route: endpoints of it have been open at once */
    uint8_t query;          /* endpoint: how often its socket addresses may still be asked for */
    uint32_t id;            /* object id */
    uint32_t peer;          /* endpoint: peer of its channels; route: of those of its endpoints */
    uint32_t open;          /* route: endpoints whose close has not completed */
    uint32_t posted;        /* worker: receives posted so far */
    uint32_t arrived;       /* worker, interface: arrivals without a posted receive so far */
    uintptr_t owners[UCX_USES]; /* while shared: st_owner_claim */
    struct ucx_slot *parent; /* endpoint: its worker or interface; NULL when unknown */
    struct ucx_slot *route;  /* endpoint: to its remote worker; NULL when that is unknown */
    struct ucx_library *library;
    void *data;   /* interface: struct ucx_uct_iface */
    uint64_t uid; /* route: of the remote worker */
};

extern struct st_handle_table ucx_handles;

static inline struct ucx_slot *ucx_slot_find(const void *handle)
{
    return st_handle_find(&ucx_handles, handle);
}
/* A slot to fill in; NULL when there is no memory. */
struct ucx_slot *ucx_slot_new(enum ucx_slot_type type);
/* From now on it is found (it replaces one of the same handle). False: no room, it is gone. */
bool ucx_slot_publish(struct ucx_slot *slot, const void *handle);
/* From now on it is not found; the caller frees it. NULL: there was none. Always before the
 * library is told to destroy the handle: afterwards the address may be another thread's. */
struct ucx_slot *ucx_slot_take(const void *handle);
void ucx_slot_free(struct ucx_slot *slot);
/* Takes, records that the object of this type is closed, frees. */
void ucx_slot_close(const void *handle, const char *type);
/* Closes all that is left of a worker or interface; its endpoints are objects of this type. */
void ucx_slot_orphans(const struct ucx_slot *parent, const char *type);

/* --- one call of the application ----------------------------------------------------------------- */

struct ucx_request;

/* Per thread. */
struct ucx_thread {
    struct ucx_request *free;    /* contexts to take from */
    struct ucx_request *posting; /* the receive whose posting call runs now */
    struct ucx_request *last;    /* posted last */
    uint32_t free_count;
    uint8_t inside; /* recorded UCP calls that enclose the present moment */
    bool registered;
    volatile bool busy; /* `free` is being changed: request.c */
};
extern __thread struct ucx_thread ucx_thread;

/* Around a recorded call; how many recorded calls of other layers enclose it. A signal handler
 * may come between the two counts: `inside` is the larger one then, never the smaller. */
static inline uint8_t ucx_enter(void)
{
    uint8_t inside = ucx_thread.inside++, depth = st_enter();
    return depth > inside ? depth - inside : 0;
}
static inline void ucx_leave(void)
{
    st_leave();
    ucx_thread.inside--;
}

/* This thread is about to use it: before the library is called. */
static inline void ucx_slot_use(struct ucx_slot *slot, enum ucx_slot_use use)
{
    if (slot->shared)
        st_owner_claim(&slot->owners[use], &ucx_thread);
}
/* ORDER_UNCERTAIN when several threads have, or when other endpoints lead to the same remote
 * worker, else 0: after the ordinal is taken. */
static inline uint8_t ucx_slot_order(const struct ucx_slot *slot, enum ucx_slot_use use)
{
    bool several = st_owner_several(&slot->owners[use]);
    if (slot->route)
        several |= __atomic_load_n(&slot->route->several, __ATOMIC_RELAXED);
    return several ? ST_ORDER_UNCERTAIN : 0;
}

struct ucx_call {
    struct ucx_library *library;
    struct ucx_slot *slot; /* endpoint or worker */
    struct ucx_request *request; /* watched, or NULL */
    struct ucx_request *outer;   /* receive: what was being posted around this call */
    uint64_t t_tsc;
    uint8_t depth;
};

/* An outgoing operation. `flags` are those of the op record, `channel` those of the channel. */
struct ucx_op {
    uint64_t size, tag, raddr;
    const void *rkey;
    uint8_t op, kind, flags, channel;
    enum ucx_function call;
};

/* Begins a recorded call on an endpoint or worker. False: the wrapper passes the call on to
 * `call->library` and does nothing else (layer off, recording off, a call inside UCP). */
bool ucx_begin(struct ucx_call *call, const void *handle, enum ucx_slot_type type,
                  const void *caller);
void ucx_end(struct ucx_call *call);

static inline uint64_t ucx_now(void) { return ucx_mode == ST_MODE_AGGREGATE ? 0 : st_now(); }

/* The channel of an operation; 0 when recording has stopped. `ordinal` is taken from it. */
bool ucx_channel(const struct st_channel_key *key, uint32_t *channel, uint32_t *ordinal);

/* An endpoint's slot; made when it is met for the first time (`origin` "reply" or NULL). `worker`
 * NULL: not known. */
struct ucx_slot *ucx_ep_slot(ucp_ep_h ep, struct ucx_slot *worker, const char *origin,
                               struct ucx_library *library);
/* The uid of the worker that a worker address leads to. */
bool ucx_address_uid(struct ucx_library *library, const ucp_address_t *address, uint64_t *uid);
/* Asks for the socket addresses of a client/server endpoint until they are known. */
void ucx_ep_addresses(ucp_ep_h ep, struct ucx_slot *slot);

/* Bytes of `count` elements; sets SIZE_UNKNOWN in `flags` for generic datatypes. */
uint64_t ucx_bytes(const void *buffer, size_t count, ucp_datatype_t datatype, uint8_t *flags);
static inline ucp_datatype_t ucx_datatype(const ucp_request_param_t *param)
{
    return param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE ? param->datatype
                                                           : ucp_dt_make_contig(1);
}

/* Records an accepted operation (`completed`: inside the call). */
void ucx_sent(struct ucx_call *call, const struct ucx_op *op, bool completed);

/* --- requests whose completion is watched --------------------------------------------------------- */

/* ucp_request_param_t as of UCX 1.22; later fields are not known here. */
struct ucx_param {
    ucp_request_param_t base;
    uint64_t tail[3];
};

enum ucx_request_state { UCX_REQUEST_NEW, UCX_REQUEST_POSTED, UCX_REQUEST_DONE };

/* Stands between the application's callback and the library's until the completion. */
struct ucx_request {
    struct ucx_request *next; /* in a free list */
    void *request;           /* the library's, once the call returned it */
    __typeof__(((ucp_request_param_t *)0)->cb) callback;
    void *user_data;
    struct ucx_param param; /* what the library is given */
    struct st_channel_key key; /* receive */
    struct ucx_slot *slot;      /* receive: where it was posted; close: the route */
    uint64_t t_tsc, size;
    ucp_tag_recv_info_t info;
    uint32_t channel, ordinal, order;
    ucs_status_t status;
    int state; /* enum ucx_request_state */
    uint8_t op, depth, flags;
    enum ucx_function call;
    bool shared, muted, hold, held;
};

/* NULL when there is no memory, or the parameters have fields that are not known here. */
struct ucx_request *ucx_request_new(const ucp_request_param_t *param, bool shared);
void ucx_request_free(struct ucx_request *request);
/* The watched request that the library knows as `handle`, or NULL. */
struct ucx_request *ucx_request_find(const void *handle);
/* Sets the state, returns the one before. */
int ucx_request_swap(struct ucx_request *request, enum ucx_request_state state);

/* Before an operation is handed to the library. Mode full: has its completion recorded; `param`
 * comes back unless it does so. */
const ucp_request_param_t *ucx_follow(struct ucx_call *call,
                                         const ucp_request_param_t *param);
/* The completion, as the callback sees it; mode full records it. */
void ucx_request_done(struct ucx_request *request, ucs_status_t status);
/* The call that started `request` (or none, NULL) has returned; gives `result` back. */
ucs_status_ptr_t ucx_request_posted(struct ucx_request *request, ucs_status_ptr_t result);
/* Ends a call that returned a request pointer. */
ucs_status_ptr_t ucx_sent_pointer(struct ucx_call *call, const struct ucx_op *op,
                                     ucs_status_ptr_t result);
/* Ends a call that returned a status. */
ucs_status_t ucx_sent_status(struct ucx_call *call, const struct ucx_op *op,
                                ucs_status_t status);

#endif
