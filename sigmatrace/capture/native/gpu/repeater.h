/* What the sweeper, the copier and those who make and end registers and queue pairs share.
 *
 * States lie in arrays and are never freed. A field is written by the room that its comment names,
 * and read by others with acquire. What the program ends, it asks for (a state, then `attention`);
 * the sweeper lets go of it, then the copier, each at a place between two pieces of its work. */
#ifndef ST_REPEATER_H
#define ST_REPEATER_H

#include "gpu.h"

#define ST_REGISTERS 2048u
#define ST_GPU_QPS 4096u
#define ST_GPU_CQS 4096u
#define ST_RING_SLOTS_MAX 32768u
#define ST_PAGE_MASK 0xfffu
#define ST_LINE __attribute__((aligned(64)))

#define ST_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define ST_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define ST_ADD(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)

static inline bool st_swap_state(uint32_t *state, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(state, &from, to, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_RELAXED);
}

/* Of registers and of queue pairs. ENDING: asked for; ENDED: nobody uses it, whoever asked may
 * free it; ABANDONED: whoever asked does not wait any longer; GONE: and has gone, the last user
 * frees it. */
enum st_swept_state { ST_FREE, ST_MAKING, ST_ACTIVE, ST_ENDING, ST_ENDED, ST_ABANDONED, ST_GONE };

struct st_source;

/* The registers of a page of the NIC. A queue pair may ring on any of them, and tells the page alone. */
struct st_page {
    uint32_t qps;      /* and one for each register on which unknown ones ring */
    uint32_t unproven; /* of them, those which may ring where they have not been seen */
};

/* A doorbell that was taken out of a shadow and is not forwarded yet. */
struct st_seen {
    uint64_t value, t_tsc;
    uint32_t half, flags; /* enum st_doorbell_flag */
};
#define ST_SEEN_MOST 3u /* one half, the other, and what came to the first meanwhile */

struct st_register {
    uint32_t state, uar;
    uint32_t users;   /* of the program */
    uint32_t qps;   /* that ring here: several can overwrite each other's values; all unknown ones
                       count as one */
    bool blind;     /* one of them has no doorbell record: what is overwritten is lost */
    volatile uint64_t *shadow, *real;
    /* Sweeper: those it looks at in each round lie on one line. */
    uint32_t seen_count, seen_first;
    uint64_t until_tsc; /* so long the first of them waits for the copier; 0: it does not */
    struct st_gpu_qp *recent; /* the last one that rang */
    bool alternates;  /* its other half has been used */
    bool strangers;   /* unknown queue pairs have rung here */
    struct st_seen seen[ST_SEEN_MOST];
    struct st_page *of;
    uint8_t *page;    /* the shadow's */
} ST_LINE;

/* What is known of where a queue pair rings. ROAMING: on several registers of its page. */
enum st_binding { ST_GUESSED, ST_PROVEN, ST_ROAMING };

struct st_gpu_qp {
    uint32_t state;
    uint32_t life; /* of this state: what is on its way may be of a former one */
    struct st_gpu_qp_new made;
    const void *name; /* by which a doorbell finds it */
    struct st_gpu_stream stream;
    struct st_source *ring, *record; /* how to read its slots and its doorbell record, or NULL */
    struct st_source *proof; /* its slots, where they are not recorded, too; NULL: not known */
    struct st_page *page;
    /* Sweeper. */
    struct st_register *at ST_LINE; /* where it rings; NULL: that register has gone */
    uint32_t binding;               /* enum st_binding */
    uint64_t forwarded;             /* index */
    uint64_t told;                  /* index that its doorbell record told */
    uint64_t t_tsc;                 /* of the last doorbell */
    uint64_t doorbells;
    bool synthesized; /* the last one was: the program's own may still come */
    bool behind;      /* there was no room to tell the copier */
    bool parted;      /* after the last look at its register */
    uint32_t left;    /* the copier was told of the end: no doorbell will follow */
    /* Copier. */
    uint64_t taken ST_LINE; /* index up to which it was told */
    uint64_t started, copied;
    uint64_t recorded, invalid; /* slots; the invalid ones are recorded, too */
    uint64_t missing;   /* slots that never will be: they are counted as lost */
    uint64_t record_at; /* in its source's buffer */
    uint32_t looked;    /* its doorbell record was read in this life, */
    uint32_t asked;     /* and is to be read now: enum st_asked */
    uint16_t left_over; /* what it said at first, which is of an earlier one */
    bool written;       /* it has said something else */
    uint32_t unread;    /* the program: it may have written to it before the first look */
    uint32_t reading; /* the program's memory, or recording, now */
    uint32_t part_round, part_count;
    uint64_t part_first, part_at;
} ST_LINE;

/* ACTIVE, or ENDING: it is not read any more. */
struct st_gpu_cq {
    uint32_t state;
    uint32_t reading; /* copier: its memory, now */
    struct st_gpu_cq_new made;
    struct st_source *source; /* NULL until a queue pair needs it */
    uint32_t asked;           /* it is to be read at once; 0 when that was done */
    /* Copier. */
    bool failed; /* it could not be read */
    uint32_t round, early;
    uint32_t window; /* elements to be read */
    uint64_t taken;  /* of a ring: index of the next element */
    uint64_t word;   /* of a collapsed one: the end of the last element */
} ST_LINE;

