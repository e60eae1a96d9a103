/* Fabrics: where domains and event queues come from. */
#include "wrap.h"

static const struct fi_ops_fabric *fabric_original(const struct fid_fabric *fabric)
{
    return ofi_table_original(fabric->ops);
}

OFI_MAKE(fabric_domain, fabric_original(fabric)->domain,
         (struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
          void *context),
         (fabric, info, domain, context),
         ofi_domain_wrap(*domain, info, depth))

OFI_MAKE(fabric_domain2, fabric_original(fabric)->domain2,
         (struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
          uint64_t flags, void *context),
         (fabric, info, domain, flags, context),
         ofi_domain_wrap(*domain, info, depth))

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

void ofi_fabric_wrap(struct fid_fabric *fabric) { ofi_table_patch(fabric->ops, fabric_install); }
