/* Event queues: the moment at which a connected endpoint learns its peer. */
#include <stdlib.h>

#include "ofi.h"

struct ofi_eq {
    struct ofi_swaps swaps;
};

/* `event` is NULL in the library's own readerr, which reads its entry through the table. */
static void event_seen(const uint32_t *event, const void *buf, ssize_t result)
{
    if (result >= (ssize_t)sizeof(struct fi_eq_cm_entry) && event && *event == FI_CONNECTED)
        ofi_ep_connected(((const struct fi_eq_cm_entry *)buf)->fid);
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buf, size_t size, uint64_t flags)
{
    const struct fi_ops_eq *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);
    const struct fi_ops_eq *inner = ops->read == eq_read ? ofi_table_of(ops)->original : ops;
    st_enter();
    ssize_t result = inner->read(fid, event, buf, size, flags);
    st_leave();
    event_seen(event, buf, result);
    return result;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buf, size_t size, int timeout,
                        uint64_t flags)
{
    const struct fi_ops_eq *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);
    const struct fi_ops_eq *inner = ops->sread == eq_sread ? ofi_table_of(ops)->original : ops;
    st_enter();
    ssize_t result = inner->sread(fid, event, buf, size, timeout, flags);
    st_leave();
    event_seen(event, buf, result);
    return result;
}

static void eq_ops_install(void *ops)
{
    struct fi_ops_eq *table = ops;
    OFI_INSTALL(table, read, eq_read);
    OFI_INSTALL(table, sread, eq_sread);
}

static int eq_close(struct fid *fid)
{
    struct ofi_eq *eq = ofi_table_of(fid->ops)->owner;
    int result = ofi_swaps_close(&eq->swaps, fid);
    if (!result)
        free(eq);
    return result;
}

static void eq_fid_install(void *ops)
{
    struct fi_ops *table = ops;
    OFI_INSTALL(table, close, eq_close);
}

void ofi_eq_wrap(struct fid_eq *fid)
{
    if (fid->fid.ops && fid->fid.ops->close == eq_close)
        return;
    struct ofi_eq *eq = calloc(1, sizeof(*eq));
    if (!eq)
        return;
    eq->swaps.owner = eq;
    ofi_swaps_add(&eq->swaps, &fid->fid.ops, eq_fid_install);
    ofi_swaps_add(&eq->swaps, &fid->ops, eq_ops_install);
}
