/* The verbs layer: what its files share. docs/verbs.md says what is recorded and why.
 *
 * A wrapper finds the state of the handle that it was called with (device context, queue pair,
 * completion queue) in a table; the state knows the provider's own functions. Nothing here
 * takes a lock. States live in arrays and are never freed, so that a thread that polls a queue
 * while another destroys a queue pair reads valid memory. */
#ifndef ST_VERBS_H
#define ST_VERBS_H

#include "sigmatrace.h"
#include "st_handle.h"

#include <errno.h>
#include <infiniband/verbs.h>

#define ST_CALLER __builtin_return_address(0)
#define ST_LIKELY(x) __builtin_expect(!!(x), 1)
#define ST_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Set once by the constructor: is the layer chosen; does the mode record requests and
 * completions; does it read the time. */
extern bool st_verbs_on, st_verbs_full, st_verbs_timed;

static inline uint64_t st_verbs_now(void) { return st_verbs_timed ? st_now() : 0; }

/* --- library.c: numbers for the `call` field ------------------------------------------------- */

enum st_verbs_call {
    ST_CALL_POST_SEND,
    ST_CALL_WR_COMPLETE,
    ST_CALL_BIND_MW,
    ST_CALL_POLL_CQ,
    ST_CALL_START_POLL,
    ST_CALL_NEXT_POLL,
    ST_CALLS
};
extern uint8_t st_verbs_calls[ST_CALLS];

/* --- library.c: the real functions --------------------------------------------------------------- */

/* Wrapped functions of libibverbs, with the version node that the wrapper stands in for. */
#define ST_VERBS_WRAPPED(X)                                                                        \
    X(ibv_open_device, "IBVERBS_1.1") X(ibv_close_device, "IBVERBS_1.1")                           \
    X(ibv_import_device, "IBVERBS_1.10") X(ibv_alloc_pd, "IBVERBS_1.1")                            \
    X(ibv_dealloc_pd, "IBVERBS_1.1") X(ibv_unimport_pd, "IBVERBS_1.10")                            \
    X(ibv_create_comp_channel, "IBVERBS_1.0") X(ibv_destroy_comp_channel, "IBVERBS_1.0")           \
    X(ibv_create_cq, "IBVERBS_1.1")                                                                \
    X(ibv_destroy_cq, "IBVERBS_1.1") X(ibv_create_srq, "IBVERBS_1.1")                              \
    X(ibv_destroy_srq, "IBVERBS_1.1") X(ibv_create_qp, "IBVERBS_1.1")                              \
    X(ibv_modify_qp, "IBVERBS_1.1") X(ibv_query_qp, "IBVERBS_1.1")                                 \
    X(ibv_set_ece, "IBVERBS_1.10") X(ibv_query_ece, "IBVERBS_1.10")                                \
    X(ibv_destroy_qp, "IBVERBS_1.1")                                                               \
    X(ibv_qp_to_qp_ex, "IBVERBS_1.6") X(ibv_create_ah, "IBVERBS_1.1")                              \
    X(ibv_destroy_ah, "IBVERBS_1.1") X(ibv_reg_mr, "IBVERBS_1.1")                                  \
    X(ibv_reg_mr_iova, "IBVERBS_1.7") X(ibv_reg_mr_iova2, "IBVERBS_1.8")                           \
    X(ibv_reg_dmabuf_mr, "IBVERBS_1.12") X(ibv_rereg_mr, "IBVERBS_1.1")                            \
    X(ibv_dereg_mr, "IBVERBS_1.1")
#define ST_VERBS_CALLED(X)                                                                         \
    X(ibv_query_device, "IBVERBS_1.1") X(ibv_query_port, "IBVERBS_1.1")                            \
    X(ibv_query_gid, "IBVERBS_1.1") X(ibv_get_device_guid, "IBVERBS_1.1")

