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
#define COMPLETION(fm_ce_se) ((fm_ce_se) >> 2 & 3u)
#define COMPLETION_ALWAYS 2u /* 3: and an event */
#define EXTENDED_4_BYTES 0x08u

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

/* What follows the control segment. All others (NOP, WAIT, DUMP, ...) touch no peer: what
 * follows theirs is not looked at. */
static const struct {
    uint8_t op;
    bool travels;  /* to a peer: an address vector where the queue pair needs one, data */
    bool remote;   /* remote address segment */
    bool atomic;   /* operands */
    bool word;     /* the last word of the control segment is an immediate or a key */
} kinds[] = {
    [SEND_INVAL] = {ST_OP_SEND, true, false, false, true},
    [RDMA_WRITE] = {ST_OP_PUT, true, true, false, false},
    [RDMA_WRITE_IMM] = {ST_OP_PUT_DATA, true, true, false, true},
    [SEND] = {ST_OP_SEND, true, false, false, false},
    [SEND_IMM] = {ST_OP_SEND, true, false, false, true},
    [RDMA_READ] = {ST_OP_GET, true, true, false, false},
    [ATOMIC_CS] = {ST_OP_ATOMIC_FETCH, true, true, true, false},
    [ATOMIC_FA] = {ST_OP_ATOMIC_FETCH, true, true, true, false},
    [ATOMIC_MASKED_CS] = {ST_OP_ATOMIC_FETCH, true, true, true, false},
    [ATOMIC_MASKED_FA] = {ST_OP_ATOMIC_FETCH, true, true, true, false},
    [FMR] = {.op = ST_OP_BIND},
    [LOCAL_INVAL] = {.op = ST_OP_INVALIDATE, .word = true},
    [UMR] = {.op = ST_OP_BIND},
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

/* The two of a masked compare-and-swap have masks of their own; with operands of 4 bytes, all
 * four fit into one segment. */
static uint32_t operand_bytes(const struct st_wqe *wqe)
{
    bool masks = wqe->opcode == ATOMIC_MASKED_CS && wqe->opmod != EXTENDED_4_BYTES;
    return masks ? 2 * SEGMENT : SEGMENT;
}

/* Data and inline segments up to the end; false when the last one does not end there. */
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
    if (has_av) {
        uint32_t bytes = read_vector(p, end, wqe);
        if (!bytes)
            return false;
        p += bytes;
    }
    if (kinds[wqe->opcode].remote) {
        if (p + SEGMENT > end)
            return false;
        wqe->raddr = be64(p);
        wqe->rkey = be32(p + 8);
        p += SEGMENT;
    }
    if (kinds[wqe->opcode].atomic) {
        if (p + operand_bytes(wqe) > end)
            return false;
        p += operand_bytes(wqe);
    }
    if (!read_data(p, end, wqe))
        return false;
    if (kinds[wqe->opcode].atomic)
        wqe->size_bytes = wqe->opmod == EXTENDED_4_BYTES ? 4 : 8;
    return true;
}

uint32_t st_wqe_decode(const uint8_t *slots, uint32_t available, uint16_t index, uint32_t qpn,
                       uint32_t has_av, struct st_wqe *wqe)
{
    memset(wqe, 0, sizeof(*wqe));
    if (!available)
        return 0;
    uint32_t first = be32(slots), second = be32(slots + 4), segments = second & 0x3f;
    uint32_t count = (segments * SEGMENT + ST_GPU_SLOT_BYTES - 1) / ST_GPU_SLOT_BYTES;
    if (!segments || count > available || (uint16_t)(first >> 8) != index || second >> 8 != qpn)
        return 0;
    wqe->opmod = (uint8_t)(first >> 24);
    wqe->opcode = (uint8_t)first;
    wqe->slots = (uint8_t)count;
    wqe->signaled = COMPLETION(slots[11]) >= COMPLETION_ALWAYS;
    wqe->op = wqe->opcode < KINDS && kinds[wqe->opcode].op ? kinds[wqe->opcode].op : ST_OP_NOP;
    if (wqe->opcode >= KINDS)
        return count;
    if (kinds[wqe->opcode].word)
        wqe->imm = be32(slots + 12);
    if (kinds[wqe->opcode].travels &&
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
