/* The host's part of gpu_pair, and what gpu_bfs has in common with it. */
#ifndef PAIR_HOST_H
#define PAIR_HOST_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pair.h"

enum { MOST_QPS = 512, MOST_RANKS = 4 };
enum { RECORD_BYTES = 8, SEND_RECORD = 4, CQ_BYTES = 64 }; /* doorbell record, its word, a CQ */
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                IBV_ACCESS_REMOTE_ATOMIC };
/* MIRRORED: the send queues in the GPU and, for the NIC, in the host; the rest in the host. */
enum memory { IN_GPU, IN_GPU_AS_DMABUF, IN_HOST, MIRRORED, UNCHOSEN };
enum uar { UAR_OWN, UAR_SHARED, UAR_PLAIN, UAR_BF };
enum mode { RUN, TIME, PINGPONG };

struct options {
    const char *kernel, *folder; /* of the exchange */
    uint32_t rank, size;
    uint32_t qps, blocks, threads, slots;
    enum memory memory, heap;
    enum uar uar;
    enum mode mode;
    bool dci, long_av, verbs, receives, each;
    bool to_all; /* queue pairs to all other ranks in turn; else to the next one */
    uint32_t warmup, lives, rounds, gpus;
    const char *graph; /* of gpu_bfs, as the next ones */
    uint32_t root, batch;
    struct pair_args args;
};
extern struct options options;
extern const char *const kind_names[], *const mode_names[];

/* --- pair_options.c -------------------------------------------------------------------------- */

/* Of --help; each program has its own. */
extern const char usage[];
void options_read(int count, char **texts);
_Noreturn void fail(const char *what, long code);
/* Ends the program because of what it was asked for. */
_Noreturn void refuse(const char *what, const char *why);
/* Fails unless the code is 0. */
void need(const char *what, long code);
bool has_kind(enum pair_kind kind);

/* --- pair_cuda.c ----------------------------------------------------------------------------- */

void cuda_start(void);
/* Makes the context that of the calling thread, too. */
void cuda_enter(void);
uint64_t cuda_memory(uint64_t size, enum memory kind);
void cuda_put(uint64_t to, const void *from, uint64_t size);
void cuda_get(void *to, uint64_t from, uint64_t size);
int cuda_dmabuf(uint64_t at, uint64_t size);
/* The address of a register for the GPU. */
uint64_t cuda_register(void *at, size_t size);
/* That of the host's memory, for the GPU. */
uint64_t cuda_register_memory(void *at, size_t size);
void cuda_unregister(void *at);
/* Runs a kernel to its end; the ns that it took. */
uint64_t cuda_run(const char *name, const struct pair_args *args, uint32_t blocks, uint32_t threads);

/* --- pair_setup.c ---------------------------------------------------------------------------- */

/* What the other end must know. */
struct end {
    uint32_t lid, rkey, dct;
    uint64_t heap, dc_key;
    union ibv_gid gid;
    uint32_t sender[MOST_QPS], target[MOST_QPS];
};
struct queue {
    uint32_t qpn, cqn;
    struct mlx5dv_devx_obj *cq, *qp;
    struct mlx5dv_devx_uar *uar;
    struct ibv_qp *verbs;
    uint64_t sq, record, cq_at, db; /* for the GPU */
    uint64_t mirror; /* of sq, or 0 */
    uint64_t receives_at, receive_cq;
};
struct setup {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    uint32_t pdn;
    uint64_t heap, heap_size;
    uint32_t receives; /* posted to each target */
    struct queue sender[MOST_QPS], target[MOST_QPS];
    struct end mine, ends[MOST_RANKS]; /* of all ranks */
    uint64_t qps; /* struct pair_qp[] in the GPU */
};
extern struct setup setup;

void setup_open(void);
void setup_queues(void);
void setup_connect(void);
/* All queue pairs are reset and connected again; the heap is as at first. */
void setup_again(void);
void setup_close(void);

/* --- pair_verbs.c ---------------------------------------------------------------------------- */

/* A queue pair of libibverbs or, as a DCI, of libmlx5; its queues are found by libmlx5. */
void verbs_qp_make(struct queue *queue);
void verbs_qp_connect(struct queue *queue, const struct end *peer, uint32_t remote_qpn);
void verbs_dct_make(void);
/* How a DCI's WQEs address the other end. */
void verbs_av_make(struct pair_qp *qp, const struct end *peer);

/* --- pair_devx.c ----------------------------------------------------------------------------- */

void devx_cq(struct queue *queue, uint32_t umem, uint64_t offset, uint32_t log_size,
             bool collapsed);
struct devx_qp {
    uint32_t umem, record_umem, uar, log_size, log_receives, cqn_receive;
    uint64_t offset, record_offset;
    bool dci, receives;
};
void devx_qp(struct queue *queue, const struct devx_qp *how);
/* To RTS; remote: LID, GID, QPN. */
void devx_reset(struct queue *queue);
void devx_connect(struct queue *queue, const struct end *peer, uint32_t remote_qpn);

/* --- pair_exchange.c ------------------------------------------------------------------------- */

/* What all ranks say, in their order; also a barrier. */
void exchange(const char *stage, const void *mine, size_t size, void *all);
void meet(const char *stage);
/* The other end of the k-th sender, and of the k-th target. */
const struct end *setup_to(uint32_t k);
const struct end *setup_from(uint32_t k);

/* --- pair_report.c --------------------------------------------------------------------------- */

/* The member "qps" of a JSON object that is being printed. */
void queues_print(const struct pair_qp *qps);

/* --- pair_verify.c --------------------------------------------------------------------------- */

void heap_layout(void);
void heap_fill(void);
/* The number of places that are not as they should be; says each of the first. */
uint64_t heap_verify(const struct pair_qp *qps);

#endif
