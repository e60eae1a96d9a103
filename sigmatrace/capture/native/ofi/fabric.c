/* Fabrics: where domains and event queues come from. */
#include "ofi.h"

static const struct fi_ops_fabric *fabric_original(const struct fid_fabric *fabric)
{
    return ofi_table_original(fabric->ops);
}

static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info,
                         struct fid_domain **domain, void *context)
{
    uint8_t depth = st_enter();
    int result = fabric_original(fabric)->domain(fabric, info, domain, context);
    st_leave();
    if (!result)
        ofi_domain_wrap(*domain, info, depth);
    return result;
}

static int fabric_domain2(struct fid_fabric *fabric, struct fi_info *info,
                          struct fid_domain **domain, uint64_t flags, void *context)
{
    uint8_t depth = st_enter();
    int result = fabric_original(fabric)->domain2(fabric, info, domain, flags, context);
    st_leave();
    if (!result)
        ofi_domain_wrap(*domain, info, depth);
    return result;
}

static int fabric_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
                          void *context)
{
    int result = fabric_original(fabric)->eq_open(fabric, attr, eq, context);
    if (!result)
        ofi_eq_wrap(*eq);
    return result;
}

static void fabric_install(void *ops)
{
    struct fi_ops_fabric *table = ops;
    OFI_INSTALL(table, domain, fabric_domain);
    OFI_INSTALL(table, domain2, fabric_domain2);
    OFI_INSTALL(table, eq_open, fabric_eq_open);
}

void ofi_fabric_wrap(struct fid_fabric *fabric)
{
    ofi_table_patch(fabric->ops, offsetof(struct fi_ops_fabric, domain), (void *)fabric_domain,
                    fabric_install);
}
