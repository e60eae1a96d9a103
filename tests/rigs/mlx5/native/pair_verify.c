/* What the heap must hold when all operations are done: each thread's are played once more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pair_host.h"

enum { SAID = 10 };
static uint64_t wrong; /* of one call */

static uint64_t value_of(uint32_t rank, uint32_t thread, uint32_t i)
{
    return ((uint64_t)rank << 56 | (uint64_t)thread << 32 | i) * 0x9e3779b97f4a7c15u;
}

/* Whose bytes, which thread's, which place's: `kind` keeps sources of WRITE and READ apart. */
static void pattern(uint8_t *at, uint32_t rank, uint32_t thread, uint32_t place, uint32_t kind)
{
    uint64_t seed = (uint64_t)kind << 60 | (uint64_t)rank << 56 | (uint64_t)thread << 16 | place;
    for (uint32_t i = 0; i < options.args.bytes; i++) {
        uint64_t word = i < 8 ? seed : (seed + i / 8) * 0xd1342543de82ef95u;
        at[i] = (uint8_t)(word >> 8 * (i % 8));
    }
}

static uint32_t threads_all(void)
{
    return options.mode == RUN ? options.blocks * options.threads : 1;
}

static uint64_t round_up(uint64_t value)
{
    return (value + 63) / 64 * 64;
}

void heap_layout(void)
{
    struct pair_heap *heap = &options.args.heap;
    uint64_t part = round_up((uint64_t)PAIR_PLACES * options.args.bytes), at = 0;
    heap->source = at;
    heap->target = at += part;
    heap->read_from = at += part;
    heap->read_to = at += part;
    heap->inlined = at += part;
    heap->longs = at += round_up(PAIR_PLACES * 8);
    heap->cells = at += round_up(PAIR_PLACES * PAIR_LONG_BYTES);
    heap->fetched = at += round_up(PAIR_CELLS * 8);
    heap->thread_bytes = at + round_up((uint64_t)options.args.operations * 8);
    setup.heap_size = PAIR_THREADS_AT + threads_all() * heap->thread_bytes;
}

void heap_fill(void)
{
    const struct pair_heap *heap = &options.args.heap;
    uint8_t *image = calloc(1, setup.heap_size);
    for (uint32_t t = 0; image && t < threads_all(); t++)
        for (uint32_t place = 0; place < PAIR_PLACES; place++) {
            uint8_t *base = image + PAIR_THREADS_AT + t * heap->thread_bytes;
            uint64_t part = (uint64_t)place * options.args.bytes;
            pattern(base + heap->source + part, options.rank, t, place, 1);
            pattern(base + heap->read_from + part, options.rank, t, place, 2);
        }
    need("memory", !image);
    cuda_put(setup.heap, image, setup.heap_size);
    free(image);
}

static void compare(const char *what, uint32_t thread, uint64_t at, const void *is,
                    const void *should, size_t size)
{
    if (!memcmp(is, should, size))
        return;
    if (wrong++ < SAID)
        fprintf(stderr, "gpu_pair: %s of thread %u at %" PRIu64 " is wrong\n", what, thread, at);
}

/* The part of the heap that the previous rank's thread wrote to. */
static void targets_verify(const uint8_t *base, uint32_t thread)
{
    const struct pair_args *args = &options.args;
    const struct pair_heap *heap = &args->heap;
    uint32_t from = (options.rank + options.size - 1) % options.size;
    uint8_t *data = malloc(args->bytes ? args->bytes : 1);
    uint64_t inlined[PAIR_PLACES] = {0}, longs[PAIR_PLACES][PAIR_LONG_BYTES / 8] = {{0}};
    uint8_t written[PAIR_PLACES] = {0};
    for (uint32_t i = 0; i < args->operations; i++) {
        uint32_t kind = args->kind[i % args->kinds], place = i % PAIR_PLACES;
        uint64_t value = value_of(from, thread, i);
        written[place] |= kind == PAIR_WRITE || kind == PAIR_IMM;
        if (kind == PAIR_INLINE)
            inlined[place] = value;
        for (uint32_t word = 0; kind == PAIR_LONG && word < PAIR_LONG_BYTES / 8; word++)
            longs[place][word] = value + 8 * word;
    }
    for (uint32_t place = 0; place < PAIR_PLACES; place++) {
        memset(data, 0, args->bytes);
        if (written[place])
            pattern(data, from, thread, place, 1);
        compare("WRITE", thread, place, base + heap->target + (uint64_t)place * args->bytes, data,
                args->bytes);
    }
    compare("inline WRITE", thread, 0, base + heap->inlined, inlined, sizeof(inlined));
    compare("long inline WRITE", thread, 0, base + heap->longs, longs, sizeof(longs));
    free(data);
}

struct cells {
    uint64_t cas, swap8, xor8, add4, swap4;
};

