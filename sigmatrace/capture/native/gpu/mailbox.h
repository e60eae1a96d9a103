/* Where the fields of the firmware's commands are, as DEVX passes them: big-endian numbers in a
 * buffer. Source: the mlx5 PRM, layouts of CREATE_CQ, CREATE_QP and of the commands that modify a
 * queue pair (their qpc is at the same place). */
#ifndef ST_GPU_MAILBOX_H
#define ST_GPU_MAILBOX_H

#include <stddef.h>
#include <stdint.h>

enum st_command {
    ST_CREATE_CQ = 0x400,
    ST_CREATE_QP = 0x500,
    ST_RST2INIT = 0x502,
    ST_INIT2RTR = 0x503,
    ST_RTR2RTS = 0x504,
    ST_RTS2RTS = 0x505,
    ST_SQERR2RTS = 0x506,
    ST_TO_ERROR = 0x507,
    ST_TO_RESET = 0x50a,
    ST_SQD2RTS = 0x50c,
    ST_INIT2INIT = 0x50e,
};
/* qpc.st */
enum st_service { ST_RC, ST_UC, ST_UD, ST_XRC, ST_DCI = 5, ST_DCT };

/* name, first byte, bytes, shift, bits */
#define ST_FIELDS(F)                                                                               \
    F(COMMAND, 0x00, 2, 0, 16)                                                                     \
    F(NUMBER, 0x09, 3, 0, 24) /* qpn of a command; qpn or cqn of an answer */                      \
    F(QP_OPTIONAL, 0x10, 4, 0, 32) /* which fields a change of state sets besides its own */       \
    F(QP_SERVICE, 0x19, 1, 0, 8)                                                                   \
    F(QP_PD, 0x1d, 3, 0, 24)                                                                       \
    F(QP_MTU, 0x20, 1, 5, 3)                                                                       \
    F(QP_LOG_MSG_MAX, 0x20, 1, 0, 5)                                                               \
    F(QP_LOG_RQ_SIZE, 0x21, 1, 3, 4)                                                               \
    F(QP_LOG_RQ_STRIDE, 0x21, 1, 0, 3)                                                             \
    F(QP_NO_SQ, 0x22, 1, 7, 1)                                                                     \
    F(QP_LOG_SQ_SIZE, 0x22, 1, 3, 4)                                                               \
    F(QP_UAR_PAGE, 0x25, 3, 0, 24)                                                                 \
    F(QP_SEND_DBR_MODE, 0x28, 1, 6, 2)                                                             \
    F(QP_USER_INDEX, 0x29, 3, 0, 24)                                                               \
    F(QP_REMOTE_QPN, 0x2d, 3, 0, 24)                                                               \
    F(QP_PKEY_INDEX, 0x32, 2, 0, 16)                                                               \
    F(QP_GRH, 0x35, 1, 7, 1)                                                                       \
    F(QP_MLID, 0x35, 1, 0, 7)                                                                      \
    F(QP_RLID, 0x36, 2, 0, 16)                                                                     \
    F(QP_ACK_TIMEOUT, 0x38, 1, 3, 5)                                                               \
    F(QP_SRC_ADDR_INDEX, 0x39, 1, 0, 8)                                                            \
    F(QP_STAT_RATE, 0x3a, 1, 0, 4)                                                                 \
    F(QP_HOP_LIMIT, 0x3b, 1, 0, 8)                                                                 \
    F(QP_TCLASS, 0x3c, 2, 4, 8)                                                                    \
    F(QP_FLOW_LABEL, 0x3d, 3, 0, 20)                                                               \
    F(QP_DSCP, 0x51, 1, 0, 6)                                                                      \
    F(QP_UDP_SPORT, 0x52, 2, 0, 16)                                                                \
    F(QP_ETH_PRIO, 0x54, 1, 4, 3)                                                                  \
    F(QP_SL, 0x54, 1, 0, 4)                                                                        \
    F(QP_PORT, 0x55, 1, 0, 8)                                                                      \
    F(QP_RMAC, 0x56, 6, 0, 48)                                                                     \
    F(QP_LOG_SRA_MAX, 0x89, 1, 5, 3)                                                               \
    F(QP_RETRY_COUNT, 0x89, 1, 0, 3)                                                               \
    F(QP_RNR_RETRY, 0x8a, 1, 5, 3)                                                                 \
    F(QP_NEXT_SEND_PSN, 0x91, 3, 0, 24)                                                            \
    F(QP_CQN_SND, 0x95, 3, 0, 24)                                                                  \
    F(QP_LOG_RRA_MAX, 0xa9, 1, 5, 3)                                                               \
    F(QP_ACCESS, 0xaa, 1, 5, 3) /* read, write, atomics */                                         \
    F(QP_PAGE_OFFSET, 0xaa, 2, 6, 6)                                                               \
    F(QP_MIN_RNR_NAK, 0xac, 1, 0, 5)                                                               \
    F(QP_NEXT_RCV_PSN, 0xad, 3, 0, 24)                                                             \
    F(QP_CQN_RCV, 0xb5, 3, 0, 24)                                                                  \
    F(QP_DBR_ADDR, 0xb8, 8, 0, 64) /* in its umem */                                               \
    F(QP_Q_KEY, 0xc0, 4, 0, 32)                                                                    \
    F(QP_RQ_TYPE, 0xc4, 1, 0, 3)                                                                   \
    F(QP_SRQN, 0xc5, 3, 0, 24)                                                                     \
    F(QP_DC_ACCESS_KEY, 0xe0, 8, 0, 64)                                                            \
    F(QP_DBR_UMEM_VALID, 0xe8, 1, 4, 1)                                                            \
    F(QP_DBR_UMEM_ID, 0xfc, 4, 0, 32)                                                              \
    F(QP_WQ_UMEM_OFFSET, 0x100, 8, 0, 64)                                                          \
    F(QP_WQ_UMEM_ID, 0x108, 4, 0, 32)                                                              \
    F(QP_WQ_UMEM_VALID, 0x10c, 1, 7, 1)                                                            \
    F(CQ_DBR_UMEM_VALID, 0x10, 1, 1, 1)                                                            \
    F(CQ_CQE_SIZE, 0x11, 1, 5, 3)                                                                  \
    F(CQ_OVERRUN_IGNORED, 0x11, 1, 1, 1)                                                           \
    F(CQ_DBR_UMEM_ID, 0x14, 4, 0, 32)                                                              \
    F(CQ_UAR_PAGE, 0x1d, 3, 0, 24)                                                                 \
    F(CQ_EQN, 0x27, 1, 0, 8)                                                                       \
    F(CQ_LOG_PAGE_SIZE, 0x28, 1, 0, 5)                                                             \
    F(CQ_DBR_ADDR, 0x48, 8, 0, 64) /* in its umem */                                               \
    F(CQ_COLLAPSED, 0x11, 1, 4, 1)                                                                 \
    F(CQ_LOG_SIZE, 0x1c, 1, 0, 5)                                                                  \
    F(CQ_UMEM_OFFSET, 0x50, 8, 0, 64)                                                              \
    F(CQ_UMEM_ID, 0x58, 4, 0, 32)                                                                  \
    F(CQ_UMEM_VALID, 0x5c, 1, 7, 1)

#define ST_QP_RGID_AT 0x40u
#define ST_GID_BYTES 16u

struct st_field {
    uint16_t at;
    uint8_t bytes, shift, bits;
};
enum st_field_name {
#define ST_NAME(name, at, bytes, shift, bits) ST_##name,
    ST_FIELDS(ST_NAME)
#undef ST_NAME
};

/* 0 where the buffer is too short. */
static inline uint64_t st_mailbox(const uint8_t *buffer, size_t size, enum st_field_name name)
{
    static const struct st_field fields[] = {
#define ST_ROW(name, at, bytes, shift, bits) {at, bytes, shift, bits},
        ST_FIELDS(ST_ROW)
#undef ST_ROW
    };
    struct st_field field = fields[name];
    uint64_t value = 0;
    if ((size_t)field.at + field.bytes > size)
        return 0;
    for (unsigned i = 0; i < field.bytes; i++)
        value = value << 8 | buffer[field.at + i];
    return value >> field.shift & (field.bits < 64 ? (1ull << field.bits) - 1 : UINT64_MAX);
}

#endif
