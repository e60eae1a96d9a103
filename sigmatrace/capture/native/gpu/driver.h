/* The CUDA driver API, as far as it is called here: own declarations, so that no header of CUDA is
 * needed to build. Types: CUresult and enums are int, CUdevice int, CUcontext and CUstream void *,
 * CUdeviceptr uint64_t. Source: CUDA driver API reference. */
#ifndef ST_GPU_DRIVER_H
#define ST_GPU_DRIVER_H

#include "gpu.h"

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NOT_FOUND = 500,
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_IOMEMORY = 4,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
};

/* name, parameters */
#define ST_DRIVER(X)                                                                               \
    X(cuDriverGetVersion, (int *))                                                                 \
    X(cuDeviceGetCount, (int *))                                                                   \
    X(cuDeviceGet, (int *, int))                                                                   \
    X(cuDeviceGetName, (char *, int, int))                                                         \
    X(cuDeviceGetUuid, (void *, int))                                                              \
    X(cuDeviceGetUuid_v2, (void *, int))                                                           \
    X(cuDeviceGetPCIBusId, (char *, int, int))                                                     \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuPointerGetAttribute, (void *, int, uint64_t))                                              \
    X(cuCtxGetCurrent, (void **))                                                                  \
    X(cuCtxGetId, (void *, unsigned long long *))                                                  \
    X(cuCtxGetDevice, (int *))                                                                     \
    X(cuCtxSetCurrent, (void *))                                                                   \
    X(cuCtxPushCurrent_v2, (void *))                                                               \
    X(cuCtxPopCurrent_v2, (void **))                                                               \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                            \
    X(cuMemHostUnregister, (void *))                                                               \
    X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))                                    \
    X(cuThreadExchangeStreamCaptureMode, (int *))

/* Functions that this driver does not have answer CUDA_ERROR_NOT_FOUND. */
struct st_driver {
#define ST_MEMBER(name, parameters) int(*name) parameters;
    ST_DRIVER(ST_MEMBER)
#undef ST_MEMBER
};

/* NULL: no driver is loaded, or the program does not call it through the wrappers. */
const struct st_driver *st_driver(void);
/* The program has called it through a wrapper; `used`: not to look a function up alone, which
 * programs do that never use a GPU. */
void st_cuda_note(bool used);
/* The `gpu` object of a device; made when it is first asked for, unless `known` is wanted alone.
 * 0: there is none. */
uint32_t st_cuda_gpu(int ordinal, bool known);
/* A dmabuf that the program got for an address. */
void st_cuda_dmabuf_note(int fd, uint64_t address, uint64_t size_bytes);

/* --- cupti.c ----------------------------------------------------------------------------------------- */

/* After the first cuInit: the kernel timeline, where CUPTI can be loaded. */
void st_timeline_start(void);

#endif
