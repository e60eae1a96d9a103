/* The UCX layer: what its files share.
 *
 * A wrapper finds the handle it was called with (worker, endpoint, interface) in a
 * table of slots; the slot knows the object id, the copy of UCX that the handle belongs to
 * and the counters. Nothing here takes a lock. */
#ifndef ST_UCX_H
#define ST_UCX_H

#include "sigmatrace.h"

#include <ucp/api/ucp.h>
#include <ucp/api/ucp_compat.h>

#define ST_CALLER __builtin_return_address(0)
#define ST_LIKELY(x) __builtin_expect(!!(x), 1)

/* --- configuration, set once by the constructor ------------------------------------------ */

extern bool st_ucp_on, st_uct_on;
extern enum st_mode st_ucx_mode;

/* --- the real functions ---------------------------------------------------------------------- */

/* Every UCP function that is wrapped, or called by a wrapper. */
#define ST_UCP_WRAPPED(X)                                                                          \
    X(ucp_init_version) X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_address)       \
    X(ucp_worker_query) X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_ep_close_nb)                    \
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
#define ST_UCP_CALLED(X)                                                                           \
    X(ucp_get_version_string) X(ucp_worker_release_address) X(ucp_worker_address_query)            \
    X(ucp_ep_query) X(ucp_mem_query) X(ucp_request_check_status) X(ucp_request_release)

/* Members of uct_iface_ops_t that are wrapped. */
#define ST_UCT_WRAPPED(X)                                                                          \
    X(ep_put_short) X(ep_put_bcopy) X(ep_put_zcopy) X(ep_get_short) X(ep_get_bcopy)                \
    X(ep_get_zcopy) X(ep_am_short) X(ep_am_short_iov) X(ep_am_bcopy) X(ep_am_zcopy)                \
    X(ep_atomic_cswap64) X(ep_atomic_cswap32) X(ep_atomic32_post) X(ep_atomic64_post)              \
    X(ep_atomic32_fetch) X(ep_atomic64_fetch) X(ep_flush)

enum st_ucx_call {
#define ST_ENUM(name) ST_CALL_##name,
    ST_UCP_WRAPPED(ST_ENUM)
#undef ST_ENUM
#define ST_ENUM(name) ST_CALL_uct_##name,
    ST_UCT_WRAPPED(ST_ENUM)
#undef ST_ENUM
    ST_CALL_uct_am_handler,
    ST_CALLS
};
/* Numbers for the `call` field, by enum st_ucx_call. */
extern uint8_t st_ucx_calls[ST_CALLS];

/* One copy of libucp in the process. */
struct st_ucx_library {
#define ST_FIELD(name) __typeof__(&name) name;
    ST_UCP_WRAPPED(ST_FIELD)
    ST_UCP_CALLED(ST_FIELD)
#undef ST_FIELD
    uintptr_t text_begin, text_end;
    const char *path;
    struct st_ucx_library *next;
};

/* `name` as the caller at this return address would have reached it without the shim. */
void *st_ucx_symbol(const char *name, const void *caller);
/* The copy of UCX that this caller uses; found once for the first copy, and by the caller's
 * scope when there are several. */
struct st_ucx_library *st_ucx_library_resolve(const void *caller);
extern struct st_ucx_library *st_ucx_libraries;
static inline struct st_ucx_library *st_ucx_library(const void *caller)
{
    struct st_ucx_library *first = __atomic_load_n(&st_ucx_libraries, __ATOMIC_ACQUIRE);
    if (ST_LIKELY(first && !first->next))
        return first;
    return st_ucx_library_resolve(caller);
}
/* The shim's own code, from the linker. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));
/* Does this return address lie in libucp itself? Or in the shim: where UCP jumps from one call
 * to another, the return address is still that of the wrapper around the first. */
static inline bool st_ucx_internal(const void *caller)
{
    uintptr_t a = (uintptr_t)caller;
    if (a >= (uintptr_t)__ehdr_start && a < (uintptr_t)etext)
        return true;
    for (struct st_ucx_library *l = __atomic_load_n(&st_ucx_libraries, __ATOMIC_ACQUIRE); l;
         l = l->next)
        if (a >= l->text_begin && a < l->text_end)
            return true;
    return false;
}

/* --- handles ----------------------------------------------------------------------------------- */

enum st_slot_type {
    ST_SLOT_WORKER = 1,
    ST_SLOT_EP,
    ST_SLOT_RKEY,
    ST_SLOT_MEMORY,
    ST_SLOT_IFACE,
    ST_SLOT_UCT_EP
};

/* Streams of operations on a handle, each with its own order. */
enum st_slot_use {
    ST_USE_SEND,   /* outgoing operations */
    ST_USE_POST,   /* receives, as they are posted */
    ST_USE_HANDLE, /* active messages, as their handlers are called */
    ST_USES
};

struct st_slot {
    const void *handle;
    uint32_t state; /* slot.c */
    uint8_t type;
    bool shared;            /* several threads may use it at once */
    uint8_t query;          /* endpoint: how often its socket addresses may still be asked for */
    uint32_t id;            /* object id */
    uint32_t posted;        /* worker: receives posted so far */
    uint32_t arrived;       /* worker, interface: arrivals without a posted receive so far */
    uintptr_t owners[ST_USES]; /* while shared: st_owner_claim */
    struct st_slot *parent; /* endpoint: its worker or interface; NULL when unknown */
    struct st_ucx_library *library;
    void *data; /* interface: struct st_uct_iface */
};

struct st_slot *st_slot_find(const void *handle);
/* A slot to fill in, not yet visible (replaces one of the same handle); NULL when full. */
struct st_slot *st_slot_claim(const void *handle, enum st_slot_type type);
void st_slot_publish(struct st_slot *slot);
void st_slot_remove(struct st_slot *slot);

