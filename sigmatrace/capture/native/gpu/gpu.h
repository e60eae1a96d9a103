/* The layers mlx5dv and cuda: what the files of this shim share. docs/gpu.md says what is
 * recorded and why. Three rooms: the wrappers (program's threads), the sweeper thread, which is
 * the only writer of real registers, and the copier thread. Nobody waits for a program's thread;
 * a program's thread waits for the others only where it creates or destroys an object. */
#ifndef ST_GPU_H
#define ST_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "sigmatrace.h"

#define ST_GPU_SLOT_BYTES 64u
#define ST_GPU_ALTERNATE 0x100u /* distance to the other half of a register */
#define ST_GPU_CALLER __builtin_return_address(0)

/* Set once by the constructor. Both layers: registers can have shadows. */
extern bool st_mlx5dv_on, st_cuda_on;

/* How doorbells and copies are ordered: SIGMATRACE_DOORBELL, _BATCH, SIGMATRACE_POLL_CPUS. */
enum st_doorbell_order {
    ST_FORWARD_FIRST,
    ST_COPY_FIRST,
    ST_COPY_SYNC,
    ST_COPY_OFF,
};
#define ST_POLLING 2
#define ST_ANY_CPU (-1)
struct st_gpu_config {
    enum st_doorbell_order order;
    uint32_t batch;       /* slots between two waits of copy-first */
    int cpus[ST_POLLING]; /* to which the sweeper and the copier are bound */
};
extern struct st_gpu_config st_gpu_config;

/* --- wqe.c: decoding, pure (no state, no I/O); also called from Python for its tests -------------- */

#define ST_WQE_NO_REQUEST 255u

struct st_wqe {
    uint64_t raddr;
    uint64_t size_bytes; /* data and inline segments; atomics: 4 or 8 */
    uint32_t rkey;
    uint32_t imm;        /* immediate, or the key to invalidate or to change (UMR), host order */
    uint32_t remote_qpn; /* of the address vector, 24 bits */
    uint16_t dlid;       /* of the address vector */
    uint8_t opcode;      /* enum mlx5 */
    uint8_t opmod;
    uint8_t slots;       /* of 64 bytes, 1 to 16 */
    uint8_t sges;        /* data segments and inline segments */
    uint8_t op;          /* enum st_op_code */
    uint8_t wr_opcode;   /* enum ibv_wr_opcode, or ST_WQE_NO_REQUEST */
    uint8_t signaled;    /* asks for a CQE in any case */
    uint8_t solicited;
    uint8_t fence;       /* mode */
    uint8_t has_av;
    uint8_t has_gid;
    uint8_t dgid[16];
};
/* Decodes the WQE whose first slot is slots[0] (`available` slots in a row, ring already undone).
 * `index`: expected 16-bit index; `has_av`: the queue pair is a DCI or UD. Returns how many slots
 * it takes; 0 when the control segment is not that of this index and QPN, when ds is 0, or when
 * its segments do not fit what it says. Source: mlx5 PRM, control and data segments. */
ST_API uint32_t st_wqe_decode(const uint8_t *slots, uint32_t available, uint16_t index,
                              uint32_t qpn, uint32_t has_av, struct st_wqe *wqe);

/* How many slots a WQE takes, by its control segment alone; 0: that is of another index or QPN. */
uint32_t st_wqe_slots(const uint8_t *slot, uint16_t index, uint32_t qpn);

/* A doorbell's value: QPN, and the producer index that it announces, 16 bits (either dialect). */
struct st_doorbell_value {
    uint32_t qpn;
    uint16_t index;
};
ST_API struct st_doorbell_value st_doorbell_decode(uint64_t value);

/* --- cuda.c: the driver, as the copier needs it; all return false when there is no CUDA ----------- */

/* Have the program's calls of the driver come through our wrappers? */
bool st_cuda_seen(void);
struct st_cuda_memory {
    bool device;     /* GPU memory; else the host's: read it directly */
    void *context;   /* CUcontext */
    uint32_t gpu;    /* `gpu` object id */
};
/* Where an address lies; false: CUDA does not know it. */
bool st_cuda_memory(uint64_t address, struct st_cuda_memory *memory);
/* Where memory would lie that the calling thread allocated now; false: it has no context. */
bool st_cuda_current(struct st_cuda_memory *memory);
/* No two contexts of a process have the same, though their pointers may be equal, one after the
 * other. 0: it was destroyed, or the driver (before 12.0) does not tell. */
uint64_t st_cuda_context_id(void *context);
/* The address behind a dmabuf file descriptor that the program got from
 * cuMemGetHandleForAddressRange. */
bool st_cuda_dmabuf(int fd, uint64_t *address, uint64_t *size_bytes);
/* A non-blocking stream in a context, and a pinned buffer, which stays when the context goes. To
 * make them can block until the context's kernels have ended. */
struct st_cuda_copy {
    void *context, *stream;
    uint8_t *buffer;
    uint64_t size_bytes;
};
bool st_cuda_copy_make(void *context, uint64_t size_bytes, struct st_cuda_copy *copy);
/* Makes the context current in the calling thread. */
bool st_cuda_copy_enter(const struct st_cuda_copy *copy);
bool st_cuda_copy_start(const struct st_cuda_copy *copy, uint64_t at, uint64_t from, uint64_t size);
/* Waits for all that was started. */
bool st_cuda_copy_wait(const struct st_cuda_copy *copy);

/* --- peek.c ------------------------------------------------------------------------------------- */

