/* How the NIC reaches memory: by loads and stores, or by the CUDA driver on a stream of its own. */
#include "nic.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POINTER_MEMORY_TYPE = 2, MEMORY_TYPE_DEVICE = 2, STREAM_NON_BLOCKING = 1, DMABUFS = 256 };
enum { DEINITIALIZED = 4 };

static struct {
    bool looked, usable;
    int (*pointer)(void *, int, uint64_t);
    int (*from_device)(void *, uint64_t, size_t, void *);
    int (*to_device)(uint64_t, const void *, size_t, void *);
    int (*synchronize)(void *);
    int (*context_get)(void **);
    int (*context_set)(void *);
    int (*stream_create)(void **, unsigned);
    int (*host_alloc)(void **, size_t, unsigned);
    void *context, *stream;
    uint8_t *bounce;
} cuda;
static _Thread_local bool entered;

static struct {
    ino_t inode;
    uint64_t address;
} dmabufs[DMABUFS];
static unsigned dmabufs_seen;

void mlx5emu_dmabuf(int fd, uint64_t address)
{
    struct stat status;
    if (fstat(fd, &status))
        return;
    dmabufs[dmabufs_seen % DMABUFS].inode = status.st_ino;
    dmabufs[dmabufs_seen++ % DMABUFS].address = address;
}

/* The stand-in's memory is the host's: the engine needs no driver for it, unless MLX5EMU_COPIES=1
 * asks for it, so that this way is tested without a GPU. */
static void look_for_cuda(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return;
    cuda.looked = true;
    const char *copies = getenv("MLX5EMU_COPIES");
    if (dlsym(library, "fake_cuda_is_here") && !(copies && !strcmp(copies, "1")))
        return;
    *(void **)&cuda.pointer = dlsym(library, "cuPointerGetAttribute");
    *(void **)&cuda.from_device = dlsym(library, "cuMemcpyDtoHAsync_v2");
    *(void **)&cuda.to_device = dlsym(library, "cuMemcpyHtoDAsync_v2");
    *(void **)&cuda.synchronize = dlsym(library, "cuStreamSynchronize");
    *(void **)&cuda.context_get = dlsym(library, "cuCtxGetCurrent");
    *(void **)&cuda.context_set = dlsym(library, "cuCtxSetCurrent");
    *(void **)&cuda.stream_create = dlsym(library, "cuStreamCreate");
    *(void **)&cuda.host_alloc = dlsym(library, "cuMemHostAlloc");
    cuda.usable = cuda.pointer && cuda.from_device && cuda.to_device && cuda.synchronize &&
                  cuda.context_get && cuda.context_set && cuda.stream_create && cuda.host_alloc;
}

/* In the program's thread and context, before its kernels run. */
static bool is_device(const void *at)
{
    unsigned type = 0;
    if (!cuda.looked)
        look_for_cuda();
    if (!cuda.usable || cuda.pointer(&type, POINTER_MEMORY_TYPE, (uint64_t)(uintptr_t)at) ||
        type != MEMORY_TYPE_DEVICE)
        return false;
    if (!cuda.stream) {
        void *bounce = NULL;
        if (cuda.context_get(&cuda.context) ||
            cuda.stream_create(&cuda.stream, STREAM_NON_BLOCKING) ||
            cuda.host_alloc(&bounce, NIC_CHUNK, 0)) {
            fputs("mlx5emu: no stream for the memory of the GPU\n", stderr);
            exit(3);
        }
        cuda.bounce = bounce;
    }
    return true;
}

/* The latest comes first: drivers may give all dmabufs the same inode. */
static void *dmabuf_address(int fd)
{
    struct stat status;
    if (fstat(fd, &status))
        return NULL;
    for (unsigned age = 1; age <= DMABUFS && age <= dmabufs_seen; age++) {
        unsigned i = (dmabufs_seen - age) % DMABUFS;
        if (dmabufs[i].inode == status.st_ino)
            return (void *)(uintptr_t)dmabufs[i].address;
    }
    return NULL;
}

bool nic_memory_make(struct nic_memory *memory, void *at, uint64_t size, uint64_t iova, int fd,
                     uint64_t offset)
{
    *memory = (struct nic_memory){.iova = iova, .size = size};
    if (fd >= 0) {
        at = dmabuf_address(fd);
        if (!at) {
            memory->mapping = mmap(NULL, offset + size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (memory->mapping == MAP_FAILED) {
                memory->mapping = NULL;
                return false;
            }
            at = memory->mapping;
        }
        at = (uint8_t *)at + offset;
    }
    memory->at = at;
    memory->device = !memory->mapping && is_device(at);
    return true;
}

void nic_memory_drop(struct nic_memory *memory)
{
    if (memory->mapping)
        munmap(memory->mapping, (size_t)(memory->at - (uint8_t *)memory->mapping) + memory->size);
    memory->mapping = NULL;
}

static void check(int result)
{
    if (result == DEINITIALIZED) { /* the program ends */
        nic_leave();
        for (;;)
            pause();
    }
    if (result) {
        fprintf(stderr, "mlx5emu: the driver refused a copy (%d)\n", result);
        abort();
    }
}

static void enter(void)
{
    if (!entered)
        check(cuda.context_set(cuda.context));
    entered = true;
}

void nic_memory_read(const struct nic_memory *memory, uint64_t offset, void *to, uint64_t size)
{
    const uint8_t *from = memory->at + offset;
    if (!memory->device) {
        memcpy(to, from, size);
        return;
    }
    enter();
    for (uint64_t done = 0, now; done < size; done += now) {
        now = size - done < NIC_CHUNK ? size - done : NIC_CHUNK;
        check(cuda.from_device(cuda.bounce, (uint64_t)(uintptr_t)from + done, now, cuda.stream));
        check(cuda.synchronize(cuda.stream));
        memcpy((uint8_t *)to + done, cuda.bounce, now);
    }
}

void nic_memory_write(const struct nic_memory *memory, uint64_t offset, const void *from,
                      uint64_t size)
{
    uint8_t *to = memory->at + offset;
    if (!memory->device) {
        /* Words that a program polls change at once. */
        if (size == 8 && !((uintptr_t)to & 7))
            {
            uint64_t word;
            memcpy(&word, from, sizeof(word));
            atomic_store((_Atomic uint64_t *)(void *)to, word);
        }
        else
            memcpy(to, from, size);
        return;
    }
    enter();
    for (uint64_t done = 0, now; done < size; done += now) {
        now = size - done < NIC_CHUNK ? size - done : NIC_CHUNK;
        memcpy(cuda.bounce, (const uint8_t *)from + done, now);
        check(cuda.to_device((uint64_t)(uintptr_t)to + done, cuda.bounce, now, cuda.stream));
        check(cuda.synchronize(cuda.stream));
    }
}
