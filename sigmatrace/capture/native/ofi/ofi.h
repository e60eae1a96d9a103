/* The libfabric layer, inside: what its files share.
 *
 * Every call of libfabric but fi_fabric goes through tables of functions that hang on objects.
 * Tables of fabrics and domains are static, shared and compared by providers: they are patched
 * in place (patch.c keeps the originals). Tables of endpoints, queues and address vectors are
 * swapped, object by object, for a copy that has the object's state and the original just
 * before it, so that the hot path looks nothing up. */
#ifndef SIGMATRACE_OFI_H
#define SIGMATRACE_OFI_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "sigmatrace.h"

/* --- names of the calls (calls.c) ------------------------------------------------------------- */

#define OFI_CALLS(X)                                                                              \
    X(fi_send) X(fi_sendv) X(fi_sendmsg) X(fi_inject) X(fi_senddata) X(fi_injectdata)             \
    X(fi_tsend) X(fi_tsendv) X(fi_tsendmsg) X(fi_tinject) X(fi_tsenddata) X(fi_tinjectdata)       \
    X(fi_recv) X(fi_recvv) X(fi_recvmsg) X(fi_trecv) X(fi_trecvv) X(fi_trecvmsg)                  \
    X(fi_read) X(fi_readv) X(fi_readmsg) X(fi_write) X(fi_writev) X(fi_writemsg)                  \
    X(fi_inject_write) X(fi_writedata) X(fi_inject_writedata)                                     \
    X(fi_atomic) X(fi_atomicv) X(fi_atomicmsg) X(fi_inject_atomic)                                \
    X(fi_fetch_atomic) X(fi_fetch_atomicv) X(fi_fetch_atomicmsg)                                  \
    X(fi_compare_atomic) X(fi_compare_atomicv) X(fi_compare_atomicmsg)                            \
    X(fi_cq_read) X(fi_cq_readfrom) X(fi_cq_readerr) X(fi_cq_sread) X(fi_cq_sreadfrom)

#define OFI_CALL_ENUM(name) OFI_CALL_##name,
enum ofi_call_name { OFI_CALLS(OFI_CALL_ENUM) OFI_CALL_COUNT };
extern uint8_t ofi_call_number[OFI_CALL_COUNT];

/* --- tables (table.c) ------------------------------------------------------------------------- */

struct ofi_table {
    void *owner;          /* state of the object whose table was swapped */
    const void *original;
    _Alignas(16) size_t ops[];
};

/* One swapped table of an object. */
struct ofi_swap {
    void **place;         /* the pointer inside the fid */
    void (*install)(void *ops);
    struct ofi_table *table;
};

#define OFI_SWAPS_MAX 6

/* All swapped tables of an object. */
struct ofi_swaps {
    void *owner;          /* its state */
    size_t count;
    struct ofi_swap swap[OFI_SWAPS_MAX];
};

static inline struct ofi_table *ofi_table_of(const void *ops)
{
    return (struct ofi_table *)((char *)ops - offsetof(struct ofi_table, ops));
}

/* Replaces a member of a table, when the library's table reaches that far. */
#define OFI_INSTALL(ops, member, function)                                                        \
    do {                                                                                          \
        if (offsetof(__typeof__(*(ops)), member) + sizeof((ops)->member) <= (ops)->size &&        \
            (ops)->member)                                                                        \
            __atomic_store_n(&(ops)->member, (function), __ATOMIC_RELEASE);                       \
    } while (0)

/* Swaps the table that the pointer at `place` points to for a copy that `install` has changed. */
void ofi_swaps_add(struct ofi_swaps *swaps, void *place, void (*install)(void *ops));
/* Swaps again what the library has exchanged. */
void ofi_swaps_in(struct ofi_swaps *swaps);
/* The library has made `to`, a copy of the object `from`: it gets the library's own tables. */
void ofi_swaps_leave(const struct ofi_swaps *swaps, const void *from, void *to);
/* The library's close of the object, in which it sees its own tables: providers compare them
 * there. When it succeeded, the tables are gone too. When it was refused, calls by other threads
 * may have found the library's tables: functions of ours then call these, and count that. */
int ofi_swaps_close(struct ofi_swaps *swaps, struct fid *fid);
void ofi_missed(void);

/* --- tables that objects share (patch.c) ------------------------------------------------------ */

/* Size of a table in bytes, 0 when it is none. */
size_t ofi_table_size(const void *ops);
/* Patches a shared table in place, unless it is patched. False when it cannot be written. */
bool ofi_table_patch(void *ops, void (*install)(void *ops));
/* The functions that stood in a patched table; NULL when it is not one. */
const void *ofi_table_original(const void *ops);

/* --- objects ---------------------------------------------------------------------------------- */

