/* The real function behind a wrapper. dlsym itself may be wrapped by a layer, so that libc's
 * own is looked up in libc's symbol table. Answers inside SigmaTrace's libraries are refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>

#include "core.h"

#define HIDDEN_VERSION 0x8000u

/* Down to st_real_dlsym, no function of libc is called: a sanitizer, which wraps many, looks them up by
 * dlsym before they can be. */
static bool is_equal(const char *a, const char *b)
{
    for (; *a && *a == *b; a++)
        b++;
    return *a == *b;
}

static bool is_object(const char *path, const char *start)
{
    const char *base = path;
    for (const char *p = path; *p; p++)
        if (*p == '/')
            base = p + 1;
    for (; *start && *base == *start; base++)
        start++;
    return !*start;
}

static const void *table_of(const struct link_map *map, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *dynamic = map->l_ld; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == tag) {
            ElfW(Addr) at = dynamic->d_un.d_ptr; /* glibc has relocated it, except in the vdso */
            return (const void *)(at < map->l_addr ? at + map->l_addr : at);
        }
    return NULL;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (uint8_t)*name;
    return hash;
}

/* The default version of a symbol, by the object's GNU hash table. */
static void *look_in(const struct link_map *map, const char *name)
{
    const uint32_t *table = table_of(map, DT_GNU_HASH);
    const ElfW(Sym) *symbols = table_of(map, DT_SYMTAB);
    const char *strings = table_of(map, DT_STRTAB);
    const uint16_t *versions = table_of(map, DT_VERSYM);
    if (!table || !symbols || !strings)
        return NULL;
    uint32_t buckets = table[0], first = table[1], bloom = table[2], hash = gnu_hash(name);
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + bloom);
    const uint32_t *chain = bucket + buckets - first;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        if ((chain[i] | 1) == (hash | 1) && symbols[i].st_shndx != SHN_UNDEF &&
            is_equal(strings + symbols[i].st_name, name) &&
            !(versions && versions[i] & HIDDEN_VERSION))
            return (void *)(map->l_addr + symbols[i].st_value);
        if (chain[i] & 1)
            break;
    }
    return NULL;
}

/* The loader's own list: libc stands before all that is loaded later. */
static void *libc_function(const char *name)
{
    static const char *const objects[] = {"libc.so", "libdl.so"}; /* libdl: before glibc 2.34 */
    void *found = NULL;
    for (size_t i = 0; !found && i < 2; i++)
        for (const struct link_map *map = _r_debug.r_map; map && !found; map = map->l_next)
            if (is_object(map->l_name, objects[i]))
                found = look_in(map, name);
    return found;
}

st_dlsym_function st_real_dlsym(void)
{
    static st_dlsym_function found;
    st_dlsym_function known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (ST_LIKELY(known != NULL))
        return known;
    known = (st_dlsym_function)libc_function("dlsym");
    if (!known)
        known = dlsym;
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    return known;
}

st_dlvsym_function st_real_dlvsym(void)
{
    static st_dlvsym_function found;
    st_dlvsym_function known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (ST_LIKELY(known != NULL))
        return known;
    known = (st_dlvsym_function)libc_function("dlvsym");
    if (!known)
        known = dlvsym;
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    return known;
}

void *st_dlsym(void *handle, const char *name)
{
    int saved = errno;
    void *found = st_real_dlsym()(handle, name);
    errno = saved;
    return found;
}

void *st_dlvsym(void *handle, const char *name, const char *version)
{
    int saved = errno;
    void *found = st_real_dlvsym()(handle, name, version);
    errno = saved;
    return found;
}

void *st_foreign(void *address)
{
    Dl_info info;
    bool ours = address && dladdr(address, &info) && is_object(info.dli_fname, "libsigmatrace");
    return ours ? NULL : address;
}

/* Each loaded object in load order: for a wrapper that RTLD_NEXT leads to itself. */
static void *walk_objects(st_dlsym_function look, const char *name)
{
    struct link_map *map = NULL;
    void *self = dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD);
    void *found = NULL;
    if (!self || dlinfo(self, RTLD_DI_LINKMAP, &map))
        return NULL;
    for (; map && !found; map = map->l_next) {
        if (!*map->l_name || is_object(map->l_name, "libsigmatrace"))
            continue;
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (!handle)
            continue;
        found = st_foreign(look(handle, name));
        dlclose(handle);
    }
    dlclose(self);
    return found;
}

static void *in_scope_of(st_dlsym_function look, const char *name, const void *return_address)
{
    Dl_info info;
    if (!return_address || !dladdr(return_address, &info) || !info.dli_fname)
        return NULL;
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return NULL;
    void *found = st_foreign(look(handle, name));
    dlclose(handle);
    return found;
}

static void *in_scopes(const char *name, const void *return_address)
{
    st_dlsym_function look = st_real_dlsym();
    void *found = is_equal(name, "dlsym") ? (void *)look : st_foreign(look(RTLD_NEXT, name));
    return found ? found : in_scope_of(look, name, return_address);
}

void *st_scope_symbol(const char *name, const void *return_address)
{
    int saved = errno;
    void *found = in_scopes(name, return_address);
    errno = saved;
    return found;
}

void *st_next_symbol(const char *name, const void *return_address)
{
    int saved = errno;
    void *found = in_scopes(name, return_address);
    if (!found)
        found = walk_objects(st_real_dlsym(), name);
    errno = saved;
    return found;
}
