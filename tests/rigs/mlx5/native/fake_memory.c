/* Memory of the stand-in: allocations are files in memory, so that they can be exported as the
 * dmabuf of a real GPU can; a table knows all that was allocated or registered. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANGES = 4096, PAGE = 4096, GRANULE = 65536, IOMEMORY = 4, DMABUF = 1 };
enum attribute {
    A_CONTEXT = 1,
    A_MEMORY_TYPE = 2,
    A_DEVICE_POINTER = 3,
    A_HOST_POINTER = 4,
    A_SYNC_MEMOPS = 6,
    A_BUFFER_ID = 7,
    A_IS_MANAGED = 8,
    A_DEVICE_ORDINAL = 9,
    A_START = 11,
    A_SIZE = 12,
    A_MAPPED = 13,
};
enum kind { FREE, DEVICE, HOST, REGISTERED };

static struct range {
    enum kind kind;
    uint8_t *at;
    size_t size;
    int fd;
    unsigned flags;
    uint64_t id;
} ranges[RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock held. */
static struct range *find(const void *at)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind && (uintptr_t)at - (uintptr_t)ranges[i].at < ranges[i].size)
            return &ranges[i];
    return NULL;
}

static int add(enum kind kind, void *at, size_t size, int fd, unsigned flags)
{
    static uint64_t ids;
    int result = CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && result; i++)
        if (!ranges[i].kind) {
            ranges[i] = (struct range){kind, at, size, fd, flags, ++ids};
            result = CU_OK;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

static int drop(const void *at, enum kind kind, struct range *was)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    bool ours = range && range->kind == kind && range->at == at;
    if (ours) {
        *was = *range;
        range->kind = FREE;
    }
    pthread_mutex_unlock(&lock);
    return ours ? CU_OK : kind == REGISTERED ? CU_NOT_REGISTERED : CU_INVALID_VALUE;
}

static int allocate(enum kind kind, void **at, size_t size, unsigned flags)
{
    if (!fake_context())
        return CU_INVALID_CONTEXT;
    if (!size)
        return CU_INVALID_VALUE;
    size_t whole = (size + GRANULE - 1) / GRANULE * GRANULE;
    int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)whole))
        memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return CU_OUT_OF_MEMORY;
    }
    *at = memory;
    return add(kind, memory, whole, fd, flags);
}

static int release(enum kind kind, void *at)
{
    struct range was;
    int result = drop(at, kind, &was);
    if (!result) {
        munmap(was.at, was.size);
        close(was.fd);
    }
    return result;
}

int cuMemAlloc_v2(cu_pointer *at, size_t size)
{
    void *memory = NULL;
    int result = allocate(DEVICE, &memory, size, 0);
    *at = (uintptr_t)memory;
    return result;
}

int cuMemFree_v2(cu_pointer at)
{
    return at ? release(DEVICE, (void *)(uintptr_t)at) : CU_OK;
}

int cuMemGetAddressRange_v2(cu_pointer *base, size_t *size, cu_pointer at)
{
    pthread_mutex_lock(&lock);
    struct range *range = find((void *)(uintptr_t)at);
    bool found = range && range->kind == DEVICE;
    if (found && base)
        *base = (uintptr_t)range->at;
    if (found && size)
        *size = range->size;
    pthread_mutex_unlock(&lock);
    return found ? CU_OK : CU_NOT_FOUND;
}

int cuMemHostAlloc(void **at, size_t size, unsigned flags)
{
    return allocate(HOST, at, size, flags);
}

int cuMemFreeHost(void *at)
{
    return release(HOST, at);
}

/* Registers of the NIC are IO memory, and nothing else is. With FAKE_CUDA_MMIO=0 the registers are
 * the ordinary memory that the real driver takes those of the emulated NIC for. */
static bool is_io_memory(const void *at, size_t size)
{
    const char *mmio = getenv("FAKE_CUDA_MMIO");
    void *nic = dlopen("libmlx5emu.so", RTLD_NOW | RTLD_NOLOAD);
    bool (*is_uar)(const void *, uint64_t) = NULL;
    if (!nic || (mmio && !strcmp(mmio, "0")))
        return false;
    *(void **)&is_uar = dlsym(nic, "mlx5emu_is_uar");
    bool io = is_uar && is_uar(at, size);
    dlclose(nic);
    return io;
}

