/* Decoding of work queue elements and doorbells of mlx5. All integers in them are big-endian;
 * segments are multiples of 16 bytes, a WQE takes whole slots of 64. A segment that does not end
 * within the size that the control segment tells makes the WQE invalid: it was overwritten in
 * part. Source: mlx5 PRM; rdma-core providers/mlx5/mlx5dv.h and wqe.h. */
#include <string.h>

#include "gpu.h"

#define SEGMENT 16u
#define INLINE_SEGMENT 0x80000000u /* of a data segment's first word */
#define FULL_VECTOR 0x80000000u    /* of an address vector's third word */
#define FULL_VECTOR_BYTES 48u
#define FENCE_MODE(fm_ce_se) ((fm_ce_se) >> 5)
#define COMPLETION(fm_ce_se) ((fm_ce_se) >> 2 & 3u)
#define COMPLETION_ALWAYS 2u /* 3: and an event */
#define SOLICITED(fm_ce_se) ((fm_ce_se) >> 1 & 1u)
#define EXTENDED_4_BYTES 0x08u /* opmod of a masked atomic; plain ones have 8 bytes */

enum opcode {
    SEND_INVAL = 0x01,
    RDMA_WRITE = 0x08,
    RDMA_WRITE_IMM = 0x09,
    SEND = 0x0a,
    SEND_IMM = 0x0b,
    RDMA_READ = 0x10,
    ATOMIC_CS = 0x11,
    ATOMIC_FA = 0x12,
    ATOMIC_MASKED_CS = 0x14,
    ATOMIC_MASKED_FA = 0x15,
    FMR = 0x19,
    LOCAL_INVAL = 0x1b,
    UMR = 0x25,
};

enum wr_opcode { /* enum ibv_wr_opcode */
    WR_RDMA_WRITE = 0,
    WR_RDMA_WRITE_WITH_IMM = 1,
    WR_SEND = 2,
    WR_SEND_WITH_IMM = 3,
    WR_RDMA_READ = 4,
    WR_ATOMIC_CMP_AND_SWP = 5,
    WR_ATOMIC_FETCH_AND_ADD = 6,
    WR_LOCAL_INV = 7,
    WR_SEND_WITH_INV = 9,
    WR_NONE = ST_WQE_NO_REQUEST,
};

enum part {
    TRAVELS = 1, /* to a peer: an address vector where the queue pair needs one, data */
    REMOTE = 2,  /* remote address segment */
    ATOMIC = 4,  /* operands */
    WORD = 8,    /* the last word of the control segment is an immediate or a key */
};

/* What an opcode is, and what follows its control segment. All others (NOP, WAIT, DUMP, ...) are
 * requests of no peer: what follows theirs is not looked at. Masked atomics, which libibverbs does
 * not know, are the plain ones there. */
static const struct {
    uint8_t op, wr, parts;
} kinds[] = {
    [SEND_INVAL] = {ST_OP_SEND, WR_SEND_WITH_INV, TRAVELS | WORD},
    [RDMA_WRITE] = {ST_OP_PUT, WR_RDMA_WRITE, TRAVELS | REMOTE},
    [RDMA_WRITE_IMM] = {ST_OP_PUT_DATA, WR_RDMA_WRITE_WITH_IMM, TRAVELS | REMOTE | WORD},
    [SEND] = {ST_OP_SEND, WR_SEND, TRAVELS},
    [SEND_IMM] = {ST_OP_SEND, WR_SEND_WITH_IMM, TRAVELS | WORD},
    [RDMA_READ] = {ST_OP_GET, WR_RDMA_READ, TRAVELS | REMOTE},
    [ATOMIC_CS] = {ST_OP_ATOMIC_FETCH, WR_ATOMIC_CMP_AND_SWP, TRAVELS | REMOTE | ATOMIC},
    [ATOMIC_FA] = {ST_OP_ATOMIC_FETCH, WR_ATOMIC_FETCH_AND_ADD, TRAVELS | REMOTE | ATOMIC},
    [ATOMIC_MASKED_CS] = {ST_OP_ATOMIC_FETCH, WR_ATOMIC_CMP_AND_SWP, TRAVELS | REMOTE | ATOMIC},
    [ATOMIC_MASKED_FA] = {ST_OP_ATOMIC_FETCH, WR_ATOMIC_FETCH_AND_ADD, TRAVELS | REMOTE | ATOMIC},
    [FMR] = {ST_OP_BIND, WR_NONE, 0},
    [LOCAL_INVAL] = {ST_OP_INVALIDATE, WR_LOCAL_INV, WORD},
    [UMR] = {ST_OP_BIND, WR_NONE, WORD},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static uint32_t be32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return __builtin_bswap32(v);
}

static uint64_t be64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return __builtin_bswap64(v);
}

