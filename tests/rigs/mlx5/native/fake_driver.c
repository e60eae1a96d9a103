/* Devices, contexts and modules of the stand-in, and how its functions are found. */
#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 13000, LATEST_LOOKUP = 12000 };
enum { DMA_BUF_SUPPORTED = 124, RDMA_SUPPORTED = 116, WRITES_ORDERING = 118, PROCESSORS = 16 };
enum { DEPTH = 16, BUS = 33, MAJOR = 75, MEMORY_OPS = 122 };

FAKE_API const int fake_cuda_is_here = 1;
static int context; /* its address is the handle of the only one */
static _Thread_local void *stack[DEPTH]; /* the thread's contexts, the current one last */
static _Thread_local unsigned depth;

void *fake_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

FAKE_API int cuInit(unsigned flags)
{
    return flags ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return CU_OK;
}

FAKE_API int cuDeviceGetCount(int *count)
{
    *count = 1;
    return CU_OK;
}

FAKE_API int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Stand-in");
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDeviceGetUuid_v2(void *uuid, int device)
{
    memcpy(uuid, "stand-in for gpu", 16);
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDeviceGetPCIBusId(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "0000:17:00.0");
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDeviceTotalMem_v2(size_t *size, int device)
{
    *size = (size_t)1 << 32;
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == DMA_BUF_SUPPORTED || attribute == RDMA_SUPPORTED ||
             attribute == MEMORY_OPS;
    if (attribute == WRITES_ORDERING)
        *value = 100;
    if (attribute == PROCESSORS)
        *value = 2;
    if (attribute == BUS)
        *value = 0x17;
    if (attribute == MAJOR)
        *value = 9;
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuCtxGetCurrent(void **out)
{
    *out = fake_context();
    return CU_OK;
}

FAKE_API int cuCtxPushCurrent_v2(void *wanted)
{
    if (wanted != &context || depth == DEPTH)
        return CU_INVALID_CONTEXT;
    stack[depth++] = wanted;
    return CU_OK;
}

FAKE_API int cuCtxPopCurrent_v2(void **out)
{
    if (!depth)
        return CU_INVALID_CONTEXT;
    depth--;
    if (out)
        *out = stack[depth];
    return CU_OK;
}

/* Takes the place of the current one. */
FAKE_API int cuCtxSetCurrent(void *wanted)
{
    if (wanted && wanted != &context)
        return CU_INVALID_CONTEXT;
    depth -= depth > 0;
    return wanted ? cuCtxPushCurrent_v2(wanted) : CU_OK;
}

FAKE_API int cuCtxCreate_v2(void **out, unsigned flags, int device)
{
    (void)flags;
    *out = &context;
    return device ? CU_INVALID_VALUE : cuCtxPushCurrent_v2(&context);
}

FAKE_API int cuCtxDestroy_v2(void *which)
{
    return fake_context() == which ? cuCtxPopCurrent_v2(NULL) : CU_OK;
}

FAKE_API int cuCtxGetDevice(int *device)
{
    *device = 0;
    return fake_context() ? CU_OK : CU_INVALID_CONTEXT;
}

FAKE_API int cuDevicePrimaryCtxRetain(void **out, int device)
{
    *out = &context;
    return device ? CU_INVALID_VALUE : CU_OK;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device ? CU_INVALID_VALUE : CU_OK;
}

/* A module is a shared library. */
FAKE_API int cuModuleLoad(void **module, const char *path)
{
    if (!fake_context())
        return CU_INVALID_CONTEXT;
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module)
        fprintf(stderr, "fake cuda: %s\n", dlerror());
    return *module ? CU_OK : CU_NOT_FOUND;
}

FAKE_API int cuModuleGetFunction(void **out, void *module, const char *name)
{
    char size_name[256];
    struct fake_function *function = calloc(1, sizeof(*function));
    snprintf(size_name, sizeof(size_name), "%s_bytes", name);
    const unsigned *bytes = dlsym(module, size_name);
    *out = function;
    if (!function || !bytes)
        return CU_NOT_FOUND;
    *(void **)&function->call = dlsym(module, name);
    function->bytes = *bytes;
    snprintf(function->name, sizeof(function->name), "%s", name);
    return function->call ? CU_OK : CU_NOT_FOUND;
}

FAKE_API int cuModuleUnload(void *module)
{
    dlclose(module);
    return CU_OK;
}

FAKE_API int cuGetErrorName(int error, const char **name)
{
    *name = error ? "CUDA_ERROR" : "CUDA_SUCCESS";
    return CU_OK;
}

FAKE_API int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return CU_NOT_FOUND;
}

