/* Which copy of libmlx5 a call belongs to. What a library links against decides, so the caller's
 * own scope is searched first: plugins bring it RTLD_LOCAL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hooks.h"
#include "interpose.h"

#define PROBE "mlx5dv_init_obj" /* every libmlx5 has it */

__thread uint32_t st_mlx5_inside;

static struct st_mlx5_library *libraries;

static const struct st_interposed wrappers[] = {
#define ST_ROW(name, version) {#name, version, (void *)name},
    ST_MLX5_WRAPPED(ST_ROW)
#undef ST_ROW
    {NULL, NULL, NULL}};

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_MLX5DV))
        st_interpose("libmlx5", wrappers);
}

static bool is_own(const void *symbol)
{
    Dl_info ours, its;
    return dladdr(&libraries, &ours) && dladdr(symbol, &its) && ours.dli_fbase == its.dli_fbase;
}

/* A function by a handle, when it is not the wrapper. Libraries without versions have any. */
static void *find(void *handle, const char *name, const char *version)
{
    void *found = handle ? st_dlvsym(handle, name, version) : NULL;
    if (!found && handle)
        found = st_dlsym(handle, name);
    return found && !is_own(found) ? found : NULL;
}

static void *probe_in(const char *object)
{
    void *scope = object ? dlopen(object, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = find(scope, PROBE, "MLX5_1.2");
    if (scope)
        dlclose(scope);
    return found;
}

static void *look_up_probe(const void *caller)
{
    Dl_info info;
    void *found = NULL;
    if (caller && dladdr(caller, &info))
        found = probe_in(info.dli_fname);
    if (!found)
        found = probe_in("libmlx5.so.1");
    return found ? found : st_next_symbol(PROBE, caller);
}

static struct st_mlx5_library *known(void *probe)
{
    struct st_mlx5_library *l = __atomic_load_n(&libraries, __ATOMIC_ACQUIRE);
    while (l && (void *)l->mlx5dv_init_obj != probe)
        l = l->next;
    return l;
}

static struct st_mlx5_library *load(void *probe)
{
    Dl_info info;
    if (!dladdr(probe, &info))
        return NULL;
    /* Never closed: states keep pointers into it. */
    void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    void *p = mmap(NULL, sizeof(struct st_mlx5_library), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!handle || p == MAP_FAILED)
        return NULL;
    struct st_mlx5_library *library = p;
#define ST_LOAD(name, version) library->name = (__typeof__(library->name))find(handle, #name, version);
    ST_MLX5_WRAPPED(ST_LOAD)
    ST_MLX5_CALLED(ST_LOAD)
#undef ST_LOAD
    library->init_obj_1_0 =
        (__typeof__(library->init_obj_1_0))find(handle, "mlx5dv_init_obj", "MLX5_1.0");
    return library;
}

static struct st_mlx5_library *resolve(const void *caller)
{
    void *probe = look_up_probe(caller);
    struct st_mlx5_library *library = probe ? known(probe) : NULL;
    if (library || !probe || !(library = load(probe)))
        return library;
    struct st_mlx5_library *first = __atomic_load_n(&libraries, __ATOMIC_ACQUIRE);
    do {
        struct st_mlx5_library *other = known(probe);
        if (other) {
            munmap(library, sizeof(*library));
            return other;
        }
        library->next = first;
    } while (!__atomic_compare_exchange_n(&libraries, &first, library, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return library;
}

struct st_mlx5_library *st_mlx5_library(const void *caller)
{
    int saved = errno;
    struct st_mlx5_library *library = resolve(caller);
    if (!library)
        library = __atomic_load_n(&libraries, __ATOMIC_ACQUIRE);
    errno = saved;
    return library;
}

/* "44.0" of ".../libmlx5.so.1.24.44.0". */
void st_mlx5_seen(const struct st_mlx5_library *library)
{
    int saved = errno;
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr((void *)library->mlx5dv_init_obj, &info) && realpath(info.dli_fname, path)) {
        const char *version = strstr(path, ".so.");
        for (int dots = 0; version && dots < 3; dots++)
            version = strchr(version + 1, '.');
        st_library_seen(ST_LAYER_MLX5DV, "libmlx5", version ? version + 1 : "", path, "symbol");
    }
    errno = saved;
}

void *st_slot_claim(void *entries, uint32_t count, size_t size)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *entry = (uint8_t *)entries + i * size;
        if (!st_slot_swap((uint32_t *)(void *)entry, ST_SLOT_FREE, ST_SLOT_TAKEN))
            continue;
        memset(entry + sizeof(uint32_t), 0, size - sizeof(uint32_t));
        return entry;
    }
    st_lost("gpu: more objects at once than can be traced", 1);
    return NULL;
}
