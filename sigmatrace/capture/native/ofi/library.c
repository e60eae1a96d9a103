/* Which libfabric is this: path and version of the shared object, told to the core once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ofi.h"

enum st_mode ofi_mode;

typedef char *(*tostr_function)(char *, size_t, const void *, enum fi_type);
typedef uint32_t (*version_function)(void);

/* "2.5.1" when the library tells its release, else the version of its interface, else "". */
static void library_version(const char *path, char *text, size_t size)
{
    text[0] = 0;
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return;
    tostr_function tostr = (tostr_function)dlsym(handle, "fi_tostr_r");
    version_function version = (version_function)dlsym(handle, "fi_version");
    if (tostr)
        tostr(text, size, "", FI_TYPE_VERSION);
    if (!text[0] && version)
        snprintf(text, size, "%u.%u", FI_MAJOR(version()), FI_MINOR(version()));
    dlclose(handle);
}

bool ofi_library_seen(const void *address, const char *how)
{
    /* The object that was seen last: programs open many fabrics, of one library. */
    static const void *seen;
    int kept = errno;
    ofi_mode = st_mode();
    Dl_info info = {0};
    if (!dladdr(address, &info) || !info.dli_fname)
        info.dli_fname = "";
    if (info.dli_fbase && __atomic_load_n(&seen, __ATOMIC_RELAXED) == info.dli_fbase) {
        errno = kept;
        return true;
    }
    char version[32], path[PATH_MAX];
    library_version(info.dli_fname, version, sizeof(version));
    const char *name = realpath(info.dli_fname, path) ? path : info.dli_fname;
    bool on = st_library_seen(ST_LAYER_OFI, "libfabric", version, name, how);
    if (on)
        __atomic_store_n(&seen, info.dli_fbase, __ATOMIC_RELAXED);
    errno = kept;
    return on;
}
