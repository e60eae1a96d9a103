/* What differs between a GPU and the stand-in's threads. */
#ifndef PAIR_DEVICE_H
#define PAIR_DEVICE_H

#include "pair.h"

struct place {
    uint32_t block, blocks, thread, threads;
};

#ifdef __CUDACC__

#define DEV static __device__ __forceinline__
#define KERNEL(name)                                                                              \
    static __device__ void name##_body(struct place place, const struct pair_args *args);         \
    extern "C" __global__ void name(struct pair_args args)                                        \
    {                                                                                             \
        struct place place = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};                    \
        name##_body(place, &args);                                                                \
    }                                                                                             \
    static __device__ void name##_body(struct place place, const struct pair_args *args)
DEV void dev_fence(void)
{
    __threadfence_system();
}
DEV void dev_pause(void)
{
}
DEV uint64_t dev_now_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
DEV uint64_t dev_add64(uint64_t *at, uint64_t value)
{
    return atomicAdd((unsigned long long *)at, (unsigned long long)value);
}
DEV uint32_t dev_swap32(uint32_t *at, uint32_t value)
{
    return atomicExch(at, value);
}
DEV void dev_max64_system(uint64_t *at, uint64_t value)
{
    atomicMax_system((unsigned long long *)at, (unsigned long long)value);
}

#else

#include <sched.h>
#include <string.h>
#include <time.h>

#include "fake_cuda.h"

#define DEV static inline
#define KERNEL(name)                                                                              \
    static void name##_body(struct place place, const struct pair_args *args);                    \
    const unsigned name##_bytes = sizeof(struct pair_args);                                       \
    void name(const struct fake_thread *self, const void *argument)                               \
    {                                                                                             \
        struct pair_args args;                                                                    \
        struct place place = {self->block, self->blocks, self->thread, self->threads};            \
        memcpy(&args, argument, sizeof(args));                                                    \
        name##_body(place, &args);                                                                \
    }                                                                                             \
    static void name##_body(struct place place, const struct pair_args *args)
DEV void dev_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
DEV void dev_pause(void)
{
    sched_yield();
}
DEV uint64_t dev_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
DEV uint64_t dev_add64(uint64_t *at, uint64_t value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
DEV uint32_t dev_swap32(uint32_t *at, uint32_t value)
{
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
DEV void dev_max64_system(uint64_t *at, uint64_t value)
{
    uint64_t old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_SEQ_CST,
                                                       __ATOMIC_SEQ_CST))
        ;
}

#endif

DEV uint64_t dev_load64(uint64_t at)
{
    return *(volatile uint64_t *)(uintptr_t)at;
}
DEV void dev_store64(uint64_t at, uint64_t value)
{
    *(volatile uint64_t *)(uintptr_t)at = value;
}
DEV void dev_store32(uint64_t at, uint32_t value)
{
    *(volatile uint32_t *)(uintptr_t)at = value;
}
DEV uint32_t big32(uint32_t v)
{
    return v << 24 | (v & 0xff00) << 8 | (v >> 8 & 0xff00) | v >> 24;
}

#endif
