/* A program that posts WQEs and rings doorbells, with a NIC and a CUDA of its own. It prints what
 * it posted: the trace must say the same. */
#ifndef REPEAT_H
#define REPEAT_H

#include "gpu/gpu.h"

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

_Noreturn void fail(const char *what);

#endif
