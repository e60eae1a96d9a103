/* What the host's and the GPU's part of gpu_pair share. The same text is compiled by nvcc for a GPU
 * and by the C compiler for the stand-in. */
#ifndef PAIR_H
#define PAIR_H

#include <stdint.h>

enum { PAIR_SLOT = 64, PAIR_PLACES = 8, PAIR_CELLS = 8, PAIR_OPCODES = 64, PAIR_MOST_MIX = 16 };
enum { PAIR_LONG_BYTES = 64, PAIR_WORDS = 48 };

enum pair_kind {
    PAIR_WRITE,
    PAIR_READ,
    PAIR_INLINE,   /* 8 bytes in the WQE */
    PAIR_LONG,     /* 64 bytes in the WQE, which takes two slots */
    PAIR_ADD,      /* all threads of all blocks on one counter */
    PAIR_CAS,
    PAIR_SWAP8,    /* masked CAS that always swaps */
    PAIR_XOR8,     /* masked addition without carries */
    PAIR_ADD4,
    PAIR_SWAP4,    /* of the upper half alone */
    PAIR_IMM,      /* WRITE with an immediate */
    PAIR_SEND,
    PAIR_DUMP,
    PAIR_KINDS,
};
enum pair_dialect {
    PAIR_NVSHMEM,  /* next free index; record, doorbell */
    PAIR_DOCA,     /* next free index with its bits 16-23; doorbell, record, doorbell */
    PAIR_RDMA,     /* start of the last WQE; record, doorbell */
    PAIR_ROCSHMEM, /* the same, on alternating halves, and a record of 32 bits */
    PAIR_BLUEFLAME, /* 64 bytes of the last WQE, then as NVSHMEM */
    PAIR_PROXY,    /* the index into a word of the host, whose thread rings */
};

/* What is wrong with each WQE on purpose. */
enum pair_fault {
    PAIR_RIGHT,
    PAIR_REMOTE_KEY,
    PAIR_LOCAL_KEY,
    PAIR_BOUNDS, /* of the remote memory */
    PAIR_INDEX,
    PAIR_NUMBER, /* of the queue pair */
    PAIR_OPCODE,
};

/* A queue pair, in the memory of the GPU. */
struct pair_qp {
    uint64_t sq, record, db, cq, proxy;
    uint64_t mirror; /* of sq: what is written there is written here, too; or 0 */
    uint64_t local, remote; /* the heaps */
    uint32_t qpn, slots, lkey, rkey, av_words;
    uint32_t av[12]; /* in the order of the bytes */
    uint64_t reserved, ready, rung; /* slots of this life */
    uint64_t rings, slots_before, operations[PAIR_OPCODES], bytes[PAIR_OPCODES];
    uint32_t lock, error;
};

/* Places in a heap, which has the same ones in each process. */
struct pair_heap {
    uint64_t thread_bytes; /* of one thread */
    uint64_t source, target, read_from, read_to, inlined, longs, cells, fetched;
};
enum { PAIR_COUNTER = 0, PAIR_THREADS_AT = 64 };

struct pair_args {
    struct pair_heap heap;
    uint64_t qps; /* struct pair_qp[] */
    uint64_t times; /* uint64_t[]: of each operation; mode=run: begin and end of each thread */
    uint64_t bfs; /* of gpu_bfs: struct bfs */
    uint32_t qp_count, rank, operations, bytes, dialect, group, kinds, fault;
    uint32_t abandon; /* the kernel ends without waiting for what it has posted */
    uint32_t window; /* slots that may be outstanding behind an operation; 0: all */
    uint8_t kind[PAIR_MOST_MIX];
};

#endif