extern struct st_register st_registers[ST_REGISTERS];
extern struct st_gpu_qp st_gpu_qps[ST_GPU_QPS];
extern struct st_gpu_cq st_gpu_cqs[ST_GPU_CQS];
extern uint32_t st_registers_used, st_gpu_qps_used, st_gpu_cqs_used; /* those beyond have never been */
extern uint32_t st_attention;                     /* counts: look at the states again */

/* --- hand-over between sweeper and copier: one writer, one reader -------------------------------- */

#define ST_QUEUE (1u << 14)
/* AHEAD: slots that a doorbell will announce; RUNG: it was forwarded; STRANGER: so was one of a
 * queue pair that is not known; LEFT: none follows; RECORD: what a doorbell record says. */
enum st_message_kind { ST_AHEAD, ST_RUNG, ST_STRANGER, ST_LEFT, ST_RECORD };
struct st_message {
    uint32_t qp, life, kind;
    uint32_t index16;                   /* RECORD */
    struct st_doorbell_record doorbell; /* AHEAD, LEFT: its index and t_tsc */
};
struct st_messages {
    uint64_t in ST_LINE, out_seen;
    uint64_t out ST_LINE, in_seen;
    struct st_message messages[ST_QUEUE] ST_LINE;
};
extern struct st_messages st_to_copier, st_to_sweeper;

static inline bool st_queue_put(struct st_messages *queue, const struct st_message *message)
{
    uint64_t in = queue->in;
    if (in - queue->out_seen == ST_QUEUE) {
        queue->out_seen = ST_LOAD(&queue->out);
        if (in - queue->out_seen == ST_QUEUE)
            return false;
    }
    queue->messages[in % ST_QUEUE] = *message;
    ST_STORE(&queue->in, in + 1);
    return true;
}

static inline bool st_queue_take(struct st_messages *queue, struct st_message *message)
{
    uint64_t out = queue->out;
    if (out == queue->in_seen) {
        queue->in_seen = ST_LOAD(&queue->in);
        if (out == queue->in_seen)
            return false;
    }
    *message = queue->messages[out % ST_QUEUE];
    ST_STORE(&queue->out, out + 1);
    return true;
}

/* --- repeater.c: threads, time ----------------------------------------------------------------------- */

extern uint64_t st_tsc_per_us;
/* Starts both threads, unless that was done. False: it failed, or this is a forked child. */
bool st_repeater_start(void);
/* Are the threads here? Not in a forked child. */
bool st_repeater_here(void);
/* A nap of so many microseconds, errno kept. */
void st_nap(uint32_t us);
/* How often a thread of ours has gone round. */
struct st_beat {
    uint64_t rounds;
    uint64_t vain; /* 1 + the round in which it was last waited for in vain */
};
/* Waits until `done` says so; false: it did not. Not for a thread that was waited for in vain and
 * has not gone round since: what ends while it stands still waits once, not once for each. */
bool st_repeater_wait(struct st_beat *thread, bool (*done)(const void *), const void *what,
                      uint32_t ms);
/* A free one of these states, now MAKING and otherwise as it was left, taken in turn. They begin
 * with `uint32_t state`; those beyond `used` have never been. NULL: none. */
void *st_state_claim(void *states, uint32_t count, size_t size, uint32_t *used, uint32_t *turn);

/* --- register.c, qp.c ------------------------------------------------------------------------------- */

/* The register of a shadow, or NULL. */
struct st_register *st_register_of(const void *shadow);
/* One on the same page of the NIC as this address, or NULL. */
struct st_register *st_register_beside(const void *real);
/* The queue pair that rings with this number on a register of this page, or NULL. */
struct st_gpu_qp *st_gpu_qp_find(const struct st_register *at, uint32_t qpn);
/* Doorbells no longer find it. */
void st_gpu_qp_hide(struct st_gpu_qp *qp);
/* The process ends: all of them, with their totals, until there is no time left. */
void st_gpu_qps_end(uint64_t until_tsc);

/* Can its doorbells be overwritten by others before they are seen? Where its register is another's,
 * too; and, as long as it is not proven for all of a page where they ring, where the page is. */
static inline bool st_gpu_qp_shares(const struct st_gpu_qp *qp, const struct st_register *at)
{
    return ST_LOAD(&at->qps) > 1 || (ST_LOAD(&qp->page->unproven) && ST_LOAD(&qp->page->qps) > 1);
}

/* --- forward.c: the sweeper's, one doorbell ------------------------------------------------------------- */

/* Forwards a doorbell that moves the QP's index by `slots`; flags: enum st_doorbell_flag. False: it
 * has to wait for the copier, and is to be tried again, before any other of its register. */
bool st_forward(struct st_gpu_qp *qp, struct st_register *at, const struct st_seen *seen,
                uint32_t slots, uint32_t flags);
