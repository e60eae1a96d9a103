/* The verbs layer: what its files share. docs/verbs.md says what is recorded and why.
 *
 * A wrapper finds the state of the handle that it was called with (device context, queue pair,
 * completion queue) in a table; the state knows the provider's own functions. Nothing here
 * takes a lock. States live in arrays and are never freed, so that a thread that polls a queue
 * while another destroys a queue pair reads valid memory. */
#ifndef ST_VERBS_H
#define ST_VERBS_H

#include "library.h"
#include "st_handle.h"

#include <errno.h>

#define ST_CALLER __builtin_return_address(0)
#define ST_LIKELY(x) __builtin_expect(!!(x), 1)
#define ST_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Set once by the constructor: is the layer chosen; does the mode record requests and
 * completions; does it read the time. */
extern bool st_verbs_on, st_verbs_full, st_verbs_timed;

static inline uint64_t st_verbs_now(void) { return st_verbs_timed ? st_now() : 0; }

/* The n-th child of a child; what is described belongs to one process, and the next one's file says
 * it anew when it is used there. */
extern uint32_t st_verbs_life;
/* Was it described in this process? False: it is to be, by the caller. */
static inline bool st_verbs_told(uint32_t *life)
{
    uint32_t now = st_verbs_life;
    return ST_LIKELY(__atomic_load_n(life, __ATOMIC_RELAXED) == now) ||
           __atomic_exchange_n(life, now, __ATOMIC_RELAXED) == now;
}

/* --- the calling thread ---------------------------------------------------------------------- */

/* libibverbs calls itself through the PLT: a wrapper inside another one passes the call on. */
extern __thread uint32_t st_verbs_inside;
/* Its address names the calling thread. */
extern __thread char st_verbs_self;