/* These are macros of the header as well. */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/* One copy of libibverbs in the process. */
struct st_verbs_library {
#define ST_FIELD(name, version) __typeof__(&name) name;
    ST_VERBS_WRAPPED(ST_FIELD)
    ST_VERBS_CALLED(ST_FIELD)
#undef ST_FIELD
    struct st_verbs_library *next;
};
/* The copy that the code at this return address uses; NULL when there is none. */
struct st_verbs_library *st_verbs_library(const void *caller);
/* The function that the code at this return address would get by this name: in its own scope, else
 * from `file` where that is loaded, else wherever it is; NULL: there is none. */
void *st_verbs_look_up(const void *caller, const char *file, const char *name,
                       const char *version);

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
extern struct st_handle_table st_verbs_tables[ST_VERBS_TABLES];

static inline void *st_verbs_find(enum st_verbs_table table, const void *handle)
{
    struct st_handle *home = st_handle_at(&st_verbs_tables[table], (uintptr_t)handle, 0);
    if (ST_LIKELY(__atomic_load_n(&home->handle, __ATOMIC_ACQUIRE) == (uintptr_t)handle)) {
        void *value = __atomic_load_n(&home->value, __ATOMIC_ACQUIRE);
        if (ST_LIKELY(value != NULL))
            return value;
    }
    return st_handle_find(&st_verbs_tables[table], handle);
}

/* Adds, or replaces what an object of this address left behind. False: full, and counted. */
bool st_verbs_put(enum st_verbs_table table, const void *handle, void *value);
/* Removes it; NULL when it was not there. */
void *st_verbs_take(enum st_verbs_table table, const void *handle);
/* Removes this value alone: false when it is not there any more. What the library has ended is
 * removed so, afterwards, as it may refuse to end it; its address may by then be another's. */
static inline bool st_verbs_remove(enum st_verbs_table table, const void *handle, void *value)
{
    return st_handle_remove(&st_verbs_tables[table], handle, value);
}

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

/* A state from an array of `count` states of `size` bytes, each beginning with its `taken`
 * word; NULL when all are in use (counted). It holds what its former user left in it. They are
 * taken in turn, so that one that was given back rests before it is used again. */
struct st_verbs_pool {
    uint32_t turn;
    bool full; /* since the last one was given back */
};
void *st_verbs_state(void *array, struct st_verbs_pool *pool, uint32_t count, size_t size);
void st_verbs_state_give(void *state, struct st_verbs_pool *pool);

/* In the child of a fork everything is counted from 0, as the core does with its channels. */
void st_verbs_makings_forked(void);
void st_verbs_qps_forked(void);
void st_verbs_queues_forked(void);

/* --- states ---------------------------------------------------------------------------------------- */

/* Wrapped members of struct verbs_context. */
#define ST_VERBS_EXTENDED(X)                                                                       \
    X(create_qp_ex) X(create_cq_ex) X(create_srq_ex) X(open_qp) X(reg_dm_mr) X(alloc_null_mr)      \
    X(alloc_parent_domain) X(open_xrcd) X(close_xrcd)

struct st_verbs_context {
    uint32_t taken, index;
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
    uint32_t posted;
    struct st_verbs_cq *xrc_cq; /* XRC: where it completes */
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
    uint32_t pd, xrcd; /* object ids, 0: none */
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    uint64_t send_ops;  /* as asked for at creation */
    uint32_t max_send, max_receive;
    struct st_verbs_extended *extended;
};

static inline struct st_verbs_qp *st_verbs_qp_of(const struct ibv_qp *qp)
{
    return st_verbs_find(ST_VERBS_HOT, qp);
}

/* The handle of a queue pair's number: no address has the highest bit. */
static inline const void *st_verbs_number(const struct st_verbs_context *context, uint32_t qpn)
{
    return (const void *)(uintptr_t)(1ull << 63 | (uint64_t)context->index << 28 |
                                     (uint64_t)qpn << 4);
}

/* --- context.c --------------------------------------------------------------------------------- */

