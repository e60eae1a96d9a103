/* Builds WQEs, byte by byte. */
#include <string.h>

#include "repeat.h"

enum { PUT = 3, GET = 4, FETCH = 6, SEND = 1, PUT_DATA = 10, BIND = 11, INVALIDATE = 12, NOP = 13 };
enum { NO_DATA, DATA, INLINE };

static const struct {
    uint8_t opcode, opmod, op, remote, operands, data, word;
    uint8_t further; /* segments that are not looked at */
} kinds[] = {
    {0x00, 0, NOP, 0, 0, NO_DATA, 0, 0},      /* NOP, ds 1 */
    {0x08, 0, PUT, 1, 0, DATA, 0, 0},         /* RDMA_WRITE */
    {0x08, 0, PUT, 1, 0, INLINE, 0, 0},       /* the same, inline */
    {0x09, 0, PUT_DATA, 1, 0, DATA, 1, 0},    /* RDMA_WRITE_IMM */
    {0x10, 0, GET, 1, 0, DATA, 0, 0},         /* RDMA_READ */
    {0x0a, 0, SEND, 0, 0, DATA, 0, 0},        /* SEND */
    {0x0a, 0, SEND, 0, 0, INLINE, 0, 0},      /* the same, inline */
    {0x0b, 0, SEND, 0, 0, DATA, 1, 0},        /* SEND_IMM */
    {0x01, 0, SEND, 0, 0, DATA, 1, 0},        /* SEND_INVAL */
    {0x11, 0, FETCH, 1, 16, DATA, 0, 0},      /* ATOMIC_CS */
    {0x12, 0, FETCH, 1, 16, DATA, 0, 0},      /* ATOMIC_FA */
    {0x14, 0x08, FETCH, 1, 16, DATA, 0, 0},   /* masked CS, 4 bytes */
    {0x14, 0x09, FETCH, 1, 32, DATA, 0, 0},   /* masked CS, 8 bytes */
    {0x15, 0x08, FETCH, 1, 16, DATA, 0, 0},   /* masked FA, 4 bytes */
    {0x15, 0x09, FETCH, 1, 16, DATA, 0, 0},   /* masked FA, 8 bytes */
    {0x00, 0, NOP, 0, 0, NO_DATA, 0, 1},      /* NOP, ds 2 */
    {0x00, 0, NOP, 0, 0, NO_DATA, 0, 5},      /* NOP, ds 6: two slots */
    {0x23, 0, NOP, 0, 0, NO_DATA, 0, 1},      /* DUMP */
    {0x0f, 0, NOP, 0, 0, NO_DATA, 0, 1},      /* WAIT */
    {0x25, 0, BIND, 0, 0, NO_DATA, 1, 9},     /* UMR: control, context, translation */
    {0x1b, 0, INVALIDATE, 0, 0, NO_DATA, 1, 0}, /* LOCAL_INVAL */
    {0x20, 0, NOP, 0, 0, NO_DATA, 0, 2},      /* SET_PSV */
    {0x33, 0, NOP, 0, 0, NO_DATA, 0, 3},      /* nobody's */
};
const uint32_t wqe_kinds = sizeof(kinds) / sizeof(kinds[0]);

static uint8_t *put(uint8_t *p, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        p[i] = (uint8_t)value;
    return p + bytes;
}

static uint8_t *put_vector(uint8_t *p, uint32_t number, int vector, struct posted *told)
{
    told->qpn = 0x800 + number % 3;
    told->lid = 5 + number % 8 / 4;
    told->gid = -1;
    put(p, 0x1122334455667788, 8);
    put(p + 8, told->qpn | (vector == 2 ? 1u << 31 : 0), 4);
    put(p + 12, 0, 2);
    put(p + 14, told->lid, 2);
    if (vector == 1)
        return p + 16;
    memset(p + 16, 0, 32);
    if (number % 4) { /* one in four has no GRH */
        told->gid = 1 + (int)(number % 4);
        put(p + 32, 0xfe80000000000000, 8);
        put(p + 40, (uint64_t)told->gid, 8);
    }
    return p + 48;
}

static uint8_t *put_data(uint8_t *p, uint32_t number, uint32_t kind, struct posted *told)
{
    if (kinds[kind].data == INLINE) {
        static const uint32_t sizes[] = {1, 12, 13, 28, 64, 256, 1, 8};
        uint32_t size = sizes[number % 8], padded = (4 + size + 15) / 16 * 16;
        memset(p, 0xa5, padded);
        put(p, size | 1u << 31, 4);
        told->size += size;
        told->sges++;
        return p + padded;
    }
    uint32_t count = kinds[kind].operands ? 1 : 1 + number % 3;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = kinds[kind].operands ? 8 : 100 * number % 100000 + i + 1;
        put(put(put(p, size, 4), 0x1000 + i, 4), 0x7f0000000000 + number, 8);
        told->size += size;
        told->sges++;
        p += 16;
    }
    return p;
}

struct posted wqe_build(uint8_t *bytes, uint32_t kind, uint32_t number, uint32_t qpn,
                        uint16_t index, int vector)
{
    struct posted told = {.opcode = kinds[kind].opcode, .op = kinds[kind].op, .gid = -1};
    uint8_t *p = bytes + 16;
    bool travels = kinds[kind].data != NO_DATA;
    memset(bytes, 0, MOST_BYTES);
    if (travels && vector)
        p = put_vector(p, number, vector, &told);
    if (kinds[kind].remote) {
        told.raddr = 0x500000000000 + number;
        told.rkey = 0xabc00 + number % 256;
        put(put(put(p, told.raddr, 8), told.rkey, 4), 0, 4);
        p += 16;
    }
    memset(p, 0x5a, kinds[kind].operands);
    p += kinds[kind].operands;
    if (travels)
        p = put_data(p, number, kind, &told);
    if (kinds[kind].operands)
        told.size = kinds[kind].opmod == 0x08 ? 4 : 8;
    memset(p, 0xff, 16 * kinds[kind].further);
    p += 16 * kinds[kind].further;
    uint32_t segments = (uint32_t)(p - bytes) / 16;
    told.slots = (segments + 3) / 4;
    told.signaled = number % 2;
    told.imm = kinds[kind].word ? 0xdead0000 + number % 65536 : 0;
    put(put(put(put(bytes, kinds[kind].opmod, 1), index, 2), told.opcode, 1), qpn, 3);
    put(bytes + 7, segments, 1);
    bytes[11] = told.signaled ? 0x08 : 0x00;
    put(bytes + 12, kinds[kind].word ? told.imm : 0x77777777, 4);
    return told;
}
