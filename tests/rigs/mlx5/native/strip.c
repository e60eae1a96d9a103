/* libmlx5emu_cuda.so, preloaded below everything else where a real CUDA driver meets the emulated
 * NIC: its registers are ordinary memory, which the driver does not take for IO memory; and the
 * NIC cannot map the dmabufs of a real GPU, so it is told what they are of. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define STRIP_API __attribute__((visibility("default")))
enum { IOMEMORY = 4, DMABUF = 1, NOT_FOUND = 500, FIVE_ARGUMENTS = 12000, PAGE = 4096 };
enum { PAGES = 4096 };

typedef int (*host_register)(void *, size_t, unsigned);
typedef int (*host_unregister)(void *);
typedef int (*get_pointer)(uint64_t *, void *, unsigned);
typedef int (*get_handle)(void *, uint64_t, size_t, int, unsigned long long);
typedef int (*get_address)(const char *, void **, int, uint64_t);
typedef int (*get_address_2)(const char *, void **, int, uint64_t, int *);
typedef void *(*find)(void *, const char *);

static void *real_dlsym(void *handle, const char *name)
{
    static find real;
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real(handle, name);
}

static void *driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? real_dlsym(library, name) : NULL;
}

static void *nic(const char *name)
{
    void *library = dlopen("libmlx5emu.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? real_dlsym(library, name) : NULL;
}

/* The driver locks ordinary memory by whole pages, no page twice. Several registers lie on one, a
 * register may be that of several queue pairs, and so may what a tracer gives in its place: what
 * lies within a page is counted, and the whole page locked once. */
static struct page {
    uint8_t *at;
    unsigned users;
} pages[PAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct page *page_find(const void *at)
{
    for (int i = 0; i < PAGES; i++)
        if (pages[i].users && (uintptr_t)at - (uintptr_t)pages[i].at < PAGE)
            return &pages[i];
    return NULL;
}

static int page_add(host_register real, void *at, unsigned flags)
{
    uint8_t *base = (uint8_t *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
    struct page *page = page_find(at);
    int result = page ? 0 : real(base, PAGE, flags);
    for (int i = 0; i < PAGES && !page && !result; i++)
        if (!pages[i].users)
            page = &pages[i];
    if (page && !result) {
        page->at = base;
        page->users++;
    }
    return result;
}

STRIP_API int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    host_register real = (host_register)driver("cuMemHostRegister_v2");
    bool (*is_uar)(const void *, uint64_t) =
        (bool (*)(const void *, uint64_t))nic("mlx5emu_is_uar");
    if (!real)
        return NOT_FOUND;
    if (is_uar && is_uar(at, size))
        flags &= ~(unsigned)IOMEMORY;
    if (!at || !size || (uintptr_t)at % PAGE + size > PAGE)
        return real(at, size, flags);
    pthread_mutex_lock(&lock);
    int result = page_add(real, at, flags);
    pthread_mutex_unlock(&lock);
    return result;
}

STRIP_API int cuMemHostUnregister(void *at)
{
    host_unregister real = (host_unregister)driver("cuMemHostUnregister");
    if (!real)
        return NOT_FOUND;
    pthread_mutex_lock(&lock);
    struct page *page = page_find(at);
    bool last = page && --page->users == 0;
    uint8_t *base = page ? page->at : at;
    pthread_mutex_unlock(&lock);
    return page && !last ? 0 : real(base);
}

STRIP_API int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags)
{
    get_pointer real = (get_pointer)driver("cuMemHostGetDevicePointer_v2");
    pthread_mutex_lock(&lock);
    struct page *page = page_find(at);
    uint8_t *base = page ? page->at : at;
    pthread_mutex_unlock(&lock);
    int result = real ? real(out, base, flags) : NOT_FOUND;
    if (!result)
        *out += (uint64_t)((uint8_t *)at - base);
    return result;
}

STRIP_API int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                            unsigned long long flags)
{
    get_handle real = (get_handle)driver("cuMemGetHandleForAddressRange");
    void (*tell)(int, uint64_t) = (void (*)(int, uint64_t))nic("mlx5emu_dmabuf");
    int result = real ? real(handle, at, size, type, flags) : NOT_FOUND;
    if (!result && tell && type == DMABUF)
        tell(*(int *)handle, at);
    return result;
}

/* So long before each read of memory by the kernel, in which a tracer reads rings of the host. */
static struct timespec read_pause;

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("MLX5EMU_READ_US");
    unsigned long us = text ? strtoul(text, NULL, 10) : 0;
    read_pause = (struct timespec){(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
}

STRIP_API ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                   const struct iovec *remote, unsigned long remotes,
                                   unsigned long flags)
{
    if (read_pause.tv_sec || read_pause.tv_nsec)
        nanosleep(&read_pause, NULL);
    return syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}

static void *replacement(const char *name, int version);

STRIP_API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                  int *status)
{
    get_address_2 real = (get_address_2)driver("cuGetProcAddress_v2");
    int result = real ? real(name, out, version, flags, status) : NOT_FOUND;
    void *ours = name && out && *out && !result ? replacement(name, version) : NULL;
    if (ours)
        *out = ours;
    return result;
}

STRIP_API int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    get_address real = (get_address)driver("cuGetProcAddress");
    int result = real ? real(name, out, version, flags) : NOT_FOUND;
    void *ours = name && out && *out && !result ? replacement(name, version) : NULL;
    if (ours)
        *out = ours;
    return result;
}

static void *replacement(const char *name, int version)
{
    static const struct {
        const char *name;
        void *ours;
    } replaced[] = {
        {"cuMemHostRegister", (void *)cuMemHostRegister_v2},
        {"cuMemHostRegister_v2", (void *)cuMemHostRegister_v2},
        {"cuMemHostUnregister", (void *)cuMemHostUnregister},
        {"cuMemHostGetDevicePointer", (void *)cuMemHostGetDevicePointer_v2},
        {"cuMemHostGetDevicePointer_v2", (void *)cuMemHostGetDevicePointer_v2},
        {"cuMemGetHandleForAddressRange", (void *)cuMemGetHandleForAddressRange},
        {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
    };
    for (size_t i = 0; i < sizeof(replaced) / sizeof(*replaced); i++)
        if (!strcmp(name, replaced[i].name))
            return replaced[i].ours;
    if (!strcmp(name, "cuGetProcAddress"))
        return version < FIVE_ARGUMENTS ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
    return NULL;
}

static void *find_replaced(void *handle, const char *name)
{
    void *found = real_dlsym(handle, name);
    void *ours = found && handle != RTLD_NEXT ? replacement(name, 0) : NULL;
    return ours ? ours : found;
}

/* With both of glibc's versions, so that a tracer that looks for the next dlsym finds this one. */
STRIP_API void *dlsym_now(void *handle, const char *name)
{
    return find_replaced(handle, name);
}
STRIP_API void *dlsym_of_old(void *handle, const char *name)
{
    return find_replaced(handle, name);
}
__asm__(".symver dlsym_now, dlsym@@GLIBC_2.34");
__asm__(".symver dlsym_of_old, dlsym@GLIBC_2.2.5");