/* Copies memory of the program that may not be there any more: false, then. */
bool st_peek(void *to, uint64_t from, uint64_t size);

/* --- source.c: reading the program's memory ------------------------------------------------------- */

/* Makes what copies out of a GPU's memory at this address will need (0: out of the calling thread's
 * context), so that it need not be made when queue pairs are connected, maybe below a kernel that
 * waits for them. */
void st_source_prepare(uint64_t address);
/* Before a call that may destroy a context (NULL: one of the GPU with this object id): copies out of
 * it end, and the next ones wait until st_sources_reopen says that the call has returned, and whether
 * it has `done` what it should. A stream of a context that is gone is not to be touched: the driver
 * would crash. */
uint64_t st_sources_close(const void *context, uint32_t gpu);
void st_sources_reopen(uint64_t closed, bool done);

/* --- uar.c: what libmlx5 gave out ------------------------------------------------------------------- */

/* Do these bytes lie on the page of a shadow? */
bool st_uar_shadows(const void *at, uint64_t size_bytes);
/* CUDA is given these bytes, which are no shadow: where they are on the page of a real register, it
 * is named and counted. */
void st_uar_registered(const void *at, uint64_t size_bytes);

/* --- register.c, qp.c: registers and queue pairs --------------------------------------------------- */

/* A shadow for a register, watched from now on; NULL when there is no room, or no thread. */
void *st_register_add(void *real, uint32_t uar);
/* Another user of a register that has a shadow already (one singleton for many queue pairs):
 * counted, so that the last st_register_remove is the one that counts. NULL: it has none. */
void *st_register_shadow(const void *real);
/* One user less; of the last one, after a last sweep: nothing is forwarded any more. False: the
 * sweeper did not answer (within a second), and may still store: the real one must stay mapped. */
bool st_register_remove(const void *shadow);
/* So of the last one, whoever uses it: the real one goes. */
bool st_register_end(const void *shadow);

struct st_gpu_qp_totals {
    uint64_t doorbells;      /* forwarded, each repetition too */
    uint64_t slots;          /* that they announced */
    uint64_t invalid_slots;  /* of these: read, but of no WQE of this queue pair */
    uint64_t uncopied_slots; /* and not recorded: never read, or not in time */
};
struct st_gpu_qp_new {
    uint32_t qpn, object;
    const void *shadow;        /* its register */
    uint64_t sq;               /* address of the send queue */
    uint32_t sq_slots;         /* a power of two; 0: not known */
    bool doorbells_only;       /* what its slots hold is not recorded */
    uint64_t dbrec;            /* address of the send doorbell record; 0: none */
    uint64_t first;            /* index with which it goes on; 0: a new one */
    bool has_av;
    uint8_t prefix[8];         /* the port's subnet, with LIDs; zeros: not known */
    struct st_gpu_cq *cq;      /* where its sends complete; NULL: not known */
};
/* From now on doorbells with this number, on this register or another one of its page, are this
 * queue pair's. (Two NICs may have given the same number.) Returns when its doorbell record was read
 * once, or after 200 ms: to be called before it can ring. */
bool st_gpu_qp_add(const struct st_gpu_qp_new *new);
/* A new life of the same queue pair (reset, connected again): indices begin at 0 again. The
 * outstanding is copied first, as by st_gpu_qp_remove. */
void st_gpu_qp_restart(const void *shadow, uint32_t qpn, uint32_t object,
                       struct st_gpu_qp_totals *totals);
/* Copies what is outstanding (bounded by a few ms), and forgets it: its memory is not read any
 * more. To be called before the register goes. Totals are 0 for one that is not known. One that goes
 * on nevertheless is added again, its `first` being the sum of its slots: totals begin anew. */
void st_gpu_qp_remove(const void *shadow, uint32_t qpn, struct st_gpu_qp_totals *totals);

/* --- cq.c: completion queues ------------------------------------------------------------------------ */

struct st_gpu_cq_new {
    uint64_t at;       /* address, a multiple of 64 */
    uint32_t umem;     /* `mlx5_umem` object: memory of one piece */
    uint32_t log_size; /* elements */
    uint32_t stride;   /* bytes of one: 64, or 128 */
    bool collapsed;    /* only the first one is written */
};
/* NULL: there is no room. */
struct st_gpu_cq *st_gpu_cq_add(const struct st_gpu_cq_new *new);
/* It is read now, before the program may use its memory anew. False: not in time, or not at all. */
bool st_gpu_cq_look(struct st_gpu_cq *cq);
/* Its memory is not read any more. */
void st_gpu_cq_remove(struct st_gpu_cq *cq);

/* The totals, in an object. */
void st_gpu_qp_totals_put(struct st_object *o, const struct st_gpu_qp_totals *totals);

/* --- wqe_record.c: from slots to records --------------------------------------------------------------- */

struct st_gpu_stream { /* of one queue pair: whose records these are */
    uint32_t object, qpn;
    bool has_av;
    uint8_t prefix[8];
};
struct st_gpu_walked {
    uint64_t invalid; /* slots */
    uint64_t signaled; /* index after the first slot of the last one that asks for a CQE; 0: none */
};
/* Records the slots [first, first + count), which lie in a row at `slots`. What they hold belongs
 * to the doorbell at t_tsc; a WQE is never cut, as doorbells announce whole ones. */
struct st_gpu_walked st_gpu_record(const struct st_gpu_stream *stream, const uint8_t *slots,
                                   uint64_t first, uint32_t count, uint64_t t_tsc);

#endif