/* What an atomic brings back, and what it leaves; false: it is judged elsewhere. */
static bool atomic_replay(struct cells *cells, uint32_t kind, uint64_t value, uint64_t *old)
{
    switch (kind) {
    case PAIR_CAS:
        *old = cells->cas++;
        return true;
    case PAIR_SWAP8:
        *old = cells->swap8;
        cells->swap8 = value;
        return true;
    case PAIR_XOR8:
        *old = cells->xor8;
        cells->xor8 ^= value;
        return true;
    case PAIR_ADD4:
        *old = __builtin_bswap32((uint32_t)cells->add4);
        cells->add4 = (uint32_t)(cells->add4 + 1);
        return true;
    case PAIR_SWAP4:
        *old = __builtin_bswap32((uint32_t)cells->swap4);
        cells->swap4 = (cells->swap4 & 0xffff) | (value & 0xffff0000);
        return true;
    default:
        return false;
    }
}

/* Fetched by this rank: marks what it got from the next rank's counter. */
static void fetched_verify(const uint8_t *base, uint32_t thread, uint8_t *counted, uint64_t most)
{
    const struct pair_args *args = &options.args;
    struct cells cells = {0};
    for (uint32_t i = 0; i < args->operations; i++) {
        uint32_t kind = args->kind[i % args->kinds];
        uint64_t is, old = 0;
        memcpy(&is, base + args->heap.fetched + (uint64_t)i * 8, 8);
        if (kind == PAIR_ADD) {
            bool fresh = is < most && !counted[is];
            wrong += !fresh;
            if (fresh)
                counted[is] = 1;
        } else if (atomic_replay(&cells, kind, value_of(options.rank, thread, i), &old)) {
            compare("fetched value", thread, i, &is, &old, 8);
        }
    }
}

static void cells_verify(const uint8_t *base, uint32_t thread)
{
    const struct pair_args *args = &options.args;
    uint32_t from = (options.rank + options.size - 1) % options.size;
    struct cells cells = {0};
    uint64_t unused;
    for (uint32_t i = 0; i < args->operations; i++)
        atomic_replay(&cells, args->kind[i % args->kinds], value_of(from, thread, i), &unused);
    compare("cells of atomics", thread, 0, base + args->heap.cells, &cells, sizeof(cells));
}

static void reads_verify(const uint8_t *base, uint32_t thread)
{
    const struct pair_args *args = &options.args;
    uint32_t of = (options.rank + 1) % options.size;
    uint8_t *data = malloc(args->bytes ? args->bytes : 1);
    uint8_t read[PAIR_PLACES] = {0};
    for (uint32_t i = 0; i < args->operations; i++)
        read[i % PAIR_PLACES] |= args->kind[i % args->kinds] == PAIR_READ;
    for (uint32_t place = 0; place < PAIR_PLACES; place++) {
        memset(data, 0, args->bytes);
        if (read[place])
            pattern(data, of, thread, place, 2);
        compare("READ", thread, place, base + args->heap.read_to + (uint64_t)place * args->bytes,
                data, args->bytes);
    }
    free(data);
}

/* Each receive holds the whole source of one thread's place. */
static void receives_verify(void)
{
    const struct pair_args *args = &options.args;
    uint32_t from = (options.rank + options.size - 1) % options.size;
    uint8_t *is = malloc(args->bytes), *should = malloc(args->bytes);
    for (uint32_t k = 0; has_kind(PAIR_SEND) && !has_kind(PAIR_IMM) && k < options.qps; k++)
        for (uint32_t i = 0; i < setup.receives; i++) {
            uint64_t seed = 0;
            cuda_get(is, setup.target[k].receives_at + (uint64_t)i * args->bytes, args->bytes);
            memcpy(&seed, is, args->bytes < 8 ? args->bytes : 8);
            pattern(should, from, seed >> 16 & 0xffffffff, seed & 0xffff, 1);
            compare("SEND", k, i, is, should, args->bytes);
        }
    free(is);
    free(should);
}

uint64_t heap_verify(const struct pair_qp *qps)
{
    uint8_t *image = malloc(setup.heap_size);
    uint64_t adds = 0, counter;
    wrong = 0;
    for (uint32_t i = 0; i < options.args.operations; i++)
        adds += options.args.kind[i % options.args.kinds] == PAIR_ADD ? threads_all() : 0;
    for (uint32_t k = 0; k < options.qps; k++)
        wrong += qps[k].error;
    uint8_t *counted = calloc(1, adds + 1);
    need("memory", !image || !counted);
    cuda_get(image, setup.heap, setup.heap_size);
    for (uint32_t t = 0; t < threads_all(); t++) {
        const uint8_t *base = image + PAIR_THREADS_AT + t * options.args.heap.thread_bytes;
        targets_verify(base, t);
        fetched_verify(base, t, counted, adds);
        cells_verify(base, t);
        reads_verify(base, t);
    }
    memcpy(&counter, image + PAIR_COUNTER, 8);
    wrong += counter != adds; /* all ranks do the same number */
    receives_verify();
    free(image);
    free(counted);
    return wrong;
}
