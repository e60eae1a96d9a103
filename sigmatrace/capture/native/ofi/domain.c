/* Domains: where endpoints, queues, address vectors and memory regions come from. */
#include <stdlib.h>
#include <string.h>

#include "wrap.h"

static struct ofi_domain *domain_first;

struct ofi_domain *ofi_domain_find(struct fid_domain *fid)
{
    struct ofi_domain *domain = __atomic_load_n(&domain_first, __ATOMIC_ACQUIRE);
    while (domain && domain->fid != fid)
        domain = domain->next;
    return domain;
}

uint16_t ofi_space_new(void)
{
    static uint32_t last;
    /* 15 bits: the space shares a word with the context. Queues that wrapped round to a number
     * that is still used would only meet when they also use equal contexts. */
    return (uint16_t)(__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED) % 0x7fff + 1);
}

static const struct fi_ops_domain *domain_original(const struct fid_domain *fid)
{
    return ofi_table_original(fid->ops);
}

/* `wrap`: what is done, with `domain` and `depth`, to what was opened. */
#define DOMAIN_OPEN(member, parameters, arguments, wrap)                                          \
    OFI_MAKE(domain_##member, domain_original(fid)->member, parameters, arguments, {              \
        struct ofi_domain *domain = ofi_domain_find(fid);                                         \
        if (domain) {                                                                             \
            depth = ofi_deeper(depth, domain->depth);                                             \
            wrap;                                                                                 \
        }                                                                                         \
    })

DOMAIN_OPEN(av_open,
            (struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **av, void *context),
            (fid, attr, av, context),
            ofi_av_wrap(domain, *av, attr))

DOMAIN_OPEN(cq_open,
            (struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **cq, void *context),
            (fid, attr, cq, context),
            ofi_cq_wrap(domain, *cq, attr, depth))

DOMAIN_OPEN(endpoint,
            (struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep, void *context),
            (fid, info, ep, context),
            ofi_ep_wrap(domain, *ep, info, NULL, depth))

DOMAIN_OPEN(endpoint2,
            (struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep, uint64_t flags,
             void *context),
            (fid, info, ep, flags, context),
            ofi_ep_wrap(domain, *ep, info, NULL, depth))

DOMAIN_OPEN(scalable_ep,
            (struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep, void *context),
            (fid, info, ep, context),
            ofi_ep_wrap(domain, *ep, info, NULL, depth))

DOMAIN_OPEN(srx_ctx,
            (struct fid_domain *fid, struct fi_rx_attr *attr, struct fid_ep **ep, void *context),
            (fid, attr, ep, context),
            ofi_srx_wrap(domain, *ep, depth))

static void domain_install(void *ops)
{
    struct fi_ops_domain *table = ops;
    OFI_INSTALL(table, av_open, domain_av_open);
    OFI_INSTALL(table, cq_open, domain_cq_open);
    OFI_INSTALL(table, endpoint, domain_endpoint);
    OFI_INSTALL(table, endpoint2, domain_endpoint2);
    OFI_INSTALL(table, scalable_ep, domain_scalable_ep);
    OFI_INSTALL(table, srx_ctx, domain_srx_ctx);
}

static char *copy_text(const char *text) { return strdup(text ? text : ""); }

static struct ofi_domain *domain_make(struct fid_domain *fid)
{
    struct ofi_domain *domain = ofi_domain_find(fid);
    if (domain) { /* an earlier domain at this address is closed */
        free(domain->prov);
        free(domain->fabric);
        free(domain->name);
        return domain;
    }
    domain = calloc(1, sizeof(*domain));
    if (!domain)
        return NULL;
    domain->fid = fid;
    domain->next = __atomic_load_n(&domain_first, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&domain_first, &domain->next, domain, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        continue;
    return domain;
}

void ofi_domain_wrap(struct fid_domain *fid, const struct fi_info *info, uint8_t depth)
{
    struct ofi_domain *domain = domain_make(fid);
    if (!domain) {
        st_lost("no memory for a domain", 1);
        return;
    }
    const struct fi_fabric_attr *fabric = info->fabric_attr;
    const struct fi_domain_attr *attr = info->domain_attr;
    domain->prov = copy_text(fabric ? fabric->prov_name : NULL);
    domain->fabric = copy_text(fabric ? fabric->name : NULL);
    domain->name = copy_text(attr ? attr->name : NULL);
    domain->depth = depth;
    domain->shared = !attr || attr->threading == FI_THREAD_SAFE ||
                     attr->threading == FI_THREAD_UNSPEC;
    /* Never swapped: the tcp provider compares the pointer. */
    ofi_table_patch(fid->ops, domain_install);
    ofi_mr_wrap(fid);
}
