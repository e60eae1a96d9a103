/* Reading the program's memory: the host's directly, a GPU's by copies on a stream of ours, into a
 * buffer that is made when the program prepares its context for doorbells. The copier alone reads. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "repeater.h"

#define PIECE_BYTES 4096u
#define SOURCES 64u /* the host, and contexts, those that are gone too */
#define CLOSING_MS 1000u
#define RECORD_BYTES (ST_SOURCE_RECORD_PAGES * (ST_PAGE_MASK + 1))
#define BUFFER_BYTES (ST_SOURCE_SLOT_BYTES + RECORD_BYTES)

struct st_source {
    uint32_t state;
    bool device, started, failed;
    uint32_t gpu, closing, busy; /* closing: calls under way that may destroy the context */
    bool closed;                 /* one has */
    uint64_t context_id, used;
    struct st_cuda_copy copy; /* of the host: the buffer alone */
};

static struct st_source sources[SOURCES];

static bool make(struct st_source *source, const struct st_cuda_memory *memory)
{
    source->device = memory->device;
    if (memory->device) {
        source->gpu = memory->gpu;
        source->context_id = st_cuda_context_id(memory->context);
        return st_cuda_copy_make(memory->context, BUFFER_BYTES, &source->copy);
    }
    int saved = errno;
    void *p = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    source->copy = (struct st_cuda_copy){.buffer = p, .size_bytes = BUFFER_BYTES};
    return p != MAP_FAILED;
}

static bool serves(const struct st_source *source, const struct st_cuda_memory *memory)
{
    if (ST_LOAD(&source->state) != ST_ACTIVE || source->device != memory->device)
        return false;
    return !memory->device || (source->copy.context == memory->context && !ST_LOAD(&source->closed) &&
                               source->context_id == st_cuda_context_id(memory->context));
}

static struct st_source *find_or_make(const struct st_cuda_memory *memory)
{
    for (uint32_t i = 0; i < SOURCES; i++)
        if (serves(&sources[i], memory))
            return &sources[i];
    for (uint32_t i = 0; i < SOURCES; i++) {
        if (!st_swap_state(&sources[i].state, ST_FREE, ST_MAKING))
            continue;
        bool made = make(&sources[i], memory);
        ST_STORE(&sources[i].state, made ? ST_ACTIVE : ST_FREE);
        return made ? &sources[i] : NULL;
    }
    return NULL;
}

struct st_source *st_source_of(uint64_t address)
{
    struct st_cuda_memory memory = {.device = false};
    if (!st_cuda_memory(address, &memory))
        memory.device = false;
    struct st_source *source = find_or_make(&memory);
    if (!source)
        st_lost("gpu: queue pair whose memory cannot be read", 1);
    return source;
}

void st_source_prepare(uint64_t address)
{
    struct st_cuda_memory memory;
    if ((address ? st_cuda_memory(address, &memory) : st_cuda_current(&memory)) && memory.device)
        find_or_make(&memory);
}

static void leave(struct st_source *source)
{
    __atomic_store_n(&source->busy, 0, __ATOMIC_SEQ_CST);
}

/* `busy`, then `closing`, here; `closing`, then `busy`, there. */
static bool may_enter(struct st_source *source)
{
    uint64_t until = st_now() + CLOSING_MS * 1000 * st_tsc_per_us;
    for (;;) {
        __atomic_store_n(&source->busy, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&source->closing, __ATOMIC_SEQ_CST))
            return !ST_LOAD(&source->closed);
        leave(source);
        if (st_now() > until)
            return false;
        st_nap(20);
    }
}

/* The context may have been destroyed without our knowing, and another one have its pointer. */
static bool enter(struct st_source *source)
{
    if (may_enter(source) && source->context_id == st_cuda_context_id(source->copy.context) &&
        st_cuda_copy_enter(&source->copy))
        return true;
    leave(source);
    return false;
}

static bool concerns(const struct st_source *source, const void *context, uint32_t gpu)
{
    if (ST_LOAD(&source->state) != ST_ACTIVE || !source->device)
        return false;
    return context ? source->copy.context == context : gpu && source->gpu == gpu;
}

uint64_t st_sources_close(const void *context, uint32_t gpu)
{
    uint64_t closed = 0, until = st_now() + CLOSING_MS * 1000 * st_tsc_per_us;
    for (uint32_t i = 0; i < SOURCES; i++)
        if (concerns(&sources[i], context, gpu)) {
            closed |= 1ull << i;
            __atomic_add_fetch(&sources[i].closing, 1, __ATOMIC_SEQ_CST);
        }
    for (uint32_t i = 0; i < SOURCES; i++)
        while (closed >> i & 1 && __atomic_load_n(&sources[i].busy, __ATOMIC_SEQ_CST) &&
               st_repeater_here() && st_now() < until)
            st_nap(20);
    return closed;
}

void st_sources_reopen(uint64_t closed, bool done)
{
    for (uint32_t i = 0; i < SOURCES; i++) {
        struct st_source *source = &sources[i];
        if (!(closed >> i & 1))
            continue;
        uint64_t id = source->context_id;
        /* A driver that tells no ids does not tell whether the context is still there, either. */
        if (id ? st_cuda_context_id(source->copy.context) != id : done)
            ST_STORE(&source->closed, true);
        __atomic_sub_fetch(&source->closing, 1, __ATOMIC_SEQ_CST);
    }
}

/* A slot that is overwritten while it is read may have its old control segment and new data behind it:
 * read once more, it is another one, and is emptied. (Not seen: a program that pauses between both.) */
static bool read_slots(uint8_t *to, uint64_t from, uint64_t size)
{
    uint8_t again[PIECE_BYTES];
    bool done = st_peek(to, from, size);
    for (uint64_t i = 0; done && i < size; i += ST_GPU_SLOT_BYTES) {
        uint64_t here = i % PIECE_BYTES, rest = size - i;
        if (!here)
            done = st_peek(again, from + i, rest < PIECE_BYTES ? rest : PIECE_BYTES);
        if (memcmp(to + i, again + here, ST_GPU_SLOT_BYTES))
            memset(to + i, 0, ST_GPU_SLOT_BYTES);
    }
    return done;
}

bool st_source_start(struct st_source *source, uint64_t at, uint64_t from, uint64_t size)
{
    if (!source->device) {
        uint8_t *to = source->copy.buffer + at;
        return at < ST_SOURCE_SLOT_BYTES ? read_slots(to, from, size) : st_peek(to, from, size);
    }
    if (!enter(source))
        return false;
    source->started = true;
    bool started = st_cuda_copy_start(&source->copy, at, from, size);
    leave(source);
    return started;
}

uint64_t st_source_room(struct st_source *source, uint64_t size)
{
    if (source->used + size > ST_SOURCE_SLOT_BYTES)
        return UINT64_MAX;
    source->used += size;
    return source->used - size;
}

bool st_source_wait(struct st_source *source)
{
    if (source->started) {
        source->started = false;
        source->failed = !enter(source) || !st_cuda_copy_wait(&source->copy);
        leave(source);
    }
    return !source->failed;
}

const uint8_t *st_source_data(const struct st_source *source, uint64_t at)
{
    return source->copy.buffer + at;
}

void st_sources_clear(void)
{
    for (uint32_t i = 0; i < SOURCES; i++) {
        sources[i].used = 0;
        sources[i].failed = false;
    }
}
