/* Which copy of libmlx5 a call belongs to, and the start of the layer's wrappers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "interpose.h"

__thread uint32_t st_mlx5_inside;

static struct st_copy *libraries;

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

/* Libraries without versions have any. */
static void *find(void *handle, const char *name, const char *version)
{
    void *found = st_copy_symbol(handle, name, version);
    return found ? found : st_copy_symbol(handle, name, NULL);
}

static void fill(struct st_copy *copy, void *handle)
{
    struct st_mlx5_library *library = (void *)copy;
#define ST_FILL(name, version) library->name = (__typeof__(library->name))find(handle, #name, version);
    ST_MLX5_WRAPPED(ST_FILL)
    ST_MLX5_CALLED(ST_FILL)
#undef ST_FILL
    library->init_obj_1_0 =
        (__typeof__(library->init_obj_1_0))find(handle, "mlx5dv_init_obj", "MLX5_1.0");
}

/* Every libmlx5 has mlx5dv_init_obj. */
static struct st_mlx5_library *resolve(const void *caller)
{
    void *probe = st_copy_look_up(caller, "libmlx5.so.1", "mlx5dv_init_obj", "MLX5_1.2");
    if (!probe)
        probe = st_copy_look_up(caller, "libmlx5.so.1", "mlx5dv_init_obj", NULL);
    return (void *)st_copy_of(&libraries, probe, sizeof(struct st_mlx5_library), fill);
}

struct st_mlx5_library *st_mlx5_library(const void *caller)
{
    int saved = errno;
    struct st_mlx5_library *library = resolve(caller);
    if (!library)
        library = (void *)__atomic_load_n(&libraries, __ATOMIC_ACQUIRE);
    errno = saved;
    return library;
}

/* "44.0" of ".../libmlx5.so.1.24.44.0". */
void st_mlx5_seen(struct st_mlx5_library *library)
{
    Dl_info info;
    char path[PATH_MAX];
    if (__atomic_load_n(&library->seen, __ATOMIC_ACQUIRE))
        return;
    int saved = errno;
    if (dladdr((void *)library->mlx5dv_init_obj, &info) && realpath(info.dli_fname, path)) {
        const char *version = strstr(path, ".so.");
        for (int dots = 0; version && dots < 3; dots++)
            version = strchr(version + 1, '.');
        st_library_seen(ST_LAYER_MLX5DV, "libmlx5", version ? version + 1 : "", path, "symbol");
    }
    __atomic_store_n(&library->seen, 1, __ATOMIC_RELEASE);
    errno = saved;
}

void *st_slot_claim(void *entries, uint32_t count, size_t size, uint32_t *used)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *entry = (uint8_t *)entries + i * size;
        if (!st_slot_swap((uint32_t *)(void *)entry, ST_SLOT_FREE, ST_SLOT_TAKEN))
            continue;
        memset(entry + sizeof(uint32_t), 0, size - sizeof(uint32_t));
        uint32_t now = __atomic_load_n(used, __ATOMIC_RELAXED);
        while (now <= i && !__atomic_compare_exchange_n(used, &now, i + 1, false, __ATOMIC_RELEASE,
                                                        __ATOMIC_RELAXED))
            ;
        return entry;
    }
    st_lost("gpu: more objects at once than can be traced", 1);
    return NULL;
}
