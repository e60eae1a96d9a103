/* The driver of CUDA, as the copier needs it: a part of the host's memory is "the GPU's", copies
 * are made when they are waited for, and not before the program lets them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "repeat.h"

uint64_t cuda_from, cuda_to;
bool cuda_closed;
uint32_t cuda_rounds, cuda_copies;
uint64_t cuda_gap;

static struct {
    uint8_t *to;
    uint64_t from, size;
} started[4096];
static uint32_t count;
static bool entered;

bool st_cuda_memory(uint64_t address, struct st_cuda_memory *memory)
{
    if (address < cuda_from || address >= cuda_to)
        return false;
    *memory = (struct st_cuda_memory){.device = true, .context = &count, .gpu = 1};
    return true;
}

bool st_cuda_current(struct st_cuda_memory *memory)
{
    (void)memory;
    return false;
}

uint64_t st_cuda_context_id(void *context)
{
    return context == &count;
}

bool st_cuda_copy_make(void *context, uint64_t size_bytes, struct st_cuda_copy *copy)
{
    *copy = (struct st_cuda_copy){context, &started, malloc(size_bytes), size_bytes};
    return copy->buffer != NULL;
}

bool st_cuda_copy_enter(const struct st_cuda_copy *copy)
{
    entered = copy->context == &count;
    return entered;
}

bool st_cuda_copy_start(const struct st_cuda_copy *copy, uint64_t at, uint64_t from, uint64_t size)
{
    if (!entered || at + size > copy->size_bytes || from < cuda_from || from + size > cuda_to)
        fail("a copy beyond its buffer or its memory");
    if (from <= cuda_gap && cuda_gap < from + size)
        return false;
    __atomic_add_fetch(&cuda_copies, 1, __ATOMIC_SEQ_CST);
    if (count == sizeof(started) / sizeof(started[0]))
        fail("too many copies at once");
    started[count].to = copy->buffer + at;
    started[count].from = from;
    started[count++].size = size;
    return true;
}

bool st_cuda_copy_wait(const struct st_cuda_copy *copy)
{
    while (__atomic_load_n(&cuda_closed, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    for (uint32_t i = 0; i < count; i++)
        memcpy(started[i].to, (const void *)started[i].from, started[i].size);
    cuda_rounds += count > 0;
    count = 0;
    return entered && copy->stream == &started;
}
