/* What the parts of the in-process libibverbs share: its objects, and the engine's entry. */
#ifndef FAKE_IBVERBS_H
#define FAKE_IBVERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

#define FAKE_DEPTH 4096u

struct fake_device {
    struct ibv_device base;
};
struct fake_cq {
    struct ibv_cq_ex ex; /* begins like struct ibv_cq */
    struct ibv_wc wcs[FAKE_DEPTH];
    uint64_t sent_to[FAKE_DEPTH]; /* of a send completion: all requests before this are free */
    uint32_t in, out;
    struct ibv_wc now;
};
struct fake_receive {
    uint64_t wr_id;
    uint32_t size;
};
struct fake_receives {
    struct fake_receive entries[FAKE_DEPTH];
    uint32_t in, out;
};
struct fake_srq {
    struct ibv_srq base;
    struct fake_receives receives;
    struct ibv_cq *cq; /* XRC */
    uint32_t number;   /* XRC */
};
struct fake_qp {
    struct ibv_qp_ex ex; /* begins with struct ibv_qp */
    bool extended, signal_all;
    uint32_t max_send, destination;
    uint64_t posted, freed;
    struct fake_receives receives;
    struct ibv_send_wr batch[64];
    struct ibv_sge sges[64][8];
    uint32_t batched;
    struct ibv_ece ece;
    struct ibv_ah_attr path;
    uint8_t port;
};
struct fake_ah {
    struct ibv_ah base;
};

extern pthread_mutex_t fake_lock;
struct fake_qp *fake_qp_of(uint32_t number);
struct fake_srq *fake_srq_of(uint32_t number);
bool fake_reaches(uint32_t rkey, uint64_t address, uint64_t bytes);
void fake_bind(const struct ibv_send_wr *wr);
void fake_invalidate(uint32_t rkey);

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_list(struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
void fake_flush(struct fake_qp *qp);
void fake_extend_memory(struct verbs_context *context);
void fake_extend_shared(struct verbs_context *context);
void fake_extend_cq(struct fake_cq *cq, uint64_t wc_flags);
void fake_extend_qp(struct fake_qp *qp);

#endif
