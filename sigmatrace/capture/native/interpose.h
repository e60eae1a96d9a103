/* dlsym and dlvsym of a shim: included by one source file of each shim that fills the registry
 * (st_interpose). They must be in the shim itself: only what is preloaded comes before libc.
 *
 * A look-up that is none of ours is passed on by a jump, not a call, because libc looks at the
 * return address to know who asks for RTLD_NEXT. Where two shims define these functions, the
 * first one answers for both: the registry is the core's. */
#ifndef ST_INTERPOSE_H
#define ST_INTERPOSE_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first header"
#endif
#include <dlfcn.h>

#include "sigmatrace.h"

#define ST_JUMPS __attribute__((visibility("default"), optimize("O2", "omit-frame-pointer"), noinline))

/* A name that only the shim has is not there; dlerror says so. */
static inline void *st_absent(const char *name)
{
    void *none = st_real_dlsym()(RTLD_NEXT, name);
    __asm__ volatile("" : "+r"(none)); /* a call, as the next after the shim is meant */
    return none;
}

ST_JUMPS void *dlsym(void *restrict handle, const char *restrict name)
{
    if (handle == RTLD_DEFAULT && st_interpose_absent(name, __builtin_return_address(0)))
        return st_absent(name);
    struct st_interposition ours = st_interpose_find(handle, name);
    if (__builtin_expect(!ours.wrapper, 1))
        return st_real_dlsym()(handle, name);
    /* The application's own look-up comes last: dlerror speaks of it. */
    void *found = st_real_dlsym()(handle, name);
    return found == ours.original ? ours.wrapper : found;
}

ST_JUMPS void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    struct st_interposition ours = st_interpose_find(handle, name);
    if (__builtin_expect(!ours.wrapper, 1))
        return st_real_dlvsym()(handle, name, version);
    void *found = st_real_dlvsym()(handle, name, version);
    return found == ours.original ? ours.wrapper : found;
}

#endif