/* Never freed: few, and found by the address of the fid. */
struct ofi_domain {
    struct ofi_domain *next;
    struct fid_domain *fid;
    char *prov, *fabric, *name;
    uint8_t depth;
    bool shared;          /* FI_THREAD_SAFE: several threads may use one endpoint at once */
};

#define OFI_CQ_SOURCES 16 /* endpoints or shared receive contexts that a queue can tell apart */

#define OFI_CQ_CONNECTED (1ULL << 32)
#define OFI_CQ_MIXED (1ULL << 33) /* others received on the queue in its time */
#define OFI_CQ_SHARING (1ULL << 34) /* receives from a shared receive context */

struct ofi_cq {
    struct ofi_swaps swaps;
    enum fi_cq_format format;
    uint32_t references;  /* the open queue itself, and endpoints bound to it */
    uint32_t transmits;   /* endpoints that report what they sent here */
    uint32_t receives;    /* endpoints that report what they received here */
    uint32_t arrivals;    /* without a posted receive */
    uint64_t endpoints[OFI_CQ_SOURCES]; /* object id, and the bits above; 0: free */
    uint32_t contexts[OFI_CQ_SOURCES];  /* spaces of shared receive contexts; 0: free */
    uint16_t space;
    bool takes_receives;
    uint8_t depth;
    bool shared;
    uintptr_t reader;     /* while shared: st_owner_claim */
};

struct ofi_ep {
    struct fid_ep *fid;
    struct ofi_domain *domain;
    struct ofi_swaps swaps;
    struct ofi_cq *tx_cq, *rx_cq;
    uint32_t object;
    uint32_t order;       /* of the next posted receive */
    uint32_t av;          /* object id */
    uint16_t space;       /* of contexts of posted receives; 0: nobody reports them */
    uint16_t srx_space;   /* of the shared receive context that it receives from; 0: none */
    uint32_t srx_object;
    uint8_t depth;
    bool connected, shared, directed, is_srx, selective_tx, selective_rx;
    bool takes_receives;  /* FI_RX_CQ_DATA: a remote write with data uses up a posted receive */
    uint64_t tx_flags, rx_flags; /* default operation flags */
    uintptr_t sender, receiver;  /* while shared: st_owner_claim */
};

/* Completions without flags, of sends and receives mixed: contexts alone tell them apart. */
static inline bool ofi_cq_mixed(const struct ofi_cq *cq)
{
    return cq->format < FI_CQ_FORMAT_MSG && cq->transmits && cq->receives;
}

struct ofi_domain *ofi_domain_find(struct fid_domain *fid);
uint16_t ofi_space_new(void);

void ofi_fabric_wrap(struct fid_fabric *fabric);
void ofi_domain_wrap(struct fid_domain *fid, const struct fi_info *info, uint8_t depth);
void ofi_ep_wrap(struct ofi_domain *domain, struct fid_ep *fid, const struct fi_info *info,
                 const struct ofi_ep *parent, uint8_t depth);
void ofi_srx_wrap(struct ofi_domain *domain, struct fid_ep *fid, uint8_t depth);
struct ofi_ep *ofi_ep_of(struct fid *fid);
void ofi_ep_connected(struct fid *fid);
void ofi_ep_name(struct ofi_ep *ep, bool with_peer);
void ofi_ep_describe(struct ofi_ep *ep, const struct fi_info *info);
void ofi_cq_wrap(struct ofi_domain *domain, struct fid_cq *fid, const struct fi_cq_attr *attr,
                 uint8_t depth);
struct ofi_cq *ofi_cq_of(struct fid *fid);
void ofi_cq_bound(struct ofi_cq *cq, struct ofi_ep *ep, uint64_t flags);
void ofi_cq_unbound(struct ofi_cq *cq, struct ofi_ep *ep, uint64_t flags);
/* The endpoint's receives come from its shared receive context, and end on this queue. */
void ofi_cq_context(struct ofi_cq *cq, const struct ofi_ep *ep);
void ofi_av_wrap(struct ofi_domain *domain, struct fid_av *fid, const struct fi_av_attr *attr);
uint32_t ofi_av_of(const struct fid *fid);
void ofi_eq_wrap(struct fid_eq *fid);
void ofi_mr_wrap(struct fid_domain *fid);
void ofi_msg_install(void *ops);
void ofi_tagged_install(void *ops);
void ofi_rma_install(void *ops);
void ofi_atomic_install(void *ops);

/* First sight of the libfabric that contains `address` (library.c); false: record nothing. */
bool ofi_library_seen(const void *address, const char *how);
extern enum st_mode ofi_mode __attribute__((visibility("hidden")));

/* --- recording of calls (record.c) ------------------------------------------------------------ */

/* The object whose call this thread is inside, innermost: some functions of libfabric reach
 * their siblings through the object's own table, and that is not a second operation. */