/* Ordinary memory is locked by whole pages, no page twice. */
static bool overlaps(const void *at, size_t size, bool io)
{
    uintptr_t unit = io ? 1 : PAGE, first = (uintptr_t)at / unit;
    uintptr_t last = ((uintptr_t)at + size - 1) / unit;
    for (int i = 0; i < RANGES; i++) {
        uintptr_t from = (uintptr_t)ranges[i].at / unit;
        uintptr_t to = ((uintptr_t)ranges[i].at + ranges[i].size - 1) / unit;
        if (ranges[i].kind && first <= to && from <= last)
            return true;
    }
    return false;
}

int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    if (!fake_context())
        return CU_INVALID_CONTEXT;
    bool io = at && size && is_io_memory(at, size);
    if (!at || !size || io != !!(flags & IOMEMORY))
        return CU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool taken = overlaps(at, size, io);
    pthread_mutex_unlock(&lock);
    return taken ? CU_ALREADY_REGISTERED : add(REGISTERED, at, size, -1, flags);
}

int cuMemHostUnregister(void *at)
{
    struct range was;
    return drop(at, REGISTERED, &was);
}

int cuMemHostGetDevicePointer_v2(cu_pointer *out, void *at, unsigned flags)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    bool found = range && range->kind != DEVICE && !flags;
    pthread_mutex_unlock(&lock);
    if (found)
        *out = (uintptr_t)at;
    return found ? CU_OK : CU_INVALID_VALUE;
}

int cuMemHostGetFlags(unsigned *flags, void *at)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    if (range)
        *flags = range->flags;
    pthread_mutex_unlock(&lock);
    return range ? CU_OK : CU_INVALID_VALUE;
}

static int describe(const struct range *range, int attribute, cu_pointer at, void *out)
{
    switch ((enum attribute)attribute) {
    case A_CONTEXT:
        *(void **)out = fake_context() ? fake_context() : (void *)1;
        return CU_OK;
    case A_MEMORY_TYPE:
        *(unsigned *)out = range->kind == DEVICE ? 2 : 1;
        return CU_OK;
    case A_DEVICE_POINTER:
        *(cu_pointer *)out = at;
        return CU_OK;
    case A_HOST_POINTER:
        *(void **)out = (void *)(uintptr_t)at;
        return range->kind == DEVICE ? CU_INVALID_VALUE : CU_OK;
    case A_BUFFER_ID:
        *(unsigned long long *)out = range->id;
        return CU_OK;
    case A_SYNC_MEMOPS:
    case A_IS_MANAGED:
        *(unsigned *)out = 0;
        return CU_OK;
    case A_DEVICE_ORDINAL:
        *(int *)out = 0;
        return CU_OK;
    case A_START:
        *(cu_pointer *)out = (uintptr_t)range->at;
        return CU_OK;
    case A_SIZE:
        *(size_t *)out = range->size;
        return CU_OK;
    case A_MAPPED:
        *(unsigned char *)out = 1;
        return CU_OK;
    }
    return CU_INVALID_VALUE;
}

int cuPointerGetAttribute(void *out, int attribute, cu_pointer at)
{
    pthread_mutex_lock(&lock);
    struct range *range = find((void *)(uintptr_t)at);
    int result = range ? describe(range, attribute, at, out) : CU_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Of memory that it does not know, the real one answers zeros here. */
int cuPointerGetAttributes(unsigned count, int *attributes, void **out, cu_pointer at)
{
    for (unsigned i = 0; i < count; i++) {
        *(unsigned *)out[i] = 0;
        cuPointerGetAttribute(out[i], attributes[i], at);
    }
    return CU_OK;
}

int cuPointerSetAttribute(const void *value, int attribute, cu_pointer at)
{
    cu_pointer base;
    return value && attribute == A_SYNC_MEMOPS ? cuMemGetAddressRange_v2(&base, NULL, at)
                                               : CU_INVALID_VALUE;
}

/* Whole allocations only. */
int cuMemGetHandleForAddressRange(void *handle, cu_pointer at, size_t size, int type,
                                  unsigned long long flags)
{
    int fd = -1;
    pthread_mutex_lock(&lock);
    struct range *range = find((void *)(uintptr_t)at);
    bool fits = range && range->kind == DEVICE && (uintptr_t)range->at == at &&
                size <= range->size && !(size % PAGE);
    if (fits && type == DMABUF && !flags)
        fd = fcntl(range->fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&lock);
    *(int *)handle = fd;
    return fd >= 0 ? CU_OK : CU_INVALID_VALUE;
}
