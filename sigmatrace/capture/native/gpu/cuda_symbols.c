/* The CUDA driver's functions that are wrapped, and how programs reach them: by link symbol, by
 * dlsym, or by cuGetProcAddress of either ABI, which is itself reached in all three ways.
 * cuGetExportTable is left alone: nothing of what is wrapped is in those tables. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "driver.h"

#define FIVE_ARGUMENTS 12000 /* from this version on cuGetProcAddress takes a fifth */
#define REGISTER_V2 6050
#define DESTROY_V2 4000
#define PRIMARY_V2 11000

enum function {
    INIT,
    REGISTER,
    REGISTER_2,
    RANGE_HANDLE,
    DESTROY,
    DESTROY_2,
    RESET,
    RESET_2,
    RELEASE,
    RELEASE_2,
    ADDRESS,
    ADDRESS_2,
    FUNCTIONS
};

ST_API int cuInit(unsigned flags);
ST_API int cuMemHostRegister(void *at, size_t size, unsigned flags);
ST_API int cuMemHostRegister_v2(void *at, size_t size, unsigned flags);
ST_API int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                         unsigned long long flags);
ST_API int cuCtxDestroy(void *context);
ST_API int cuCtxDestroy_v2(void *context);
ST_API int cuDevicePrimaryCtxReset(int device);
ST_API int cuDevicePrimaryCtxReset_v2(int device);
ST_API int cuDevicePrimaryCtxRelease(int device);
ST_API int cuDevicePrimaryCtxRelease_v2(int device);
ST_API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
ST_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                               int *status);

static const struct st_interposed wrappers[FUNCTIONS + 1] = {
    [INIT] = {"cuInit", NULL, (void *)cuInit},
    [REGISTER] = {"cuMemHostRegister", NULL, (void *)cuMemHostRegister},
    [REGISTER_2] = {"cuMemHostRegister_v2", NULL, (void *)cuMemHostRegister_v2},
    [RANGE_HANDLE] = {"cuMemGetHandleForAddressRange", NULL, (void *)cuMemGetHandleForAddressRange},
    [DESTROY] = {"cuCtxDestroy", NULL, (void *)cuCtxDestroy},
    [DESTROY_2] = {"cuCtxDestroy_v2", NULL, (void *)cuCtxDestroy_v2},
    [RESET] = {"cuDevicePrimaryCtxReset", NULL, (void *)cuDevicePrimaryCtxReset},
    [RESET_2] = {"cuDevicePrimaryCtxReset_v2", NULL, (void *)cuDevicePrimaryCtxReset_v2},
    [RELEASE] = {"cuDevicePrimaryCtxRelease", NULL, (void *)cuDevicePrimaryCtxRelease},
    [RELEASE_2] = {"cuDevicePrimaryCtxRelease_v2", NULL, (void *)cuDevicePrimaryCtxRelease_v2},
    [ADDRESS] = {"cuGetProcAddress", NULL, (void *)cuGetProcAddress},
    [ADDRESS_2] = {"cuGetProcAddress_v2", NULL, (void *)cuGetProcAddress_v2},
};
static void *reals[FUNCTIONS];

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_CUDA))
        st_interpose("libcuda.so", wrappers);
}

/* The next one by its name: another preloaded library's, or the driver's own. */
static void *real_of(enum function which, const void *caller)
{
    void *real = __atomic_load_n(&reals[which], __ATOMIC_ACQUIRE);
    if (real)
        return real;
    real = st_next_symbol(wrappers[which].name, caller);
    if (real)
        __atomic_store_n(&reals[which], real, __ATOMIC_RELEASE);
    return real;
}

#define REAL(which, type) ((type)real_of(which, ST_GPU_CALLER))

ST_API int cuInit(unsigned flags)
{
    int (*real)(unsigned) = REAL(INIT, int (*)(unsigned));
    int result = real ? real(flags) : CUDA_ERROR_NOT_FOUND;
    if (st_cuda_on && result == CUDA_SUCCESS) {
        st_cuda_note(true);
        st_timeline_start();
    }
    return result;
}

/* The GPU shall get a pointer to a shadow, which is no IO memory. */
static unsigned register_flags(const void *at, size_t size, unsigned flags)
{
    if (st_cuda_on)
        st_cuda_note(true);
    if (!st_cuda_on || !(flags & CU_MEMHOSTREGISTER_IOMEMORY))
        return flags;
    if (st_uar_shadows(at, size))
        return flags & ~(unsigned)CU_MEMHOSTREGISTER_IOMEMORY;
    st_uar_registered(at, size);
    return flags;
}

typedef int (*host_register)(void *, size_t, unsigned);

