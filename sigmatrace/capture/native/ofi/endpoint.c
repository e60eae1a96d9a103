/* Endpoints and shared receive contexts: their tables, what is bound to them, their end. */
#include <stdlib.h>
#include <string.h>

#include "wrap.h"

static struct ofi_ep *ep_owner(const struct fid *fid) { return ofi_table_of(fid->ops)->owner; }

static const struct fi_ops *fid_original(const struct fid *fid)
{
    return ofi_table_of(fid->ops)->original;
}

/* Some providers make an alias by copying the endpoint. */
static void ep_alias_made(const struct ofi_ep *ep, const struct fid *fid, const void *arg)
{
    const struct fi_alias *alias = arg;
    if (*alias->fid != fid)
        ofi_swaps_leave(&ep->swaps, fid, *alias->fid);
    st_lost("endpoint alias: its operations are not seen", 1);
}

static void ep_bound_srx(struct ofi_ep *ep, struct fid *fid)
{
    struct ofi_ep *srx = ofi_ep_of(fid);
    if (!srx)
        return;
    ep->srx_space = srx->space;
    ep->srx_object = srx->object;
    if (ep->rx_cq)
        ofi_cq_context(ep->rx_cq, ep);
}

static void ep_bound_cq(struct ofi_ep *ep, struct ofi_cq *cq, uint64_t flags)
{
    if (!cq)
        return;
    if ((flags & FI_TRANSMIT) && !ep->tx_cq) {
        ep->tx_cq = cq;
        ep->selective_tx = flags & FI_SELECTIVE_COMPLETION;
        ofi_cq_bound(cq, ep, FI_TRANSMIT);
    }
    if ((flags & FI_RECV) && !ep->rx_cq) {
        ep->rx_cq = cq;
        ep->selective_rx = flags & FI_SELECTIVE_COMPLETION;
        if (!ep->is_srx)
            ep->space = cq->space;
        ofi_cq_bound(cq, ep, FI_RECV);
        if (ep->srx_space)
            ofi_cq_context(cq, ep);
    }
}

/* Providers may exchange the tables of an endpoint when something is bound to it and when it is
 * enabled. Nobody uses it then. */
static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ofi_ep *ep = ep_owner(fid);
    st_enter();
    int result = fid_original(fid)->bind(fid, other, flags);
    st_leave();
    ofi_swaps_in(&ep->swaps);
    if (result)
        return result;
    switch (other->fclass) {
    case FI_CLASS_AV:
        ep->av = ofi_av_of(other);
        break;
    case FI_CLASS_CQ:
        ep_bound_cq(ep, ofi_cq_of(other), flags);
        break;
    case FI_CLASS_SRX_CTX:
        ep_bound_srx(ep, other);
        break;
    default:
        break;
    }
    return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
    struct ofi_ep *ep = ep_owner(fid);
    st_enter();
    int result = fid_original(fid)->control(fid, command, arg);
    st_leave();
    if (command == FI_ENABLE)
        ofi_swaps_in(&ep->swaps);
    if (result)
        return result;
    if (command == FI_ENABLE && !ep->is_srx)
        ofi_ep_name(ep, false);
    else if (command == FI_ALIAS)
        ep_alias_made(ep, fid, arg);
    else if (command == FI_SETOPSFLAG && arg) {
        uint64_t flags = *(uint64_t *)arg;
        if (flags & FI_TRANSMIT)
            ep->tx_flags = flags;
        if (flags & FI_RECV)
            ep->rx_flags = flags;
    }
    return 0;
}

static int ep_close(struct fid *fid)
{
    struct ofi_ep *ep = ep_owner(fid);
    int result = ofi_swaps_close(&ep->swaps, fid);
    if (result)
        return result;
    if (ep->tx_cq)
        ofi_cq_unbound(ep->tx_cq, ep, FI_TRANSMIT);
    if (ep->rx_cq)
        ofi_cq_unbound(ep->rx_cq, ep, FI_RECV);
    st_pending_forget(ep->object);
    st_object_closed("ofi_endpoint", ep->object, st_now());
    free(ep);
    return 0;
}

static void ep_fid_install(void *ops)
{
    struct fi_ops *table = ops;
    OFI_INSTALL(table, close, ep_close);
    OFI_INSTALL(table, bind, ep_bind);
    OFI_INSTALL(table, control, ep_control);
}

static const struct fi_ops_ep *ep_original(const struct fid_ep *fid)
{
    return ofi_table_of(fid->ops)->original;
}