FAKE_API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
FAKE_API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                 int *status);

/* Names without a suffix mean the newest function. The table, and not dlsym, finds it: the real
 * driver does not look its functions up where a preloaded library could answer. */
#define NAMED(name) {#name, (void (*)(void))name}
#define NAMED_V2(name) {#name, (void (*)(void))name##_v2}
static const struct {
    const char *name;
    void (*function)(void);
} table[] = {
    NAMED(cuInit), NAMED(cuDriverGetVersion), NAMED(cuDeviceGetCount), NAMED(cuDeviceGet),
    NAMED(cuDeviceGetName), NAMED_V2(cuDeviceGetUuid), NAMED(cuDeviceGetPCIBusId),
    NAMED_V2(cuDeviceTotalMem), NAMED(cuDeviceGetAttribute), NAMED(cuCtxGetCurrent),
    NAMED(cuCtxSetCurrent), NAMED_V2(cuCtxPushCurrent), NAMED_V2(cuCtxPopCurrent),
    NAMED_V2(cuCtxCreate), NAMED_V2(cuCtxDestroy), NAMED(cuCtxGetDevice), NAMED(cuCtxSynchronize),
    NAMED(cuDevicePrimaryCtxRetain), NAMED_V2(cuDevicePrimaryCtxRelease), NAMED(cuModuleLoad),
    NAMED(cuModuleGetFunction), NAMED(cuModuleUnload), NAMED(cuGetErrorName),
    NAMED(cuGetExportTable), NAMED_V2(cuMemAlloc), NAMED_V2(cuMemFree),
    NAMED_V2(cuMemGetAddressRange), NAMED(cuMemHostAlloc), NAMED(cuMemFreeHost),
    NAMED_V2(cuMemHostRegister), NAMED(cuMemHostUnregister), NAMED_V2(cuMemHostGetDevicePointer),
    NAMED(cuMemHostGetFlags), NAMED(cuPointerGetAttribute), NAMED(cuPointerGetAttributes),
    NAMED(cuPointerSetAttribute), NAMED(cuMemGetHandleForAddressRange), NAMED(cuStreamCreate),
    NAMED(cuStreamCreateWithPriority), NAMED_V2(cuStreamDestroy), NAMED(cuStreamSynchronize),
    NAMED(cuStreamQuery), NAMED(cuEventCreate), NAMED_V2(cuEventDestroy), NAMED(cuEventRecord),
    NAMED(cuEventQuery), NAMED(cuEventSynchronize), NAMED_V2(cuMemcpyDtoHAsync),
    NAMED_V2(cuMemcpyHtoDAsync), NAMED_V2(cuMemcpyDtoDAsync), NAMED_V2(cuMemcpyDtoH),
    NAMED_V2(cuMemcpyHtoD), NAMED_V2(cuMemsetD8), NAMED(cuLaunchKernel),
    NAMED_V2(cuGetProcAddress),
};

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof(table) / sizeof(*table) && !*function; i++)
        if (!strcmp(name, table[i].name))
            memcpy(function, &table[i].function, sizeof(*function));
    if (!strcmp(name, "cuGetProcAddress") && version < LATEST_LOOKUP)
        *(int (**)(const char *, void **, int, uint64_t))(void *)function = cuGetProcAddress;
    if (status)
        *status = *function ? 0 : 1;
    return *function ? CU_OK : CU_NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
