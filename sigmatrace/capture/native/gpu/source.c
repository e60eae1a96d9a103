/* Reading the program's memory: the host's directly, a GPU's by copies on a stream of ours, into a
 * buffer that is made when the first queue pair of its context is. The copier alone reads. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "repeater.h"

#define PIECE_BYTES 4096u
#define SOURCES 17u /* the host, and contexts */
#define RECORD_BYTES (ST_SOURCE_RECORD_PAGES * (ST_PAGE_MASK + 1))
#define BUFFER_BYTES (ST_SOURCE_SLOT_BYTES + RECORD_BYTES)

struct st_source {
    uint32_t state;
    bool device, started, failed;
    uint64_t used;
    struct st_cuda_copy copy; /* of the host: the buffer alone */
};

static struct st_source sources[SOURCES];
static const struct st_source *entered;

static bool make(struct st_source *source, const struct st_cuda_memory *memory)
{
    source->device = memory->device;
    if (memory->device)
        return st_cuda_copy_make(memory->context, BUFFER_BYTES, &source->copy);
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
    return !memory->device || source->copy.context == memory->context;
}

struct st_source *st_source_of(uint64_t address)
{
    struct st_cuda_memory memory = {.device = false};
    if (!st_cuda_memory(address, &memory))
        memory.device = false;
    for (uint32_t i = 0; i < SOURCES; i++)
        if (serves(&sources[i], &memory))
            return &sources[i];
    for (uint32_t i = 0; i < SOURCES; i++) {
        if (!st_swap_state(&sources[i].state, ST_FREE, ST_MAKING))
            continue;
        bool made = make(&sources[i], &memory);
        ST_STORE(&sources[i].state, made ? ST_ACTIVE : ST_FREE);
        if (made)
            return &sources[i];
        break;
    }
    st_lost("gpu: queue pair whose memory cannot be read", 1);
    return NULL;
}

static bool enter(const struct st_source *source)
{
    if (entered != source && !st_cuda_copy_enter(&source->copy))
        return false;
    entered = source;
    return true;
}

/* By the kernel, which says no where the program has unmapped its memory meanwhile; by hand only
 * where the kernel may not be asked (some containers). */
static bool read_host(uint8_t *to, uint64_t from, uint64_t size)
{
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    int saved = errno;
    /* The thread, not the process: the first thread may have ended before. */
    ssize_t done = process_vm_readv(gettid(), &here, 1, &there, 1, 0);
    bool refused = done < 0 && (errno == EPERM || errno == ENOSYS);
    errno = saved;
    if (refused)
        memcpy(to, there.iov_base, size);
    return refused || done == (ssize_t)size;
}

/* A slot that is overwritten while it is read may have its old control segment and new data behind it:
 * read once more, it is another one, and is emptied. (Not seen: a program that pauses between both.) */
static bool read_slots(uint8_t *to, uint64_t from, uint64_t size)
{
    uint8_t again[PIECE_BYTES];
    bool done = read_host(to, from, size);
    for (uint64_t i = 0; done && i < size; i += ST_GPU_SLOT_BYTES) {
        uint64_t here = i % PIECE_BYTES, rest = size - i;
        if (!here)
            done = read_host(again, from + i, rest < PIECE_BYTES ? rest : PIECE_BYTES);
        if (memcmp(to + i, again + here, ST_GPU_SLOT_BYTES))
            memset(to + i, 0, ST_GPU_SLOT_BYTES);
    }
    return done;
}

bool st_source_start(struct st_source *source, uint64_t at, uint64_t from, uint64_t size)
{
    if (!source->device) {
        uint8_t *to = source->copy.buffer + at;
        return at < ST_SOURCE_SLOT_BYTES ? read_slots(to, from, size) : read_host(to, from, size);
    }
    if (!enter(source))
        return false;
    source->started = true;
    return st_cuda_copy_start(&source->copy, at, from, size);
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
