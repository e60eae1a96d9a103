/* The entry by LD_PRELOAD, for a libfabric that loads no providers. */
#include "ofi.h"

/* Set by the hooking provider when it is at work in this process: one of the two records. */
ST_API bool sigmatrace_ofi_hooked;

typedef int (*fabric_function)(struct fi_fabric_attr *, struct fid_fabric **, void *);
typedef int (*fabric2_function)(struct fi_info *, struct fid_fabric **, uint64_t, void *);

static void fabric_opened(struct fid_fabric *fabric, void *function)
{
    /* The hook runs inside the library's function, so it has come first when there is one. */
    if (__atomic_load_n(&sigmatrace_ofi_hooked, __ATOMIC_RELAXED) || !st_layer_on(ST_LAYER_OFI))
        return;
    if (ofi_library_seen(function, "symbol"))
        ofi_fabric_wrap(fabric);
}

ST_API int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    fabric_function next =
        (fabric_function)st_next_symbol("fi_fabric", __builtin_return_address(0));
    if (!next)
        return -FI_ENOSYS;
    int result = next(attr, fabric, context);
    if (!result)
        fabric_opened(*fabric, (void *)next);
    return result;
}

/* Of libfabric 2.x; the older headers do not declare it. */
ST_API int fi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags,
                      void *context);
int fi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags, void *context)
{
    fabric2_function next =
        (fabric2_function)st_next_symbol("fi_fabric2", __builtin_return_address(0));
    if (!next)
        return -FI_ENOSYS;
    int result = next(info, fabric, flags, context);
    if (!result)
        fabric_opened(*fabric, (void *)next);
    return result;
}
