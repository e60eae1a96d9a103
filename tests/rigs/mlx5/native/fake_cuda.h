/* A stand-in for the CUDA driver: its memory is the host's, its kernels are threads. Only what the
 * programs of the rig and a tracer need. Numbers and signatures are those of the driver API. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_INVALID_CONTEXT = 201,
    CU_ALREADY_REGISTERED = 712,
    CU_NOT_REGISTERED = 713,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_NOT_SUPPORTED = 801,
};
typedef uint64_t cu_pointer;

/* The thread's current context, or NULL; functions that need one refuse without. */
void *fake_context(void);

/* A kernel of the stand-in: called once a thread. `NAME_bytes` is the size of its argument. */
struct fake_thread {
    unsigned block, blocks, thread, threads;
};
typedef void (*fake_kernel)(const struct fake_thread *, const void *argument);
struct fake_function {
    fake_kernel call;
    unsigned bytes;
    char name[64];
};
/* Runs a kernel to its end. */
void fake_kernel_run(const struct fake_function *function, const void *argument, unsigned blocks,
                     unsigned threads, unsigned stream);

/* For the stand-in's CUPTI: what was run since it asked that it be kept, the oldest first. */
struct fake_kernel_run {
    const char *name;
    uint64_t begin_ns, end_ns; /* of fake_now_ns */
    uint32_t blocks, threads, stream, number;
};
FAKE_API uint64_t fake_now_ns(void);
FAKE_API void fake_kernels_keep(void);
FAKE_API bool fake_kernel_take(struct fake_kernel_run *run);

FAKE_API int cuMemAlloc_v2(cu_pointer *at, size_t size);
FAKE_API int cuMemFree_v2(cu_pointer at);
FAKE_API int cuMemGetAddressRange_v2(cu_pointer *base, size_t *size, cu_pointer at);
FAKE_API int cuMemHostAlloc(void **at, size_t size, unsigned flags);
FAKE_API int cuMemFreeHost(void *at);
FAKE_API int cuMemHostRegister_v2(void *at, size_t size, unsigned flags);
FAKE_API int cuMemHostUnregister(void *at);
FAKE_API int cuMemHostGetDevicePointer_v2(cu_pointer *out, void *at, unsigned flags);
FAKE_API int cuMemHostGetFlags(unsigned *flags, void *at);
FAKE_API int cuPointerGetAttribute(void *out, int attribute, cu_pointer at);
FAKE_API int cuPointerGetAttributes(unsigned count, int *attributes, void **out, cu_pointer at);
FAKE_API int cuPointerSetAttribute(const void *value, int attribute, cu_pointer at);
FAKE_API int cuMemGetHandleForAddressRange(void *handle, cu_pointer at, size_t size, int type,
                                           unsigned long long flags);

FAKE_API int cuStreamCreate(void **stream, unsigned flags);
FAKE_API int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
FAKE_API int cuStreamDestroy_v2(void *stream);
FAKE_API int cuStreamSynchronize(void *stream);
FAKE_API int cuStreamQuery(void *stream);
FAKE_API int cuCtxSynchronize(void);
FAKE_API int cuEventCreate(void **event, unsigned flags);
FAKE_API int cuEventDestroy_v2(void *event);
FAKE_API int cuEventRecord(void *event, void *stream);
FAKE_API int cuEventQuery(void *event);
FAKE_API int cuEventSynchronize(void *event);
FAKE_API int cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t size, void *stream);
FAKE_API int cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t size, void *stream);
FAKE_API int cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t size, void *stream);
FAKE_API int cuMemcpyDtoH_v2(void *to, cu_pointer from, size_t size);
FAKE_API int cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t size);
FAKE_API int cuMemsetD8_v2(cu_pointer to, unsigned char value, size_t size);
FAKE_API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, void *stream, void **params,
                            void **extra);

#endif