/* The state of a context; made when it was opened behind our back. NULL: not traced. */
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
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, handle);                        \
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
/* `t_tsc`: before the call that ended it, as the number may be given to another at once. */
void st_verbs_connection_end(struct st_verbs_qp *state, uint64_t t_tsc);

/* --- outstanding.c --------------------------------------------------------------------------------- */

/* Room for what may be outstanding; forgets what was. */
void st_verbs_queue_begin(struct st_verbs_queue *queue, uint32_t size);

/* Takes the positions of `count` requests that are about to be posted. */
static inline uint32_t st_verbs_positions(struct st_verbs_queue *queue, uint32_t count)
{
    return __atomic_fetch_add(&queue->posted, count, __ATOMIC_RELAXED);
}

static inline void st_verbs_outstanding(struct st_verbs_queue *queue, uint32_t position,
                                        uint64_t t_tsc, uint64_t wr_id, uint8_t opcode,
                                        bool signaled)
{
    struct st_verbs_request *r = &queue->requests[position & queue->mask];
    /* Others may look for theirs here: until its position is there, it is not written down. */
    __atomic_store_n(&r->position, ST_NO_POSITION, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    r->wr_id = wr_id;
    r->t_tsc = t_tsc;
    r->opcode = opcode;
    r->signaled = signaled;
    r->done = false;
    __atomic_store_n(&r->position, position, __ATOMIC_RELEASE);
}

/* The provider took only `accepted` of `count` requests from `position` on. */
void st_verbs_refused(struct st_verbs_queue *queue, uint32_t position, uint32_t count,
                      uint32_t accepted);

struct st_verbs_match {
    uint32_t position, first;
    uint64_t posted_tsc;
    uint8_t opcode;
};
#define ST_VERBS_NO_MATCH {ST_NO_POSITION, ST_NO_POSITION, 0, ST_OPCODE_RECEIVE}
/* Finds the request of a completion and retires it; false when it cannot be told which it is
 * (`match` then says "not known"). `several`: threads post or poll at once, so that numbers and
 * completions may come in another order. */
bool st_verbs_retire(struct st_verbs_queue *queue, uint64_t wr_id, bool failed, bool several,
                     struct st_verbs_match *match);
/* Would it be found? */
bool st_verbs_expects(struct st_verbs_queue *queue, uint64_t wr_id, bool failed);

/* --- send.c ---------------------------------------------------------------------------------------- */

/* A request, however it was posted. */
struct st_verbs_wr {
    uint64_t wr_id, raddr, size;
    union {
        struct ibv_ah *ah; /* datagrams */
        struct ibv_mw *mw; /* IBV_WR_BIND_MW */
    };
    uint32_t rkey, imm;
    uint32_t number; /* of the receiver: datagrams, its queue pair; XRC, its shared queue */
    uint32_t sges;
    uint64_t length;       /* IBV_WR_BIND_MW */
    uint32_t access;       /* likewise */
    uint8_t opcode, flags; /* flags: enum ibv_send_flags */
};
/* What is equal for all requests of one call. */
struct st_verbs_post {
    struct st_verbs_qp *qp;
    uint64_t t_tsc;
    enum st_verbs_call call;
    uint8_t depth, flags; /* flags of the op record */
};
/* Records a request that was accepted. */
void st_verbs_posted(const struct st_verbs_post *post, const struct st_verbs_wr *wr,
                     uint32_t position);
/* ibv_wc_opcode of a request's completion, or ST_OPCODE_UNKNOWN. */
uint8_t st_verbs_wc_opcode(uint8_t wr_opcode);

/* --- window.c ---------------------------------------------------------------------------------------- */

/* A window is bound; to nothing where `length` is 0. */
void st_verbs_window_bound(struct st_verbs_context *context, struct ibv_mw *mw, uint32_t rkey,
                           uint64_t address, uint64_t length, uint32_t access);
void st_verbs_window_invalidated(struct st_verbs_context *context, uint32_t rkey);

#endif
