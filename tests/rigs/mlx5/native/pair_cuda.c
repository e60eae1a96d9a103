/* The CUDA driver, found as the libraries find it. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "pair_host.h"

enum { VERSION = 12000, PORTABLE_MAPPED = 3, IOMEMORY = 4, DMABUF = 1, PAGE = 4096 };

static struct {
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*allocate)(uint64_t *, size_t);
    int (*host_allocate)(void **, size_t, unsigned);
    int (*host_register)(void *, size_t, unsigned);
    int (*host_unregister)(void *);
    int (*pointer)(uint64_t *, void *, unsigned);
    int (*handle)(void *, uint64_t, size_t, int, unsigned long long);
    int (*put)(uint64_t, const void *, size_t);
    int (*get)(void *, uint64_t, size_t);
    int (*load)(void **, const char *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*stream)(void **, unsigned);
    int (*synchronize)(void *);
} cuda;
static void *context, *module, *stream;

static void lookup(void *out, const char *name)
{
    static int (*find)(const char *, void **, int, uint64_t, int *);
    if (!find) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        *(void **)&find = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    }
    need(name, !find || find(name, out, VERSION, 0, NULL));
}

void cuda_start(void)
{
    int device;
    lookup(&cuda.init, "cuInit");
    lookup(&cuda.device, "cuDeviceGet");
    lookup(&cuda.retain, "cuDevicePrimaryCtxRetain");
    lookup(&cuda.current, "cuCtxSetCurrent");
    lookup(&cuda.allocate, "cuMemAlloc");
    lookup(&cuda.host_allocate, "cuMemHostAlloc");
    lookup(&cuda.host_register, "cuMemHostRegister");
    lookup(&cuda.host_unregister, "cuMemHostUnregister");
    lookup(&cuda.pointer, "cuMemHostGetDevicePointer");
    lookup(&cuda.handle, "cuMemGetHandleForAddressRange");
    lookup(&cuda.put, "cuMemcpyHtoD");
    lookup(&cuda.get, "cuMemcpyDtoH");
    lookup(&cuda.load, "cuModuleLoad");
    lookup(&cuda.function, "cuModuleGetFunction");
    lookup(&cuda.launch, "cuLaunchKernel");
    lookup(&cuda.stream, "cuStreamCreate");
    lookup(&cuda.synchronize, "cuStreamSynchronize");
    need("cuInit", cuda.init(0));
    need("cuDeviceGet", cuda.device(&device, 0));
    need("cuDevicePrimaryCtxRetain", cuda.retain(&context, device));
    cuda_enter();
    need(options.kernel, cuda.load(&module, options.kernel));
    need("cuStreamCreate", cuda.stream(&stream, 1));
}

void cuda_enter(void)
{
    need("cuCtxSetCurrent", cuda.current(context));
}

uint64_t cuda_memory(uint64_t size, enum memory kind)
{
    uint64_t at = 0;
    void *host = NULL;
    size = (size + PAGE - 1) / PAGE * PAGE;
    if (kind == IN_HOST) {
        need("cuMemHostAlloc", cuda.host_allocate(&host, size, PORTABLE_MAPPED));
        memset(host, 0, size);
        return (uintptr_t)host;
    }
    need("cuMemAlloc", cuda.allocate(&at, size));
    char zeros[PAGE] = {0};
    for (uint64_t i = 0; i < size; i += PAGE)
        cuda_put(at + i, zeros, PAGE);
    return at;
}

void cuda_put(uint64_t to, const void *from, uint64_t size)
{
    need("cuMemcpyHtoD", cuda.put(to, from, size));
}

void cuda_get(void *to, uint64_t from, uint64_t size)
{
    need("cuMemcpyDtoH", cuda.get(to, from, size));
}

int cuda_dmabuf(uint64_t at, uint64_t size)
{
    int fd = -1;
    size = (size + PAGE - 1) / PAGE * PAGE;
    need("cuMemGetHandleForAddressRange", cuda.handle(&fd, at, size, DMABUF, 0));
    return fd;
}

static uint64_t registered(void *at, size_t size, unsigned flags)
{
    uint64_t device = 0;
    need("cuMemHostRegister", cuda.host_register(at, size, flags));
    need("cuMemHostGetDevicePointer", cuda.pointer(&device, at, 0));
    return device;
}

uint64_t cuda_register(void *at, size_t size)
{
    return registered(at, size, PORTABLE_MAPPED | IOMEMORY);
}

uint64_t cuda_register_memory(void *at, size_t size)
{
    return registered(at, size, PORTABLE_MAPPED);
}

void cuda_unregister(void *at)
{
    need("cuMemHostUnregister", cuda.host_unregister(at));
}

void cuda_run(const char *name, const struct pair_args *args, uint32_t blocks, uint32_t threads)
{
    struct pair_args copy = *args;
    void *params[] = {&copy}, *function = NULL;
    need("cuModuleGetFunction", cuda.function(&function, module, name));
    need("cuLaunchKernel",
         cuda.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
    need(name, cuda.synchronize(stream));
}
