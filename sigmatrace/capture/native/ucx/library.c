/* Which copy of UCX a call belongs to.
 *
 * A process can hold several (an MPI's own, a Python wheel's with a hashed name), often
 * loaded RTLD_LOCAL. What a library links against decides, so its own scope is searched
 * first; only then what follows the shim. */
#define _GNU_SOURCE
#include "ucx.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

struct ucx_library *ucx_libraries;

static bool own_symbol(const void *symbol)
{
    Dl_info ours, its;
    return dladdr((void *)ucx_library_resolve, &ours) && dladdr(symbol, &its) &&
           ours.dli_fbase == its.dli_fbase;
}

void *ucx_symbol(const char *name, const void *caller)
{
    Dl_info info;
    if (dladdr(caller, &info) && info.dli_fname) {
        void *scope = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (scope) {
            void *symbol = st_dlsym(scope, name);
            dlclose(scope);
            if (symbol && !own_symbol(symbol))
                return symbol;
        }
    }
    return st_next_symbol(name, caller);
}

static int find_text(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct ucx_library *library = data;
    uintptr_t inside = library->text_begin;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && inside >= begin && inside < begin + p->p_memsz) {
            library->text_begin = begin;
            library->text_end = begin + p->p_memsz;
            return 1;
        }
    }
    return 0;
}

static struct ucx_library *library_open(void *init)
{
    Dl_info info;
    if (!dladdr(init, &info))
        return NULL;
    /* Never closed: the slots keep pointers into it. */
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    struct ucx_library *library = handle ? calloc(1, sizeof(*library)) : NULL;
    if (!library)
        return NULL;
#define UCX_LOAD(name) library->name = (__typeof__(library->name))st_dlsym(handle, #name);
    UCX_UCP_WRAPPED(UCX_LOAD)
    UCX_UCP_CALLED(UCX_LOAD)
#undef UCX_LOAD
    library->path = info.dli_fname;
    library->text_begin = (uintptr_t)init;
    dl_iterate_phdr(find_text, library);
    return library;
}

static struct ucx_library *library_known(void *init)
{
    struct ucx_library *l = __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE);
    while (l && (void *)l->ucp_init_version != init)
        l = l->next;
    return l;
}

struct ucx_library *ucx_library_resolve(const void *caller)
{
    void *init = ucx_symbol("ucp_init_version", caller);
    struct ucx_library *library = init ? library_known(init) : NULL;
    if (library || !init)
        return library ? library : __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE);
    library = library_open(init);
    if (!library)
        return NULL;
    struct ucx_library *first = __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE);
    do {
        struct ucx_library *other = library_known(init);
        if (other) {
            free(library);
            return other;
        }
        library->next = first;
    } while (!__atomic_compare_exchange_n(&ucx_libraries, &first, library, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return library;
}