/* Before the library is called: st_owner_claim of what this thread uses. */
static inline void st_verbs_claim(uintptr_t *owner)
{
    if (ST_UNLIKELY(__atomic_load_n(owner, __ATOMIC_RELAXED) != (uintptr_t)&st_verbs_self))
        st_owner_claim(owner, &st_verbs_self);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* --- table.c: states by handle ------------------------------------------------------------------ */

/* Contexts, queues and queue pairs by handle; queue pairs by number; and, apart because they may be
 * many, the object ids of memory regions and address handles. */
enum st_verbs_table { ST_VERBS_HOT, ST_VERBS_NUMBERS, ST_VERBS_COLD, ST_VERBS_TABLES };
#define ST_VERBS_CONTEXTS (1u << 10)
#define ST_VERBS_QPS (ST_HANDLES / 2)
#define ST_VERBS_CQS (1u << 14)
#define ST_VERBS_SRQS (1u << 12)
extern struct st_handle_table st_verbs_hot;
extern struct st_handle_table *st_verbs_others[ST_VERBS_TABLES]; /* NULL until something is in it */

static inline struct st_handle_table *st_verbs_table(enum st_verbs_table table)
{
    return table == ST_VERBS_HOT ? &st_verbs_hot
                                 : __atomic_load_n(&st_verbs_others[table], __ATOMIC_ACQUIRE);
}

static inline void *st_verbs_find(enum st_verbs_table table, const void *handle)
{
    struct st_handle_table *in = st_verbs_table(table);
    if (ST_UNLIKELY(!in))
        return NULL;
    struct st_handle *home = st_handle_at(in, (uintptr_t)handle, 0);
    if (ST_LIKELY(__atomic_load_n(&home->handle, __ATOMIC_ACQUIRE) == (uintptr_t)handle)) {
        void *value = __atomic_load_n(&home->value, __ATOMIC_ACQUIRE);
        if (ST_LIKELY(value != NULL))
            return value;
    }
    return st_handle_find(in, handle);
}

/* Adds, or replaces what an object of this address left behind. False: full, and counted. */
bool st_verbs_put(enum st_verbs_table table, const void *handle, void *value);
/* Removes it; NULL when it was not there. */
void *st_verbs_take(enum st_verbs_table table, const void *handle);
/* Removes this value alone: false when it is not there any more. What the library has ended is
 * removed so, afterwards, as it may refuse to end it; its address may by then be another's. */
static inline bool st_verbs_remove(enum st_verbs_table table, const void *handle, void *value)
{
    struct st_handle_table *in = st_verbs_table(table);
    return in && st_handle_remove(in, handle, value);
}

/* What there was no room for stays untraced to its end: it is not taken in when it is named again, as
 * its numbers would begin in the midst. */
void st_verbs_leave_out(const void *handle);
bool st_verbs_left_out(const void *handle);
void st_verbs_left_out_ended(const void *handle);

/* Of what has no state but an object's id: asked before the library ends it. */
struct st_verbs_ending {
    void *id;
    uint64_t t_tsc;
};
struct st_verbs_ending st_verbs_ending(const void *handle);
void st_verbs_ended(const char *type, const void *handle, const struct st_verbs_ending *ending,
                    int result);
/* The object's end. */
void st_verbs_closed(const char *type, const void *id, uint64_t t_tsc);

/* What is made when it is first seen is made by one thread; another that comes meanwhile waits a
 * short while. False: still being made, and to be left alone. */
enum st_verbs_making {
    ST_VERBS_MAKE_CONTEXT,
    ST_VERBS_MAKE_DEVICE,
    ST_VERBS_MAKE_QP,
    ST_VERBS_MAKE_CQ,
    ST_VERBS_MAKE_EXTENDED,
    ST_VERBS_MAKE_OBJECT,
    ST_VERBS_MAKINGS
};
bool st_verbs_make_begin(enum st_verbs_making what, const void *handle);
void st_verbs_make_end(enum st_verbs_making what, const void *handle);

/* States of one kind: each begins with its `taken` word. Their memory comes in pieces when it is
 * needed, so that a process without any has none to lock (mlockall), and is never given back. */
#define ST_VERBS_PIECE 256u
struct st_verbs_pool {
    uint32_t size, most; /* bytes of a state; states, of which there may be 65536 */
    uint32_t turn, used, mapped;
    bool full; /* since the last one was given back */
    uint8_t *pieces[ST_VERBS_QPS / ST_VERBS_PIECE];
};
/* A free one; NULL when all are in use (counted). It holds what its former user left in it. They are
 * taken in turn, at least half of them free, so that one that was given back rests before it is used
 * again. */
void *st_verbs_state(struct st_verbs_pool *pool);
void st_verbs_state_give(void *state, struct st_verbs_pool *pool);
/* The i-th one, used or not; NULL from the first one on that there is not. */
static inline void *st_verbs_state_at(const struct st_verbs_pool *pool, uint32_t i)
{
    if (i >= __atomic_load_n(&pool->mapped, __ATOMIC_ACQUIRE))
        return NULL;
    return pool->pieces[i / ST_VERBS_PIECE] + (size_t)(i % ST_VERBS_PIECE) * pool->size;
}

/* In the child of a fork everything is counted from 0, as the core does with its channels. */
void st_verbs_makings_forked(void);
void st_verbs_devices_forked(void);
void st_verbs_qps_forked(void);
void st_verbs_queues_forked(void);

/* --- states ---------------------------------------------------------------------------------------- */

/* Wrapped members of struct verbs_context. */
#define ST_VERBS_EXTENDED(X)                                                                       \
    X(create_qp_ex) X(create_cq_ex) X(create_srq_ex) X(open_qp) X(reg_dm_mr) X(alloc_null_mr)      \
    X(alloc_parent_domain) X(open_xrcd) X(close_xrcd)

struct st_verbs_context {
    uint32_t taken, index, life;
    uint32_t device; /* object id */
    struct ibv_context *handle;
    struct st_verbs_library *library;
    struct ibv_context_ops ops; /* the provider's own */
#define ST_FIELD(name) __typeof__(((struct verbs_context *)0)->name) name;
    ST_VERBS_EXTENDED(ST_FIELD)
#undef ST_FIELD
};

/* By what came of it. */
enum st_verbs_poll { ST_VERBS_POLL_EMPTY, ST_VERBS_POLL_SOME, ST_VERBS_POLL_FAILED, ST_VERBS_POLLS };

struct st_verbs_cq {
    uint32_t taken, id;
    struct ibv_cq *handle;
    uint32_t life;
    uint32_t srqn, xrc_srqs; /* of the XRC receive queues that complete here: number, how many */
    bool xrc_mixed;          /* several at once: a completion does not tell which */
    int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
    struct st_verbs_context *context;
    uintptr_t owner;      /* threads that poll it: st_owner_claim */
    uint64_t polls[ST_VERBS_POLLS];   /* by the first thread while it is alone */
    uint64_t further[ST_VERBS_POLLS]; /* by all threads afterwards */
    __typeof__(((struct ibv_cq_ex *)0)->start_poll) start_poll;
    __typeof__(((struct ibv_cq_ex *)0)->next_poll) next_poll;
};

struct st_verbs_srq {
    uint32_t taken, id;
    uint32_t posted, life;
    struct ibv_srq *handle;
    struct st_verbs_context *context;
    struct ibv_srq_init_attr_ex attr; /* its mask has been applied */
    struct st_verbs_cq *xrc_cq; /* XRC: where it completes */
    uint64_t *seen;             /* mode full: st_verbs_shared_put; NULL: there is no memory */
    int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
};

/* A request that is outstanding, mode full. */
struct st_verbs_request {
    uint64_t wr_id, t_tsc;
    uint32_t position;
    uint8_t opcode; /* enum ibv_wr_opcode, or ST_OPCODE_RECEIVE */
    bool signaled, done;
};
/* One of the two queues of a queue pair. */
struct st_verbs_queue {
    uintptr_t owner; /* threads that post to it: st_owner_claim */
    struct st_verbs_request *requests; /* mode full: of position & mask */
    uint32_t mask;
    uint32_t posted; /* requests so far: the next position */
    uint32_t cursor; /* before it, all are completed */
    bool failing;    /* the one before the cursor failed: each one from there on completes */
};

struct st_verbs_extended;

struct st_verbs_qp {
    uint32_t taken, id; /* object of the present connection */
    uint32_t life;
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
    struct st_channel *message, *one_sided, *in; /* connected; NULL until used */
    struct st_verbs_queue send, receive;
    uint32_t qpn, received; /* receives completed */
    bool addressed; /* each message names its destination: datagrams, XRC */
    bool datagram, signal_all, shared_receive;
    bool begun, ended; /* of the present connection: past RESET, back in RESET */
    uint8_t port;
    struct st_verbs_cq *send_cq, *receive_cq;
    struct st_verbs_srq *srq;
    struct st_verbs_context *context;
    struct ibv_qp *handle;
    enum ibv_qp_type type;
    enum ibv_qp_state now;
    uint32_t pd; /* object id, 0: none */
    struct ibv_xrcd *xrcd;
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    uint64_t send_ops;  /* as asked for at creation */
    uint32_t max_send, max_receive;
    struct st_verbs_extended *extended;
};

/* qp.c: a queue pair that a child inherited is a connection of its own there, from 0. */
void st_verbs_qp_inherited(struct st_verbs_qp *qp);

static inline struct st_verbs_qp *st_verbs_qp_in(enum st_verbs_table table, const void *handle)
{
    struct st_verbs_qp *qp = st_verbs_find(table, handle);
    if (qp && ST_UNLIKELY(__atomic_load_n(&qp->life, __ATOMIC_ACQUIRE) != st_verbs_life))
        st_verbs_qp_inherited(qp);
    return qp;
}

static inline struct st_verbs_qp *st_verbs_qp_of(const struct ibv_qp *qp)
{
    return st_verbs_qp_in(ST_VERBS_HOT, qp);
}

/* The handle of a queue pair's number: no address has the highest bit. */
static inline const void *st_verbs_number(const struct st_verbs_context *context, uint32_t qpn)
{
    return (const void *)(uintptr_t)(1ull << 63 | (uint64_t)context->index << 28 |
                                     (uint64_t)qpn << 4);
}

/* --- context.c --------------------------------------------------------------------------------- */

/* The state of a context, if there is one. Its device is described in this process. */
struct st_verbs_context *st_verbs_context_known(struct ibv_context *context);
/* The same; made when it was opened behind our back. NULL: not traced. */
struct st_verbs_context *st_verbs_context_of(struct ibv_context *context, const void *caller);
/* The provider's own functions, for a call on an object that has no state, as it is one too many or
 * its device is not traced; counted. NULL: they are not known. */
const struct ibv_context_ops *st_verbs_pass_on(struct ibv_context *context, const char *what);
#define ST_VERBS_PASS_ON(handle, what, call, none)                                                 \
    __extension__({                                                                                \
        const struct ibv_context_ops *ops = st_verbs_pass_on((handle)->context, what);             \
        ops ? ops->call : none;                                                                    \
    })
#define ST_VERBS_NO_QP "verbs: requests of a queue pair that is not known"
/* The library for a call on an object of this context. */
struct st_verbs_library *st_verbs_library_of(struct ibv_context *context, const void *caller);
/* device.c: the object of an opened context's device; the LID of a port. */
uint32_t st_verbs_device(struct ibv_context *context, struct st_verbs_library *library);
uint32_t st_verbs_lid(struct st_verbs_context *context, uint32_t port);

/* A wrapper begins with the library that the call goes on to, and the state of the context it is
 * made on. `context` is NULL when nothing is to be recorded: the context is not traced, or
 * libibverbs makes the call itself. */
#define ST_VERBS_ENTER(handle, name, none)                                                         \
    struct st_verbs_context *context = st_verbs_context_of(handle, ST_CALLER);                     \
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);   \
    if (!library || !library->name) {                                                              \
        errno = ENOSYS;                                                                            \
        return none;                                                                               \
    }                                                                                              \
    if (st_verbs_inside)                                                                           \
        context = NULL;
