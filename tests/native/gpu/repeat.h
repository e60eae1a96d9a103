/* A program that posts WQEs and rings doorbells, with a NIC and a CUDA of its own. It prints what
 * it posted: the trace must say the same. */
#ifndef REPEAT_H
#define REPEAT_H

#include "gpu/repeater.h" /* to see how far it is: what is judged is the trace */

#define MOST_BYTES 1024 /* of a WQE */

/* What was posted, told in the order of posting. */
struct posted {
    uint64_t raddr, size;
    uint32_t slots, opcode, op, rkey, imm, sges, signaled, qpn, lid;
    int gid; /* last byte of the GID; -1: none */
};

/* wqe.c: builds the n-th kind, written from the tables of the PRM alone. `vector`: 0 none, 1
 * compact, 2 full. */
struct posted wqe_build(uint8_t *bytes, uint32_t kind, uint32_t number, uint32_t qpn,
                        uint16_t index, int vector);
extern const uint32_t wqe_kinds;

/* cuda.c */
extern uint64_t cuda_from, cuda_to; /* this memory is "the GPU's" */
extern bool cuda_closed;            /* copies do not end */
extern uint32_t cuda_rounds;        /* how often copies were waited for */
extern uint32_t cuda_copies;        /* how many were made */
extern uint64_t cuda_gap;           /* an address that is of no allocation */

/* program.c */
#define QUEUES 1024
#define PAGE 4096
#define GPU_BYTES (64 * PAGE)
struct queue {
    uint8_t *ring;
    uint32_t *record; /* doorbell record */
    volatile uint64_t *shadow, *real;
    uint32_t qpn, object, slots, half;
    int vector;
    uint64_t posted, consumed; /* index; consumed: by the NIC */
    struct cq *cq;             /* where its requests complete, or NULL */
    bool is_late; /* its record was first looked at when the program may have written to it */
};
#define IMPATIENT_US 1000u /* how long a doorbell waits for the copier unless a case says otherwise */
extern struct queue queues[QUEUES];
extern uint32_t queue_count;
extern uint8_t *reals;    /* registers of the NIC: a page for each */
extern uint8_t *gpu_ring; /* where the next ring is to be, if not in the host's memory;
                          its doorbell record is on the last page of this */
/* A program that has at most half of its ring outstanding overwrites nothing that is not copied:
 * the sweeper sees to that. One that uses all of it may. */
extern bool greedy;
uint32_t room(const struct queue *q);
/* The NIC goes by the doorbell record that it finds with a doorbell. */
extern bool by_record;
void *nic_run(void *nothing);
void *memory(size_t size);
void await(const uint64_t *counter, uint64_t least);
void make_gpu(void);
/* `own`: a register of its own, else that of the first one. */
struct queue *make_queue(uint32_t slots, int vector, bool own);
/* With this register. */
struct queue *make_queue_at(uint32_t slots, int vector, volatile uint64_t *real);
extern bool record_told;     /* of the next ones: have they a doorbell record? */
extern bool ring_slots_told; /* of the next ones: is the ring known? */
extern uint16_t left_over; /* what the doorbell record of the next one says */
void print_totals(const struct queue *q, const struct st_gpu_qp_totals *totals);
void post(struct queue *q, uint32_t kind, uint32_t number);
void write_record(struct queue *q);
/* The next free index; or (dialect 1) the first eight bytes of the last WQE. */
uint64_t doorbell(struct queue *q, int dialect);
void store(struct queue *q, uint64_t value);
void ring_bell(struct queue *q, int dialect);
const struct st_gpu_qp *qp_of(const struct queue *q);
void finish(struct queue *q);

/* The real register of a shadow; NULL: it is none (any more). */
void *real_of(const void *shadow);
/* The n-th register of one page of the NIC. */
volatile uint64_t *register_of_page(uint32_t n);
/* A queue in the GPU's memory, on which the copier can be made to stand still; others are not. */
struct queue *make_held(void);
/* The copier stands still in a copy, until go_on. */
void stand_still(struct queue *held);
void go_on(void);
/* Rings; returns when the doorbell waits for the copier. */
void ring_to_wait(struct queue *q);
void peeks(void);

/* completions.c */
struct cq {
    uint8_t *bytes;
    uint32_t log_size, stride;
    bool collapsed;
    uint64_t produced;
    struct st_gpu_cq *read;
};
extern struct cq *next_cq; /* of the queues that are made from now on, or NULL */
/* The NIC has executed these slots. */
void complete(struct queue *q, uint64_t from, uint64_t to);

/* A case, with the first of its numbers or all of them. */
struct test_case {
    const char *name;
    void (*run)(void);
    void (*run_count)(uint32_t);
    void (*run_numbers)(const uint32_t n[6]);
    bool alone; /* there is no NIC */
};
/* The last one has no name. */
extern const struct test_case ends_cases[];        /* of lives that end */
extern const struct test_case shares_cases[];      /* of registers that are shared */
extern const struct test_case lives_cases[];       /* of untrue records, of resets */
extern const struct test_case completions_cases[]; /* of completion queues */

_Noreturn void fail(const char *what);

#endif