/* Bytes of the vector at p; 0 when it does not end before `end`. */
static uint32_t read_vector(const uint8_t *p, const uint8_t *end, struct st_wqe *wqe)
{
    if (p + SEGMENT > end)
        return 0;
    uint32_t to = be32(p + 8);
    wqe->has_av = 1;
    wqe->remote_qpn = to & 0xffffff;
    wqe->dlid = (uint16_t)be32(p + 12);
    if (!(to & FULL_VECTOR))
        return SEGMENT;
    if (p + FULL_VECTOR_BYTES > end)
        return 0;
    memcpy(wqe->dgid, p + 32, sizeof(wqe->dgid));
    for (uint32_t i = 0; i < sizeof(wqe->dgid); i++)
        wqe->has_gid |= wqe->dgid[i] != 0;
    return FULL_VECTOR_BYTES;
}

static uint32_t atomic_bytes(const struct st_wqe *wqe)
{
    bool masked = wqe->opcode == ATOMIC_MASKED_CS || wqe->opcode == ATOMIC_MASKED_FA;
    return masked && wqe->opmod == EXTENDED_4_BYTES ? 4 : 8;
}

/* The two of a masked compare-and-swap have masks of their own; with operands of 4 bytes, all
 * four fit into one segment. */
static uint32_t operand_bytes(const struct st_wqe *wqe)
{
    return wqe->opcode == ATOMIC_MASKED_CS && atomic_bytes(wqe) == 8 ? 2 * SEGMENT : SEGMENT;
}

/* Data and inline segments up to the end; false when the last one does not end there. A count of 0
 * is taken as it stands: that it means 2 GiB, as in some tables, is not verified. */
static bool read_data(const uint8_t *p, const uint8_t *end, struct st_wqe *wqe)
{
    while (p < end) {
        uint32_t count = be32(p), bytes = SEGMENT;
        if (count & INLINE_SEGMENT) {
            count &= ~INLINE_SEGMENT;
            if (count > ST_GPU_SLOT_BYTES * 16)
                return false;
            bytes = (4 + count + SEGMENT - 1) / SEGMENT * SEGMENT;
        }
        if (bytes > (size_t)(end - p))
            return false;
        wqe->size_bytes += count;
        wqe->sges++;
        p += bytes;
    }
    return true;
}

/* A peer's operation; false when its segments do not fit. */
static bool read_segments(const uint8_t *p, const uint8_t *end, uint32_t has_av,
                          struct st_wqe *wqe)
{
    uint8_t parts = kinds[wqe->opcode].parts;
    if (has_av) {
        uint32_t bytes = read_vector(p, end, wqe);
        if (!bytes)
            return false;
        p += bytes;
    }
    if (parts & REMOTE) {
        if (p + SEGMENT > end)
            return false;
        wqe->raddr = be64(p);
        wqe->rkey = be32(p + 8);
        p += SEGMENT;
    }
    if (parts & ATOMIC) {
        if (p + operand_bytes(wqe) > end)
            return false;
        p += operand_bytes(wqe);
    }
    if (!read_data(p, end, wqe))
        return false;
    if (parts & ATOMIC)
        wqe->size_bytes = atomic_bytes(wqe);
    return true;
}

uint32_t st_wqe_slots(const uint8_t *slot, uint16_t index, uint32_t qpn)
{
    uint32_t first = be32(slot), second = be32(slot + 4), segments = second & 0x3f;
    if ((uint16_t)(first >> 8) != index || second >> 8 != qpn)
        return 0;
    return (segments * SEGMENT + ST_GPU_SLOT_BYTES - 1) / ST_GPU_SLOT_BYTES;
}

uint32_t st_wqe_decode(const uint8_t *slots, uint32_t available, uint16_t index, uint32_t qpn,
                       uint32_t has_av, struct st_wqe *wqe)
{
    memset(wqe, 0, sizeof(*wqe));
    if (!available)
        return 0;
    uint32_t count = st_wqe_slots(slots, index, qpn);
    if (!count || count > available)
        return 0;
    uint32_t first = be32(slots), segments = be32(slots + 4) & 0x3f;
    wqe->opmod = (uint8_t)(first >> 24);
    wqe->opcode = (uint8_t)first;
    wqe->slots = (uint8_t)count;
    wqe->signaled = COMPLETION(slots[11]) >= COMPLETION_ALWAYS;
    wqe->solicited = SOLICITED(slots[11]);
    wqe->fence = FENCE_MODE(slots[11]);
    wqe->op = ST_OP_NOP;
    wqe->wr_opcode = WR_NONE;
    if (wqe->opcode >= KINDS || !kinds[wqe->opcode].op)
        return count;
    wqe->op = kinds[wqe->opcode].op;
    wqe->wr_opcode = kinds[wqe->opcode].wr;
    if (kinds[wqe->opcode].parts & WORD)
        wqe->imm = be32(slots + 12);
    if (kinds[wqe->opcode].parts & TRAVELS &&
        !read_segments(slots + SEGMENT, slots + segments * SEGMENT, has_av, wqe))
        return 0;
    return count;
}

/* Two dialects: the next free index, without a size; or the first eight bytes of the last WQE. */
struct st_doorbell_value st_doorbell_decode(uint64_t value)
{
    uint32_t first = __builtin_bswap32((uint32_t)value);
    uint32_t second = __builtin_bswap32((uint32_t)(value >> 32)), segments = second & 0x3f;
    return (struct st_doorbell_value){.qpn = second >> 8,
                                      .index = (uint16_t)((first >> 8) + (segments + 3) / 4)};
}
