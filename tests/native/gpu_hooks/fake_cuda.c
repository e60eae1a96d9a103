/* A CUDA driver whose GPU is a piece of the host's memory. Its one context can be remade, at the same
 * address; what would then crash, or block below a running kernel, ends the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAKE_API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NOT_FOUND = 500 };

FAKE_API unsigned fake_flags;    /* of the last registration */
FAKE_API int fake_register_abi;  /* 1 or 2: by which function */
FAKE_API uint8_t fake_gpu[1 << 16] __attribute__((aligned(4096)));
FAKE_API int fake_life = 1;      /* the context's; counted up, another context has its pointer */
FAKE_API int fake_kept;          /* by others: its release does not end it */
FAKE_API int fake_slow_ms;       /* how long a copy takes */
FAKE_API int fake_copying;       /* one is under way */
FAKE_API int fake_kernel;        /* one runs, and ends only when the program goes on */
FAKE_API int fake_devices = 1;
FAKE_API int fake_current;       /* the calling thread has the context */
FAKE_API int fake_context;
static int streams[8]; /* by the life in which they were made */

static void refuse(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    abort();
}

static void refuse_below_kernels(const char *what)
{
    if (fake_kernel)
        refuse(what);
}

static void refuse_dead(const void *stream)
{
    if (stream != &streams[fake_life])
        refuse("a stream of a context that is gone");
}

static int lies_in_gpu(uint64_t at)
{
    return at - (uintptr_t)fake_gpu < sizeof(fake_gpu);
}

FAKE_API int cuInit(unsigned flags)
{
    return flags ? INVALID : OK;
}
FAKE_API int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return OK;
}
FAKE_API int cuDeviceGetCount(int *count)
{
    *count = fake_devices;
    return OK;
}
FAKE_API int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? OK : INVALID;
}
FAKE_API int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Fake %d", device);
    return OK;
}
FAKE_API int cuDeviceGetUuid_v2(void *uuid, int device)
{
    memset(uuid, 0x40 + device, 16);
    return OK;
}
FAKE_API int cuDeviceGetPCIBusId(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "0000:0%d:00.0", device);
    return OK;
}
FAKE_API int cuMemHostRegister(void *at, size_t size, unsigned flags)
{
    (void)at, (void)size;
    fake_flags = flags;
    fake_register_abi = 1;
    return OK;
}
FAKE_API int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    (void)at;
    refuse_below_kernels("memory pinned below a kernel");
    if (size > 4096) /* not the program's own */
        return flags == 1 ? OK : INVALID;
    fake_flags = flags;
    fake_register_abi = 2;
    return OK;
}
FAKE_API int cuMemHostUnregister(void *at)
{
    return at ? OK : INVALID;
}
FAKE_API int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags)
{
    *out = (uintptr_t)at;
    return flags ? INVALID : OK;
}
FAKE_API int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                           unsigned long long flags)
{
    (void)size, (void)flags;
    if (type != 1 || !lies_in_gpu(at))
        return INVALID;
    *(int *)handle = memfd_create("dmabuf", 0);
    return OK;
}
FAKE_API int cuPointerGetAttribute(void *out, int attribute, uint64_t at)
{
    if (!lies_in_gpu(at))
        return INVALID;
    if (attribute == 1)
        *(void **)out = &fake_context;
    else if (attribute == 2)
        *(unsigned *)out = 2;
    else
        *(int *)out = 0;
    return OK;
}
FAKE_API int cuCtxGetCurrent(void **out)
{
    *out = fake_current ? &fake_context : NULL;
    return OK;
}
FAKE_API int cuCtxGetId(void *which, unsigned long long *id)
{
    *id = 100 + (unsigned)fake_life;
    return which == &fake_context ? OK : INVALID;
}
FAKE_API int cuCtxGetDevice(int *device)
{
    *device = 0;
    return OK;
}
static int end_life(void)
{
    if (__atomic_load_n(&fake_copying, __ATOMIC_SEQ_CST))
        refuse("a context that is destroyed below a copy");
    __atomic_add_fetch(&fake_life, 1, __ATOMIC_SEQ_CST);
    return OK;
}
FAKE_API int cuCtxDestroy_v2(void *which)
{
    return which ? end_life() : INVALID; /* the driver's user knows no other one */
}
FAKE_API int cuDevicePrimaryCtxReset_v2(int device)
{
    return device ? INVALID : end_life();
}
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device ? INVALID : fake_kept ? OK : end_life();
}
FAKE_API int cuCtxSetCurrent(void *wanted)
{
    return wanted == &fake_context ? OK : INVALID;
}
FAKE_API int cuCtxPushCurrent_v2(void *wanted)
{
    return wanted == &fake_context ? OK : INVALID;
}
FAKE_API int cuCtxPopCurrent_v2(void **out)
{
    *out = &fake_context;
    return OK;
}
FAKE_API int cuStreamCreate(void **out, unsigned flags)
{
    refuse_below_kernels("a stream made below a kernel");
    *out = &streams[fake_life];
    return flags == 1 ? OK : INVALID;
}
FAKE_API int cuStreamSynchronize(void *which)
{
    refuse_dead(which);
    return OK;
}
FAKE_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *which)
{
    refuse_dead(which);
    if (!lies_in_gpu(from))
        return INVALID;
    __atomic_store_n(&fake_copying, 1, __ATOMIC_SEQ_CST);
    usleep((useconds_t)fake_slow_ms * 1000);
    memcpy(to, (const void *)(uintptr_t)from, size);
    refuse_dead(which);
    __atomic_store_n(&fake_copying, 0, __ATOMIC_SEQ_CST);
    return OK;
}

FAKE_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                 int *status);

FAKE_API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    int status;
    return cuGetProcAddress_v2(name, out, version, flags, &status);
}

FAKE_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                 int *status)
{
    char full[128];
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int newer = (!strcmp(name, "cuMemHostRegister") && version >= 6050) ||
                (!strcmp(name, "cuGetProcAddress") && version >= 12000) ||
                (!strcmp(name, "cuCtxDestroy") && version >= 4000) ||
                (!strncmp(name, "cuDevicePrimaryCtxRe", 20) && version >= 11000);
    (void)flags;
    snprintf(full, sizeof(full), "%s%s", name, newer ? "_v2" : "");
    *out = *name ? dlsym(self, full) : NULL;
    *status = !*out;
    dlclose(self);
    return *out || !*name ? OK : NOT_FOUND;
}
