/* Who asks a library's handle for a function by name gets the wrapper, if there is one: the
 * registry behind the dlsym and dlvsym of the shims. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "core.h"

#define TABLES 8u

static struct {
    const char *library;
    const struct st_interposed *rows;
} tables[TABLES];
static uint32_t table_count;

void st_interpose(const char *library, const struct st_interposed *rows)
{
    uint32_t at = __atomic_fetch_add(&table_count, 1, __ATOMIC_RELAXED);
    if (at >= TABLES) {
        st_lost("names for dlsym beyond the eighth table", 1);
        return;
    }
    tables[at].library = library;
    __atomic_store_n(&tables[at].rows, rows, __ATOMIC_RELEASE);
}

static bool lies_in(void *function, const char *library)
{
    Dl_info info;
    if (!function || !dladdr(function, &info) || !info.dli_fname)
        return false;
    const char *base = strrchr(info.dli_fname, '/');
    return !strncmp(base ? base + 1 : info.dli_fname, library, strlen(library));
}

static const struct st_interposed *row_of(uint32_t table, const char *name)
{
    const struct st_interposed *row = __atomic_load_n(&tables[table].rows, __ATOMIC_ACQUIRE);
    while (row && row->name && strcmp(row->name, name))
        row++;
    return row && row->name ? row : NULL;
}

struct st_interposition st_interpose_find(void *handle, const char *name)
{
    struct st_interposition none = {NULL, NULL};
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !name)
        return none;
    for (uint32_t i = 0; i < TABLES; i++) {
        const struct st_interposed *row = row_of(i, name);
        if (!row)
            continue;
        void *original = row->version ? st_dlvsym(handle, name, row->version)
                                      : st_dlsym(handle, name);
        if (lies_in(original, tables[i].library))
            return (struct st_interposition){original, row->wrapper};
    }
    return none;
}

bool st_interpose_absent(const char *name, const void *caller)
{
    for (uint32_t i = 0; name && i < TABLES; i++)
        if (row_of(i, name))
            return !st_scope_symbol(name, caller);
    return false;
}