extern __thread const void *ofi_busy __attribute__((visibility("hidden")));

static inline uint8_t ofi_deeper(uint8_t a, uint8_t b) { return a > b ? a : b; }

/* A recorded call of an object, from enter to leave. */
struct ofi_frame {
    const void *outer;
    uint8_t depth, nesting; /* of this call, and where it returns to */
    uint8_t flags; /* of its records: ST_NESTED or none */
};

/* `depth`: of the object. Returns false when the call is nested in another of the object: then
 * it is not left. */
static inline bool ofi_enter(struct ofi_frame *frame, const void *object, uint8_t depth)
{
    if (ofi_busy == object)
        return false;
    frame->outer = ofi_busy;
    ofi_busy = object;
    frame->nesting = st_nesting;
    st_nesting = ofi_deeper(st_nesting, depth); /* a thread of the provider: no call encloses it */
    frame->depth = st_enter();
    frame->flags = frame->outer || depth ? ST_NESTED : 0;
    return true;
}

static inline void ofi_leave(const struct ofi_frame *frame)
{
    st_nesting = frame->nesting;
    ofi_busy = frame->outer;
}

/* Records of mode aggregate have no times. */
static inline uint64_t ofi_now(void) { return ofi_mode == ST_MODE_AGGREGATE ? 0 : st_now(); }

struct ofi_call {
    struct ofi_ep *ep; /* NULL: not recorded */
    struct ofi_frame frame;
    uint64_t begin_tsc;
    struct st_channel *channel;
    bool refused; /* the channel was asked for, and recording had stopped */
};

/* An outgoing operation, and what of it the record needs. */
struct ofi_out {
    uint64_t peer, tag, data, flags, size_bytes;
    void *context;
    const struct fi_rma_iov *targets;
    size_t target_count;
    enum ofi_call_name name;
    uint8_t op, kind, channel_flags, record_flags;
    bool has_flags;       /* the call has flags of its own: the endpoint's do not count */
    bool filed;           /* as pending: a completion will be read */
    uint32_t predicted;   /* the ordinal that it was filed under */
};

/* A receive to post. */
struct ofi_in {
    uint64_t peer, tag, ignore, flags, size_bytes;
    void *context;
    enum ofi_call_name name;
    uint8_t kind;
    bool has_flags, filed;
    uint32_t order;
};

/* begin before the library's function and end after it, whatever it returned. */
void ofi_out_begin(struct ofi_call *call, const struct ofi_table *table, struct ofi_out *out);
void ofi_out_end(struct ofi_call *call, struct ofi_out *out, ssize_t result);
void ofi_in_begin(struct ofi_call *call, const struct ofi_table *table, struct ofi_in *in);
void ofi_in_end(struct ofi_call *call, struct ofi_in *in, ssize_t result);

/* Have several threads posted receives on the endpoint or shared receive context of this object
 * id? Asked when a receive ends, when the endpoint itself may be gone. */
bool ofi_several_posted(uint32_t object);

static inline uint64_t ofi_iov_bytes(const struct iovec *iov, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

/* --- posted operations by context (pending.c) ------------------------------------------------- */

enum ofi_direction { OFI_RX, OFI_TX };

/* Contexts may repeat: the oldest is found first; undo takes back the newest. */
bool ofi_pending_put(uint16_t space, enum ofi_direction direction, const void *context,
                     const struct st_pending *value);
void ofi_pending_undo(uint16_t space, enum ofi_direction direction, const void *context);
bool ofi_pending_take(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value);
bool ofi_pending_peek(uint16_t space, enum ofi_direction direction, const void *context,
                      struct st_pending *value);

/* --- completions (arrival.c) ------------------------------------------------------------------ */

/* A completion entry of any format. */
struct ofi_entry {
    void *context;
    uint64_t flags, size_bytes, data, tag, source;
    uint64_t t_tsc;
    int32_t error;
    uint8_t call, depth, record_flags;
    bool has_flags, has_data, has_tag;
};

#define OFI_NO_ORDINAL UINT32_MAX /* of a receive that took none */

void ofi_entry_record(struct ofi_cq *cq, const struct ofi_entry *entry);

/* Bits of st_pending.flags in this layer, beside ST_TAG_UNKNOWN. */
enum ofi_pending_flag {
    OFI_PENDING_MULTI = 1,      /* a buffer for many messages */
    OFI_PENDING_PEEK = 2,       /* only asks whether there is a message */
    OFI_PENDING_CLAIM = 4,      /* and reserves it */
    OFI_PENDING_SHARED = 8,     /* its context was that of another posted one too */
    OFI_PENDING_CONNECTED = 32, /* on a connected endpoint */
};
/* Has any receive been posted that outlives its first completion? */
extern bool ofi_lasting_receives __attribute__((visibility("hidden")));

#endif
