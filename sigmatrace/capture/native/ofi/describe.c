/* What the trace says of an endpoint: attributes, its own name, its peer's. */
#include <errno.h>

#include "ofi.h"

#define OFI_NAME_MAX 512u

static const char *ep_type_text(const struct fi_info *info)
{
    switch (info && info->ep_attr ? info->ep_attr->type : FI_EP_UNSPEC) {
    case FI_EP_MSG:
        return "msg";
    case FI_EP_DGRAM:
        return "dgram";
    case FI_EP_RDM:
        return "rdm";
    default:
        return "";
    }
}

void ofi_ep_describe(struct ofi_ep *ep, const struct fi_info *info)
{
    const struct ofi_domain *domain = ep->domain;
    const char *prov = info && info->fabric_attr ? info->fabric_attr->prov_name : NULL;
    struct st_object object;
    st_object_begin(&object, "ofi_endpoint", ep->object);
    st_object_str(&object, "prov", prov ? prov : domain->prov);
    st_object_str(&object, "ep_type", ep_type_text(info));
    st_object_str(&object, "fabric", domain->fabric);
    st_object_str(&object, "domain", domain->name);
    st_object_u64(&object, "addr_format", info ? info->addr_format : FI_FORMAT_UNSPEC);
    st_object_u64(&object, "depth", ep->depth);
    st_object_u64(&object, "caps", info ? info->caps : 0);
    if (ep->is_srx)
        st_object_str(&object, "name", "shared receive context");
    st_object_end(&object);
}

/* Asks a name of the library; 0 when it has none to give. */
static size_t ask_name(struct ofi_ep *ep, bool peer, void *name)
{
    const struct fi_ops_cm *cm = ep->fid->cm;
    size_t size = OFI_NAME_MAX;
    int kept = errno;
    int result = -FI_ENOSYS;
    if (peer && FI_CHECK_OP(cm, struct fi_ops_cm, getpeer))
        result = cm->getpeer(ep->fid, name, &size);
    else if (!peer && FI_CHECK_OP(cm, struct fi_ops_cm, getname))
        result = cm->getname(&ep->fid->fid, name, &size);
    errno = kept;
    return result || size > OFI_NAME_MAX ? 0 : size;
}

void ofi_ep_name(struct ofi_ep *ep, bool with_peer)
{
    unsigned char name[OFI_NAME_MAX];
    struct st_object object;
    st_enter(); /* what the library does to answer is not the application's doing */
    size_t size = ask_name(ep, false, name);
    st_object_begin(&object, "ofi_endpoint", ep->object);
    if (size)
        st_object_bin(&object, "local", name, size);
    if (ep->av)
        st_object_u64(&object, "av", ep->av);
    if (with_peer && (size = ask_name(ep, true, name)))
        st_object_bin(&object, "peer", name, size);
    st_object_end(&object);
    st_leave();
}