/* The same of a function in a context's table: `context` has the provider's own. */
#define ST_VERBS_ENTER_TABLE(handle, none)                                                         \
    struct st_verbs_context *context = st_verbs_context_known(handle);                             \
    if (!context) {                                                                                \
        errno = ENOSYS;                                                                            \
        return none;                                                                               \
    }
/* The library's own function: what it calls in turn is not the program's. */
#define ST_VERBS_INSIDE(call)                                                                      \
    __extension__({                                                                                \
        st_verbs_inside++;                                                                         \
        __auto_type result_ = (call);                                                              \
        st_verbs_inside--;                                                                         \
        result_;                                                                                   \
    })

/* --- domain.c: objects of handles, made when they were not seen before; 0 of NULL --------------- */

uint32_t st_verbs_pd(struct ibv_pd *pd, struct st_verbs_context *context);
uint32_t st_verbs_xrcd(struct ibv_xrcd *xrcd, struct st_verbs_context *context);
uint32_t st_verbs_channel(struct ibv_comp_channel *channel, struct st_verbs_context *context);

/* The object of an address handle; 0 when it is not known. */
static inline uint32_t st_verbs_ah(const struct ibv_ah *ah)
{
    return (uint32_t)(uintptr_t)st_verbs_find(ST_VERBS_COLD, ah);
}

