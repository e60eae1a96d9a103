/* The entry as a hooking provider: libfabric loads this library itself (FI_PROVIDER_PATH) and
 * hands it every fabric that is opened (FI_HOOK=sigmatrace), however it was loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/providers/fi_prov.h>

#include "ofi.h"

/* The preload entry, where it is loaded too, leaves libfabric to this one. */
static void preload_stand_back(void)
{
    bool *hooked = dlsym(RTLD_DEFAULT, "sigmatrace_ofi_hooked");
    if (hooked)
        __atomic_store_n(hooked, true, __ATOMIC_RELAXED);
}

static int hook_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    (void)context;
    /* The application keeps the provider's own fabric; its tables are patched. */
    *fabric = attr->fabric;
    if (!st_layer_on(ST_LAYER_OFI))
        return 0;
    preload_stand_back();
    if (ofi_library_seen(__builtin_return_address(0), "hook"))
        ofi_fabric_wrap(attr->fabric);
    return 0;
}

static struct fi_provider hook_provider = {
    .version = FI_VERSION(1, 0),
    /* At or above what applications ask for, or libfabric leaves the provider out. */
    .fi_version = FI_VERSION(2, 9),
    .name = "ofi_hook_sigmatrace",
    .fabric = hook_fabric,
};

ST_API struct fi_provider *fi_prov_ini(void);
struct fi_provider *fi_prov_ini(void) { return &hook_provider; }
