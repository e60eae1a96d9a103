/* The CUDA driver, as the other rooms need it: where memory lies, and copies out of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "driver.h"

#define GPUS 64u
#define DMABUFS 4096u
#define UUID_BYTES 16u
#define LOAD_ROUNDS 10000

static uint32_t seen;
static struct st_driver driver;
static uint32_t driver_state; /* 0; 1: being loaded; 2: loaded; 3: there is none */

static int missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static bool load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
#define ST_LOAD(name, parameters)                                                                  \
    {                                                                                              \
        void *found = library ? st_dlsym(library, #name) : st_next_symbol(#name, NULL);            \
        *(void **)&driver.name = found ? found : (void *)missing;                                  \
    }
    ST_DRIVER(ST_LOAD)
#undef ST_LOAD
    return (void *)driver.cuPointerGetAttribute != (void *)missing;
}

const struct st_driver *st_driver(void)
{
    uint32_t none = 0;
    if (!__atomic_load_n(&seen, __ATOMIC_ACQUIRE))
        return NULL;
    if (__atomic_compare_exchange_n(&driver_state, &none, 1, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        int saved = errno;
        __atomic_store_n(&driver_state, load() ? 2 : 3, __ATOMIC_RELEASE);
        errno = saved;
    }
    /* Another thread looks its functions up just now; or did, in the process that forked this one. */
    for (int i = 0; i < LOAD_ROUNDS && __atomic_load_n(&driver_state, __ATOMIC_ACQUIRE) == 1; i++)
        sched_yield();
    return __atomic_load_n(&driver_state, __ATOMIC_ACQUIRE) == 2 ? &driver : NULL;
}

static void library_seen(void)
{
    const struct st_driver *d = st_driver();
    Dl_info info;
    char path[PATH_MAX], text[32] = "";
    int version = 0;
    if (!d || !dladdr((void *)d->cuPointerGetAttribute, &info) || !realpath(info.dli_fname, path))
        return;
    if (d->cuDriverGetVersion(&version) == CUDA_SUCCESS)
        snprintf(text, sizeof(text), "%d.%d", version / 1000, version % 1000 / 10);
    st_library_seen(ST_LAYER_CUDA, "libcuda", text, path, "symbol");
}

void st_cuda_note(bool used)
{
    static uint32_t said;
    if (!__atomic_load_n(&seen, __ATOMIC_RELAXED))
        __atomic_store_n(&seen, 1, __ATOMIC_RELEASE);
    if (!used || __atomic_load_n(&said, __ATOMIC_RELAXED) ||
        __atomic_exchange_n(&said, 1, __ATOMIC_ACQ_REL))
        return;
    int saved = errno;
    library_seen();
    errno = saved;
}

bool st_cuda_seen(void)
{
    return st_driver() != NULL;
}

/* --- devices ------------------------------------------------------------------------------------------ */

static void describe(const struct st_driver *d, uint32_t object, int ordinal)
{
    struct st_object o;
    int device;
    char text[256];
    uint8_t uuid[UUID_BYTES];
    st_object_begin(&o, "gpu", object);
    st_object_u64(&o, "ordinal", (uint32_t)ordinal);
    if (d->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS) {
        if (d->cuDeviceGetName(text, sizeof(text), device) == CUDA_SUCCESS)
            st_object_str(&o, "name", text);
        if (d->cuDeviceGetUuid_v2(uuid, device) == CUDA_SUCCESS ||
            d->cuDeviceGetUuid(uuid, device) == CUDA_SUCCESS)
            st_object_bin(&o, "uuid", uuid, sizeof(uuid));
        if (d->cuDeviceGetPCIBusId(text, sizeof(text), device) == CUDA_SUCCESS)
            st_object_str(&o, "pci", text);
    }
    st_object_end(&o);
}

uint32_t st_cuda_gpu(int ordinal, bool known)
{
    static uint32_t objects[GPUS];
    const struct st_driver *d = st_driver();
    if (!d || ordinal < 0 || (uint32_t)ordinal >= GPUS)
        return 0;
    uint32_t object = __atomic_load_n(&objects[ordinal], __ATOMIC_ACQUIRE);
    if (object || known)
        return object;
    uint32_t fresh = st_object_id();
    if (!__atomic_compare_exchange_n(&objects[ordinal], &object, fresh, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return object;
    describe(d, fresh, ordinal);
    return fresh;
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Memory of no context of its own (made by cuMemCreate, or of a pool): the current one, or the
 * device's first. */
static void *some_context(const struct st_driver *d, int ordinal)
{
    void *context = NULL;
    int device;
    if (d->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context)
        return context;
    if (d->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
        d->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return NULL;
    return context;
}

bool st_cuda_memory(uint64_t address, struct st_cuda_memory *memory)
{
    const struct st_driver *d = st_driver();
    unsigned type = 0;
    int ordinal = 0, saved = errno;
    memset(memory, 0, sizeof(*memory));
    if (!d || d->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
                  CUDA_SUCCESS) {
        errno = saved;
        return false;
    }
    memory->device = type == CU_MEMORYTYPE_DEVICE;
    if (d->cuPointerGetAttribute(&memory->context, CU_POINTER_ATTRIBUTE_CONTEXT, address) !=
        CUDA_SUCCESS)
        memory->context = NULL;
    if (memory->device &&
        d->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
            CUDA_SUCCESS)
        memory->gpu = st_cuda_gpu(ordinal, false);
    if (memory->device && !memory->context)
        memory->context = some_context(d, ordinal);
    errno = saved;
    return true;
}

bool st_cuda_current(struct st_cuda_memory *memory)
{
    const struct st_driver *d = st_driver();
    int saved = errno, device = 0;
    *memory = (struct st_cuda_memory){.device = true};
    if (!d || d->cuCtxGetCurrent(&memory->context) != CUDA_SUCCESS)
        memory->context = NULL;
    if (memory->context && d->cuCtxGetDevice(&device) == CUDA_SUCCESS)
        memory->gpu = st_cuda_gpu(device, false);
    errno = saved;
    return memory->context != NULL;
}

uint64_t st_cuda_context_id(void *context)
{
    const struct st_driver *d = st_driver();
    unsigned long long id = 0;
    return d && d->cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

/* By the number of the descriptor; the file behind it proves that it is still the same. */
static struct dmabuf {
    uint32_t version; /* odd: being written */
    int fd;
    dev_t device;
    ino_t inode;
    uint64_t address, size_bytes;
} dmabufs[DMABUFS];

void st_cuda_dmabuf_note(int fd, uint64_t address, uint64_t size_bytes)
{
    struct stat status;
    int saved = errno;
    if (fd >= 0 && !fstat(fd, &status)) {
        struct dmabuf *entry = &dmabufs[(uint32_t)fd % DMABUFS];
        uint32_t version = __atomic_load_n(&entry->version, __ATOMIC_RELAXED);
        /* Whoever writes it now has a descriptor with the same remainder, and wins. */
        if (!(version & 1) &&
            __atomic_compare_exchange_n(&entry->version, &version, version + 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            entry->fd = fd;
            entry->device = status.st_dev;
            entry->inode = status.st_ino;
            entry->address = address;
            entry->size_bytes = size_bytes;
            __atomic_store_n(&entry->version, version + 2, __ATOMIC_RELEASE);
        }
    }
    errno = saved;
}

bool st_cuda_dmabuf(int fd, uint64_t *address, uint64_t *size_bytes)
{
    struct stat status;
    int saved = errno;
    bool found = false;
    if (fd >= 0 && !fstat(fd, &status)) {
        const struct dmabuf *entry = &dmabufs[(uint32_t)fd % DMABUFS];
        uint32_t version = __atomic_load_n(&entry->version, __ATOMIC_ACQUIRE);
        found = version && !(version & 1) && entry->fd == fd && entry->device == status.st_dev &&
                entry->inode == status.st_ino;
        *address = entry->address;
        *size_bytes = entry->size_bytes;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        found = found && __atomic_load_n(&entry->version, __ATOMIC_RELAXED) == version;
    }
    errno = saved;
    return found;
}

/* --- copies --------------------------------------------------------------------------------------------- */

/* The program may be capturing a graph: what we call is no part of it, and must not break it. */
static int exchange_capture_mode(const struct st_driver *d, int mode)
{
    return d->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : -1;
}

/* Memory of our own, pinned: what the driver allocates would go with the context, while the copier
 * reads it. */
static bool make(const struct st_driver *d, uint64_t size_bytes, struct st_cuda_copy *copy)
{
    void *buffer =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return false;
    madvise(buffer, size_bytes, MADV_DONTFORK);
    copy->buffer = buffer;
    if (d->cuMemHostRegister_v2(buffer, size_bytes, CU_MEMHOSTREGISTER_PORTABLE) != CUDA_SUCCESS)
        goto unmap;
    if (d->cuStreamCreate(&copy->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
        return true;
    d->cuMemHostUnregister(buffer);
unmap:
    munmap(buffer, size_bytes);
    return false;
}

bool st_cuda_copy_make(void *context, uint64_t size_bytes, struct st_cuda_copy *copy)
{
    const struct st_driver *d = st_driver();
    int saved = errno;
    void *popped;
    *copy = (struct st_cuda_copy){.context = context, .size_bytes = size_bytes};
    if (!d || !context || d->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    int mode = exchange_capture_mode(d, CU_STREAM_CAPTURE_MODE_RELAXED);
    bool made = make(d, size_bytes, copy);
    if (mode >= 0)
        exchange_capture_mode(d, mode);
    d->cuCtxPopCurrent_v2(&popped);
    errno = saved;
    return made;
}

bool st_cuda_copy_enter(const struct st_cuda_copy *copy)
{
    const struct st_driver *d = st_driver();
    if (!d || d->cuCtxSetCurrent(copy->context) != CUDA_SUCCESS)
        return false;
    exchange_capture_mode(d, CU_STREAM_CAPTURE_MODE_RELAXED);
    return true;
}

bool st_cuda_copy_start(const struct st_cuda_copy *copy, uint64_t at, uint64_t from, uint64_t size)
{
    return at + size <= copy->size_bytes &&
           driver.cuMemcpyDtoHAsync_v2(copy->buffer + at, from, size, copy->stream) == CUDA_SUCCESS;
}

bool st_cuda_copy_wait(const struct st_cuda_copy *copy)
{
    return driver.cuStreamSynchronize(copy->stream) == CUDA_SUCCESS;
}