/* --- domain.c, queue.c, qp.c, memory.c, window.c: functions for a context's table ---------------- */

struct ibv_pd *st_verbs_alloc_parent_domain(struct ibv_context *,
                                            struct ibv_parent_domain_init_attr *);
struct ibv_xrcd *st_verbs_open_xrcd(struct ibv_context *, struct ibv_xrcd_init_attr *);
int st_verbs_close_xrcd(struct ibv_xrcd *);
struct ibv_mr *st_verbs_alloc_null_mr(struct ibv_pd *);
int st_verbs_dealloc_mw(struct ibv_mw *);

struct ibv_cq_ex *st_verbs_create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);
struct ibv_srq *st_verbs_create_srq_ex(struct ibv_context *, struct ibv_srq_init_attr_ex *);
struct ibv_qp *st_verbs_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
struct ibv_qp *st_verbs_open_qp(struct ibv_context *, struct ibv_qp_open_attr *);
struct ibv_mr *st_verbs_reg_dm_mr(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
int st_verbs_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
int st_verbs_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int st_verbs_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
int st_verbs_bind_mw(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
int st_verbs_poll_cq(struct ibv_cq *, int, struct ibv_wc *);

/* The state of a completion queue; made when it was created behind our back, or NULL. */
struct st_verbs_cq *st_verbs_cq_of(struct ibv_cq *cq);
/* The object of a queue, described in this process; 0 of NULL. */
uint32_t st_verbs_cq_id(struct st_verbs_cq *state);
uint32_t st_verbs_srq_id(struct st_verbs_srq *state);
/* Wraps the polling of an extended completion queue. */
void st_verbs_cq_extend(struct ibv_cq_ex *cq, struct st_verbs_cq *state);
/* The state of a queue pair, made when it was created behind our back, or NULL. */
struct st_verbs_qp *st_verbs_qp_adopt(struct ibv_qp *qp);
/* Wraps the functions of an extended queue pair. */
void st_verbs_qp_extend(struct ibv_qp_ex *qp, struct st_verbs_qp *state);
/* Gives back what was made for it. */
void st_verbs_qp_unextend(struct st_verbs_qp *state);

/* --- connection.c ---------------------------------------------------------------------------------- */

void st_verbs_connection_begin(struct st_verbs_qp *state, enum ibv_qp_state now);
/* What is known of a connection that was made elsewhere: attributes as a query tells them. */
void st_verbs_connection_known(struct st_verbs_qp *state, const struct ibv_qp_attr *attr);
/* `t_tsc`: before the call that ended it, as the number may be given to another at once. */
void st_verbs_connection_end(struct st_verbs_qp *state, uint64_t t_tsc);

#endif
