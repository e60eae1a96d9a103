/* Which copy of a library a call belongs to. A process may have several: plugins and wheels bring
 * their own, RTLD_LOCAL. What a library links against decides, so the caller's own scope is
 * searched first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>

#include "core.h"

void *st_copy_symbol(void *handle, const char *name, const char *version)
{
    if (!handle)
        return NULL;
    return st_foreign(version ? st_dlvsym(handle, name, version) : st_dlsym(handle, name));
}

/* Seen from a loaded file. */
static void *seen_from(const char *file, const char *name, const char *version)
{
    void *handle = file ? dlopen(file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = st_copy_symbol(handle, name, version);
    if (handle)
        dlclose(handle);
    return found;
}

void *st_copy_look_up(const void *caller, const char *file, const char *name, const char *version)
{
    Dl_info info;
    void *found = NULL;
    int saved = errno;
    if (caller && dladdr(caller, &info))
        found = seen_from(info.dli_fname, name, version);
    if (!found)
        found = seen_from(file, name, version);
    if (!found)
        found = st_next_symbol(name, caller);
    errno = saved;
    return found;
}

static struct st_copy *known(struct st_copy **copies, const void *probe)
{
    struct st_copy *copy = __atomic_load_n(copies, __ATOMIC_ACQUIRE);
    while (copy && copy->probe != probe)
        copy = copy->next;
    return copy;
}

static struct st_copy *load(void *probe, size_t size, st_copy_fill fill)
{
    Dl_info info;
    if (!dladdr(probe, &info))
        return NULL;
    /* Never closed: states keep pointers into it. */
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    struct st_copy *copy = handle ? st_map(size) : NULL;
    if (!copy)
        return NULL;
    copy->probe = probe;
    fill(copy, handle);
    return copy;
}

struct st_copy *st_copy_of(struct st_copy **copies, void *probe, size_t size, st_copy_fill fill)
{
    struct st_copy *copy = probe ? known(copies, probe) : NULL;
    if (copy || !probe || !(copy = load(probe, size, fill)))
        return copy;
    struct st_copy *first = __atomic_load_n(copies, __ATOMIC_ACQUIRE);
    do {
        struct st_copy *other = known(copies, probe);
        if (other) {
            st_unmap(copy, size);
            return other;
        }
        copy->next = first;
    } while (!__atomic_compare_exchange_n(copies, &first, copy, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return copy;
}