/* A context of a scalable endpoint. */
static void ep_context_wrap(const struct ofi_ep *parent, struct fid_ep *fid, uint8_t depth)
{
    ofi_ep_wrap(parent->domain, fid, NULL, parent, ofi_deeper(depth, parent->depth));
}

OFI_MAKE(ep_tx_ctx, ep_original(fid)->tx_ctx,
         (struct fid_ep *fid, int index, struct fi_tx_attr *attr, struct fid_ep **made,
          void *context),
         (fid, index, attr, made, context),
         ep_context_wrap(ep_owner(&fid->fid), *made, depth))

OFI_MAKE(ep_rx_ctx, ep_original(fid)->rx_ctx,
         (struct fid_ep *fid, int index, struct fi_rx_attr *attr, struct fid_ep **made,
          void *context),
         (fid, index, attr, made, context),
         ep_context_wrap(ep_owner(&fid->fid), *made, depth))

static void ep_ops_install(void *ops)
{
    struct fi_ops_ep *table = ops;
    OFI_INSTALL(table, tx_ctx, ep_tx_ctx);
    OFI_INSTALL(table, rx_ctx, ep_rx_ctx);
}

struct ofi_ep *ofi_ep_of(struct fid *fid)
{
    const struct fi_ops *ops = fid ? fid->ops : NULL;
    return ops && ops->close == ep_close ? ofi_table_of(ops)->owner : NULL;
}

static void ep_swap(struct ofi_ep *ep)
{
    struct fid_ep *fid = ep->fid;
    ep->swaps.owner = ep;
    ofi_swaps_add(&ep->swaps, &fid->fid.ops, ep_fid_install);
    ofi_swaps_add(&ep->swaps, &fid->msg, ofi_msg_install);
    ofi_swaps_add(&ep->swaps, &fid->tagged, ofi_tagged_install);
    /* A shared receive context has but the first members of the structure in some providers. */
    if (ep->is_srx)
        return;
    ofi_swaps_add(&ep->swaps, &fid->ops, ep_ops_install);
    ofi_swaps_add(&ep->swaps, &fid->rma, ofi_rma_install);
    ofi_swaps_add(&ep->swaps, &fid->atomic, ofi_atomic_install);
}

/* What an endpoint can tell of itself before it is enabled; contexts of a scalable endpoint
 * take what they do not know from it. */
static void ep_attributes(struct ofi_ep *ep, const struct fi_info *info,
                          const struct ofi_ep *parent)
{
    if (parent) {
        ep->directed = parent->directed;
        ep->tx_flags = parent->tx_flags;
        ep->rx_flags = parent->rx_flags;
        ep->av = parent->av;
    }
    if (!info)
        return;
    ep->connected = info->ep_attr && info->ep_attr->type == FI_EP_MSG;
    ep->directed = info->caps & FI_DIRECTED_RECV;
    ep->takes_receives = info->mode & FI_RX_CQ_DATA;
    ep->tx_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    ep->rx_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
}

static struct ofi_ep *ep_make(struct ofi_domain *domain, struct fid_ep *fid, uint8_t depth)
{
    struct ofi_ep *ep = calloc(1, sizeof(*ep));
    if (!ep) {
        st_lost("no memory for an endpoint", 1);
        return NULL;
    }
    ep->fid = fid;
    ep->domain = domain;
    ep->depth = depth;
    ep->shared = domain->shared;
    ep->object = st_object_id();
    return ep;
}

void ofi_ep_wrap(struct ofi_domain *domain, struct fid_ep *fid, const struct fi_info *info,
                 const struct ofi_ep *parent, uint8_t depth)
{
    struct ofi_ep *known = ofi_ep_of(&fid->fid);
    if (known) { /* made by a call that reached a sibling: one endpoint, seen from outside */
        known->depth = depth;
        return;
    }
    struct ofi_ep *ep = ep_make(domain, fid, depth);
    if (!ep)
        return;
    ep_attributes(ep, info, parent);
    ep_swap(ep);
    ofi_ep_describe(ep, info);
}

void ofi_srx_wrap(struct ofi_domain *domain, struct fid_ep *fid, uint8_t depth)
{
    struct ofi_ep *ep = ofi_ep_of(&fid->fid) ? NULL : ep_make(domain, fid, depth);
    if (!ep)
        return;
    ep->is_srx = true;
    ep->space = ofi_space_new();
    ep_swap(ep);
    ofi_ep_describe(ep, NULL);
}

void ofi_ep_connected(struct fid *fid)
{
    struct ofi_ep *ep = ofi_ep_of(fid);
    if (ep)
        ofi_ep_name(ep, true);
}
