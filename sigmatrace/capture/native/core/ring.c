/* The ring file: areas that grow at its end, each a control block and a segment, mapped shared.
 * Every byte is allocated and faulted in before it is used: a store never meets a full disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct ring_header {
    char magic[8];
    uint32_t version, header_bytes, control_bytes, areas;
    uint64_t file_bytes;
};

static struct st_file file = {.fd = -1};
static struct ring_header *header;
static struct st_area *areas;
static uint64_t end; /* of the last area */
static bool no_spare; /* the file could not grow for a spare area: not tried again */

/* File systems without fallocate: zeros are written, which allocates as well. */
static int write_zeros(uint64_t at, uint64_t size)
{
    static const char zeros[16 << 10];
    while (size) {
        size_t n = size < sizeof(zeros) ? size : sizeof(zeros);
        ssize_t done = pwrite(file.fd, zeros, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        at += (uint64_t)done;
        size -= (uint64_t)done;
    }
    return 0;
}

static int allocate(uint64_t at, uint64_t size)
{
    struct st_size_guard guard;
    int error;
    if (!st_file_ours(&file))
        return EBADF;
    st_size_guard_begin(&guard);
    do
        error = fallocate(file.fd, 0, (off_t)at, (off_t)size) ? errno : 0;
    while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS)
        error = write_zeros(at, size);
    st_size_guard_end(&guard);
    return error;
}

static int prefault(volatile uint8_t *p, uint64_t size)
{
    if (!madvise((void *)p, size, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return errno;
    for (uint64_t at = 0; at < size; at += ST_PAGE) /* before Linux 5.14 */
        p[at] = p[at];
    return 0;
}

#define TRIES 16

/* Some network file systems set a file's size back when two threads extend it at once, and what lies
 * behind its end cannot be touched; nobody has written here yet, so it is extended again. */
static int allocate_again(volatile uint8_t *p, uint64_t at, uint64_t size)
{
    int error = EFAULT;
    for (int i = 0; i < TRIES && error == EFAULT; i++) {
        error = allocate(at, size);
        if (!error)
            error = prefault(p, size);
    }
    return error;
}

static void *map(uint64_t at, uint64_t size, int *error)
{
    *error = allocate(at, size);
    if (*error)
        return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, (off_t)at);
    if (p == MAP_FAILED) {
        *error = errno;
        return NULL;
    }
    *error = prefault(p, size);
    if (*error == EFAULT)
        *error = allocate_again(p, at, size);
    if (*error) {
        munmap(p, size);
        return NULL;
    }
    return p;
}

bool st_ring_open(const char *path)
{
    int error;
    areas = NULL;
    end = ST_PAGE;
    no_spare = false;
    if (!st_file_create(&file, path, O_RDWR))
        return false;
    header = map(0, ST_PAGE, &error);
    if (!header) {
        unlink(path);
        errno = error;
        return false;
    }
    header->version = 1;
    header->header_bytes = ST_PAGE;
    header->control_bytes = ST_PAGE;
    header->file_bytes = ST_PAGE;
    ST_BARRIER();
    memcpy(header->magic, "STRCRING", 8);
    return true;
}

void st_ring_forked(bool may_close)
{
    if (may_close && file.fd >= 0 && st_file_ours(&file))
        close(file.fd);
    file.fd = -1;
    areas = NULL; /* the mappings stay: a record that the fork interrupted may still be stored */
}

static struct st_area *reuse(uint64_t size)
{
    for (struct st_area *area = __atomic_load_n(&areas, __ATOMIC_ACQUIRE); area; area = area->next) {
        int taken = 0;
        if (area->size == size && !__atomic_load_n(&area->taken, __ATOMIC_RELAXED) &&
            __atomic_compare_exchange_n(&area->taken, &taken, 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return area;
    }
    return NULL;
}

static struct st_area *grow(uint64_t size, bool spare)
{
    int error = ENOMEM;
    struct st_area *area = st_alloc(sizeof(*area));
    if (!area)
        goto failed;
    uint64_t at = __atomic_fetch_add(&end, size, __ATOMIC_RELAXED);
    area->base = map(at, size, &error);
    if (!area->base)
        goto failed;
    area->size = size;
    area->taken = 1;
    ((struct st_control *)area->base)->size = size;
    __atomic_fetch_add(&header->file_bytes, size, __ATOMIC_RELAXED);
    __atomic_fetch_add(&header->areas, 1, __ATOMIC_RELAXED);
    area->next = __atomic_load_n(&areas, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&areas, &area->next, area, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        ;
    return area;
failed:
    if (spare)
        __atomic_store_n(&no_spare, true, __ATOMIC_RELAXED);
    else
        st_process_fail(error == ENOSPC ? "disk full" : "ring file cannot grow", error);
    return NULL;
}

struct st_area *st_area_take(struct st_thread *owner, uint32_t schema, uint64_t seq,
                             uint64_t capacity, bool spare)
{
    int saved = errno;
    uint64_t record_size = st_record_size[schema];
    uint64_t bytes = ST_RECORDS_AT + record_size * capacity;
    uint64_t size = (bytes + ST_PAGE - 1) & ~(uint64_t)(ST_PAGE - 1);
    struct st_area *area = reuse(size);
    if (!area && !(spare && __atomic_load_n(&no_spare, __ATOMIC_RELAXED)))
        area = grow(size, spare);
    errno = saved;
    if (!area)
        return NULL;
    area->owner = owner;
    __atomic_store_n(&area->claimed, seq, __ATOMIC_RELEASE);
    struct st_control *control = st_area_control(area);
    control->schema = schema;
    control->thread = owner->tid;
    control->seq = seq;
    control->count = 0;
    control->dropped = owner->dropped[schema];
    control->record_size = record_size;
    control->capacity = capacity;
    control->offset = ST_RECORDS_AT;
    __atomic_store_n(&control->state, 1, __ATOMIC_RELEASE);
    return area;
}

void st_area_give(struct st_area *area)
{
    struct st_control *control = st_area_control(area);
    __atomic_store_n(&control->state, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&area->taken, 0, __ATOMIC_RELEASE);
}