/* --- one call of the application ----------------------------------------------------------------- */

struct st_request;

/* Per thread. */
struct st_ucx_thread {
    struct st_request *free;    /* contexts to take from */
    struct st_request *posting; /* the receive whose posting call runs now */
    struct st_request *last;    /* posted last */
    uint32_t free_count;
    uint8_t inside; /* recorded UCP calls that enclose the present moment */
    bool registered;
};
extern __thread struct st_ucx_thread st_ucx_thread;

/* This thread is about to use it: before the library is called. */
static inline void st_slot_use(struct st_slot *slot, enum st_slot_use use)
{
    if (slot->shared)
        st_owner_claim(&slot->owners[use], &st_ucx_thread);
}
/* ORDER_UNCERTAIN when several threads have, else 0: after the ordinal is taken. */
static inline uint8_t st_slot_order(const struct st_slot *slot, enum st_slot_use use)
{
    return st_owner_several(&slot->owners[use]) ? ST_ORDER_UNCERTAIN : 0;
}

struct st_ucp_call {
    struct st_ucx_library *library;
    struct st_slot *slot; /* endpoint or worker */
    struct st_request *request; /* watched, or NULL */
    struct st_request *outer;   /* receive: what was being posted around this call */
    uint64_t t_tsc;
    uint8_t depth;
};

/* An outgoing operation. `flags` are those of the op record, `channel` those of the channel. */
struct st_ucp_op {
    uint64_t size, tag, raddr;
    const void *rkey;
    uint8_t op, kind, flags, channel;
    enum st_ucx_call call;
};

/* Begins a recorded call on an endpoint or worker. False: the wrapper passes the call on to
 * `call->library` and does nothing else (layer off, recording off, a call inside UCP). */
bool st_ucp_begin(struct st_ucp_call *call, const void *handle, enum st_slot_type type,
                  const void *caller);
void st_ucp_end(struct st_ucp_call *call);

static inline uint64_t st_ucx_now(void) { return st_ucx_mode == ST_MODE_AGGREGATE ? 0 : st_now(); }

/* The channel of an operation; 0 when recording has stopped. `ordinal` is taken from it. */
bool st_ucx_channel(const struct st_channel_key *key, uint32_t *channel, uint32_t *ordinal);

/* An endpoint's slot; made when it is met for the first time (`origin` "reply" or NULL). */
struct st_slot *st_ucp_ep_slot(ucp_ep_h ep, struct st_slot *worker, const char *origin,
                               struct st_ucx_library *library);
/* Asks for the socket addresses of a client/server endpoint until they are known. */
void st_ucp_ep_addresses(ucp_ep_h ep, struct st_slot *slot);

/* Bytes of `count` elements; sets SIZE_UNKNOWN in `flags` for generic datatypes. */
uint64_t st_ucp_bytes(const void *buffer, size_t count, ucp_datatype_t datatype, uint8_t *flags);
static inline ucp_datatype_t st_ucp_datatype(const ucp_request_param_t *param)
{
    return param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE ? param->datatype
                                                           : ucp_dt_make_contig(1);
}

/* Records an accepted operation (`completed`: inside the call). */
void st_ucp_sent(struct st_ucp_call *call, const struct st_ucp_op *op, bool completed);

/* --- requests whose completion is watched --------------------------------------------------------- */

/* ucp_request_param_t as of UCX 1.22; later fields are not known here. */
struct st_ucp_param {
    ucp_request_param_t base;
    uint64_t tail[3];
};

enum st_request_state { ST_REQUEST_NEW, ST_REQUEST_POSTED, ST_REQUEST_DONE };

/* Stands between the application's callback and the library's until the completion. */
struct st_request {
    struct st_request *next; /* in a free list */
    void *request;           /* the library's, once the call returned it */
    __typeof__(((ucp_request_param_t *)0)->cb) callback;
    void *user_data;
    struct st_ucp_param param; /* what the library is given */
    struct st_channel_key key; /* receive */
    struct st_slot *slot;      /* receive: where it was posted */
    uint64_t t_tsc, size;
    ucp_tag_recv_info_t info;
    uint32_t channel, ordinal, order;
    ucs_status_t status;
    int state; /* enum st_request_state */
    uint8_t op, depth, flags;
    enum st_ucx_call call;
    bool shared, muted, hold, held;
};

/* NULL when there is no memory, or the parameters have fields that are not known here. */
struct st_request *st_request_new(const ucp_request_param_t *param, bool shared);
void st_request_free(struct st_request *request);
/* The watched request that the library knows as `handle`, or NULL. */
struct st_request *st_request_find(const void *handle);
/* Sets the state, returns the one before. */
int st_request_swap(struct st_request *request, enum st_request_state state);

/* Before an operation is handed to the library. Mode full: has its completion recorded; `param`
 * comes back unless it does so. */
const ucp_request_param_t *st_ucp_follow(struct st_ucp_call *call,
                                         const ucp_request_param_t *param);
/* The completion, as the callback sees it; mode full records it. */
void st_request_done(struct st_request *request, ucs_status_t status);
/* The call that started `request` (or none, NULL) has returned; gives `result` back. */
ucs_status_ptr_t st_request_posted(struct st_request *request, ucs_status_ptr_t result);
/* Ends a call that returned a request pointer. */
ucs_status_ptr_t st_ucp_sent_pointer(struct st_ucp_call *call, const struct st_ucp_op *op,
                                     ucs_status_ptr_t result);
/* Ends a call that returned a status. */
ucs_status_t st_ucp_sent_status(struct st_ucp_call *call, const struct st_ucp_op *op,
                                ucs_status_t status);

#endif