/* That of a queue pair which is not known. */
void st_forward_unknown(struct st_register *at, const struct st_seen *seen);
/* How long a doorbell waits for the copier at most. */
extern uint32_t st_patience_us;
/* Tells the copier of those for which there was no room in the queue. */
void st_forward_catch_up(void);

/* --- sweeper.c, copier.c ------------------------------------------------------------------------------- */

void *st_sweeper_run(void *nothing);
extern struct st_beat st_sweeper_beat;
extern uint32_t st_sweeper_waits; /* a doorbell waits for the copier */
/* Where a register's doorbells can be stored to: its two halves. */
static inline volatile uint64_t *st_half(volatile uint64_t *word, uint32_t half)
{
    return (volatile uint64_t *)((uintptr_t)word ^ (half ? ST_GPU_ALTERNATE : 0));
}

void *st_copier_run(void *nothing);
extern struct st_beat st_copier_beat;
extern uint64_t st_copier_done; /* messages that are recorded */
extern uint32_t st_hurry;       /* counts: somebody waits, do not gather */

/* --- ring.c: the copier's, slots ------------------------------------------------------------------------- */

/* Copies slots of the ring to `at` in the source's buffer, in at most two pieces. */
bool st_ring_start(struct st_gpu_qp *qp, struct st_source *source, uint64_t at, uint64_t index,
                   uint32_t count);
/* Do these slots hold whole WQEs of this QP, with these indices? Where its ring is not known, it is
 * taken for granted. To be called while no copy is under way. */
bool st_ring_holds(struct st_gpu_qp *qp, uint64_t index, uint32_t count);

/* --- dbrec.c: the copier's, doorbell records ------------------------------------------------------------ */

/* Set by others: a register with several QPs was used: look at the records. */
extern uint32_t st_changed;
extern uint64_t st_records_rounds; /* in which they were looked at */
/* Of one QP's record, and whether there are such: READ, once it was read after it was asked for. */
enum st_asked { ST_READ, ST_ASKED, ST_ANSWERING };
extern uint32_t st_asked;
/* Is it time to read them? */
bool st_records_due(void);
/* Reads them; while no copy is under way. */
void st_records_look(void);

/* --- cq.c, cqe.c, cq_read.c: the copier's, completions -------------------------------------------------------------- */

#define ST_CQES_LEAST 16u /* elements of a ring that are read at a time */
/* A queue pair begins that completes here. False: its completions cannot be seen. */
bool st_gpu_cq_begin(struct st_gpu_cq *cq);
extern uint32_t st_cqes_asked;  /* counts: one is to be read at once */
extern uint32_t st_cqes_listed; /* queue pairs of which something may be outstanding */
extern uint64_t st_cqes_looks;
/* A doorbell, and then what is known of the slots before an index: `signaled` as in st_gpu_walked. */
void st_cqes_rung(struct st_gpu_qp *qp, uint64_t index, uint64_t t_tsc);
void st_cqes_expect(struct st_gpu_qp *qp, uint64_t index, uint64_t signaled);
/* Is it time to look? */
bool st_cqes_due(void);
/* Reads what completed; while no copy is under way. Of a queue pair that ends: all. */
void st_cqes_look(void);
void st_cqes_look_last(struct st_gpu_qp *qp);
/* At the end of the process, by others: waits for a last look. */
void st_cqes_finish(void);

/* --- source.c: reading the program's memory ------------------------------------------------------------ */

#define ST_SOURCE_SLOT_BYTES (ST_RING_SLOTS_MAX * ST_GPU_SLOT_BYTES)
/* Behind them, room for doorbell records: pages on which they lie. */
#define ST_SOURCE_RECORD_PAGES 64u
/* Where the memory at an address can be read; made on first use of a context. NULL: it cannot. */
struct st_source *st_source_of(uint64_t address);
/* Copies to `at` in the source's buffer; done at once, or at the next st_sources_wait. */
bool st_source_start(struct st_source *source, uint64_t at, uint64_t from, uint64_t size);
/* Room in the buffer for this many bytes of slots; UINT64_MAX: full. */
uint64_t st_source_room(struct st_source *source, uint64_t size);
/* False when a copy of this source failed. */
bool st_source_wait(struct st_source *source);
const uint8_t *st_source_data(const struct st_source *source, uint64_t at);
/* Forgets what is in the buffers. */
void st_sources_clear(void);

/* --- monitor.c ---------------------------------------------------------------------------------------- */

/* Waits while *word is `seen`, at most until this TSC. */
void st_monitor_wait(const volatile uint64_t *word, uint64_t seen, uint64_t until_tsc);
/* What a CPU has whose CPUID says so. */
enum st_monitor_way { ST_MONITOR_PAUSE, ST_MONITOR_UMWAIT, ST_MONITOR_MWAITX };
enum st_monitor_way st_monitor_choose(uint32_t leaf_7_ecx, uint32_t leaf_80000001_ecx);
/* Can the CPU wait for a store? */
bool st_monitor_has(void);

#endif
