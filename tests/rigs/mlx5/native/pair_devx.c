/* Queues by the commands of the firmware, in the way of NVSHMEM. */
#include <string.h>

#include "pair_host.h"

enum { MAILBOX = 272, OUT = 16, LOG_STRIDE = 0, SERVICE_DCI = 5, NO_RECEIVES = 3, MTU_4096 = 5 };
enum { CREATE_CQ = 0x400, CREATE_QP = 0x500, TO_INIT = 0x502, TO_RTR = 0x503, TO_RTS = 0x504 };
enum { TO_RESET = 0x50a };

static void put(uint8_t *in, size_t at, unsigned bytes, uint64_t value)
{
    while (bytes--) {
        in[at + bytes] = (uint8_t)value;
        value >>= 8;
    }
}

static uint32_t number(const uint8_t *out)
{
    return (uint32_t)out[9] << 16 | (uint32_t)out[10] << 8 | out[11];
}

void devx_cq(struct queue *queue, uint32_t umem, uint64_t offset, uint32_t log_size,
             bool collapsed)
{
    uint8_t in[MAILBOX] = {0}, out[OUT];
    uint32_t eqn;
    need("query_eqn", mlx5dv_devx_query_eqn(setup.context, 0, &eqn));
    put(in, 0x00, 2, CREATE_CQ);
    in[0x11] = collapsed ? 0x12 : 0x02;
    put(in, 0x1c, 1, log_size);
    put(in, 0x50, 8, offset);
    put(in, 0x58, 4, umem);
    in[0x5c] = 0x80;
    queue->cq = mlx5dv_devx_obj_create(setup.context, in, sizeof(in), out, sizeof(out));
    need("CREATE_CQ", queue->cq ? 0 : out[0]);
    queue->cqn = number(out);
}

void devx_qp(struct queue *queue, const struct devx_qp *how)
{
    uint8_t in[MAILBOX] = {0}, out[OUT];
    put(in, 0x00, 2, CREATE_QP);
    in[0x19] = how->dci ? SERVICE_DCI : 0;
    put(in, 0x1d, 3, setup.pdn);
    in[0x20] = MTU_4096 << 5 | 30;
    in[0x21] = how->receives ? (uint8_t)(how->log_receives << 3 | LOG_STRIDE) : 0;
    in[0x22] = (uint8_t)(how->log_size << 3);
    put(in, 0x25, 3, how->uar);
    put(in, 0x95, 3, queue->cqn);
    put(in, 0xb5, 3, how->cqn_receive);
    put(in, 0xb8, 8, how->record_offset);
    in[0xc4] = how->receives ? 0 : NO_RECEIVES;
    in[0xe8] = 0x10;
    put(in, 0xfc, 4, how->record_umem);
    put(in, 0x100, 8, how->offset);
    put(in, 0x108, 4, how->umem);
    in[0x10c] = 0x80;
    queue->qp = mlx5dv_devx_obj_create(setup.context, in, sizeof(in), out, sizeof(out));
    need("CREATE_QP", queue->qp ? 0 : out[0]);
    queue->qpn = number(out);
}

void devx_reset(struct queue *queue)
{
    uint8_t in[MAILBOX] = {0}, out[OUT];
    put(in, 0x00, 2, TO_RESET);
    put(in, 0x09, 3, queue->qpn);
    need("reset", mlx5dv_devx_obj_modify(queue->qp, in, sizeof(in), out, sizeof(out)));
}

void devx_connect(struct queue *queue, const struct end *peer, uint32_t remote_qpn)
{
    static const uint16_t commands[] = {TO_INIT, TO_RTR, TO_RTS};
    for (int i = 0; i < 3; i++) {
        uint8_t in[MAILBOX] = {0}, out[OUT];
        put(in, 0x00, 2, commands[i]);
        put(in, 0x09, 3, queue->qpn);
        in[0x55] = 1; /* the port */
        if (commands[i] == TO_RTR && remote_qpn) {
            in[0x20] = MTU_4096 << 5 | 30;
            put(in, 0x2d, 3, remote_qpn);
            put(in, 0x36, 2, peer->lid);
            memcpy(in + 0x40, peer->gid.raw, 16);
        }
        need("modify", mlx5dv_devx_obj_modify(queue->qp, in, sizeof(in), out, sizeof(out)));
    }
}