/* Kernels that ring at a shadow come later: now is the time to make what reading behind them needs. */
static int register_host(host_register real, void *at, size_t size, unsigned flags)
{
    unsigned given = register_flags(at, size, flags);
    int result = real ? real(at, size, given) : CUDA_ERROR_NOT_FOUND;
    if (given != flags && result == CUDA_SUCCESS)
        st_source_prepare(0);
    return result;
}

ST_API int cuMemHostRegister(void *at, size_t size, unsigned flags)
{
    return register_host(REAL(REGISTER, host_register), at, size, flags);
}

ST_API int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    return register_host(REAL(REGISTER_2, host_register), at, size, flags);
}

ST_API int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                         unsigned long long flags)
{
    int (*real)(void *, uint64_t, size_t, int, unsigned long long) =
        REAL(RANGE_HANDLE, int (*)(void *, uint64_t, size_t, int, unsigned long long));
    int result = real ? real(handle, at, size, type, flags) : CUDA_ERROR_NOT_FOUND;
    if (st_cuda_on && result == CUDA_SUCCESS && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
        st_cuda_note(true);
        st_cuda_dmabuf_note(*(const int *)handle, at, size);
    }
    return result;
}

/* --- the end of contexts ------------------------------------------------------------------------------ */

static int end_context(int (*real)(void *), void *context)
{
    if (!real)
        return CUDA_ERROR_NOT_FOUND;
    uint64_t closed = st_sources_close(context, 0);
    int result = real(context), saved = errno;
    st_sources_reopen(closed, result == CUDA_SUCCESS);
    errno = saved;
    return result;
}

static int end_primary(int (*real)(int), int device)
{
    if (!real)
        return CUDA_ERROR_NOT_FOUND;
    uint64_t closed = st_cuda_on ? st_sources_close(NULL, st_cuda_gpu(device, true)) : 0;
    int result = real(device), saved = errno;
    st_sources_reopen(closed, result == CUDA_SUCCESS);
    errno = saved;
    return result;
}

ST_API int cuCtxDestroy(void *context)
{
    return end_context(REAL(DESTROY, int (*)(void *)), context);
}

ST_API int cuCtxDestroy_v2(void *context)
{
    return end_context(REAL(DESTROY_2, int (*)(void *)), context);
}

ST_API int cuDevicePrimaryCtxReset(int device)
{
    return end_primary(REAL(RESET, int (*)(int)), device);
}

ST_API int cuDevicePrimaryCtxReset_v2(int device)
{
    return end_primary(REAL(RESET_2, int (*)(int)), device);
}

ST_API int cuDevicePrimaryCtxRelease(int device)
{
    return end_primary(REAL(RELEASE, int (*)(int)), device);
}

ST_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    return end_primary(REAL(RELEASE_2, int (*)(int)), device);
}

/* --- cuGetProcAddress --------------------------------------------------------------------------------- */

/* Names come without a suffix; the version that is asked for chooses the ABI. */
static int wrapper_of(const char *name, int version)
{
    if (!strcmp(name, "cuGetProcAddress"))
        return version < FIVE_ARGUMENTS ? ADDRESS : ADDRESS_2;
    if (!strcmp(name, "cuMemHostRegister"))
        return version < REGISTER_V2 ? REGISTER : REGISTER_2;
    if (!strcmp(name, "cuCtxDestroy"))
        return version < DESTROY_V2 ? DESTROY : DESTROY_2;
    if (!strcmp(name, "cuDevicePrimaryCtxReset"))
        return version < PRIMARY_V2 ? RESET : RESET_2;
    if (!strcmp(name, "cuDevicePrimaryCtxRelease"))
        return version < PRIMARY_V2 ? RELEASE : RELEASE_2;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!strcmp(name, wrappers[i].name))
            return i;
    return FUNCTIONS;
}

static void replace(const char *name, void **out, int version, const void *caller)
{
    if (!st_cuda_on || !name || !out || !*out)
        return;
    st_cuda_note(false);
    int which = wrapper_of(name, version);
    if (which == FUNCTIONS)
        return;
    void *none = NULL, *found = *out;
    /* Not to be had by its name: this one then, unless it is the wrapper itself. */
    if (!real_of(which, caller) && found != wrappers[which].wrapper)
        __atomic_compare_exchange_n(&reals[which], &none, found, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
    *out = wrappers[which].wrapper;
}

ST_API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t) =
        REAL(ADDRESS, int (*)(const char *, void **, int, uint64_t));
    int result = real ? real(name, out, version, flags) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        replace(name, out, version, ST_GPU_CALLER);
    return result;
}

ST_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                               int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *) =
        REAL(ADDRESS_2, int (*)(const char *, void **, int, uint64_t, int *));
    int result = real ? real(name, out, version, flags, status) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS)
        replace(name, out, version, ST_GPU_CALLER);
    return result;
}
