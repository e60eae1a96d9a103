/* What libibverbs.so.1 keeps behind its handles, for libmlx5.so.1. */
#ifndef VERBS_OBJECTS_H
#define VERBS_OBJECTS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "nic.h"

struct nic_ah {
    struct ibv_ah ah;
    struct ibv_ah_attr attr;
};
struct nic_verbs_cq {
    struct ibv_cq cq;
    uint8_t *buffer;
    uint32_t entries, umem, cqn;
};
struct nic_verbs_srq {
    struct ibv_srq srq;
    uint32_t srqn;
};
struct nic_verbs_qp {
    struct ibv_qp qp;
    uint8_t *buffer; /* receive queue, send queue, doorbell record */
    uint64_t size;
    uint32_t umem, sq_slots;
    uint64_t sq_at, record_at;
    uint8_t *register_at;
    bool is_dct, owns_register;
    uint64_t dct_key;
};
/* Makes the queues of a connected queue pair or of a DCI; false: failed. By libmlx5.so.1, too. */
NIC_API bool nic_verbs_queues_make(struct nic_verbs_qp *qp, const struct ibv_cq *send,
                                   const struct ibv_cq *receive, uint32_t slots, bool is_dci);

#endif
